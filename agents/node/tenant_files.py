"""What a tenant's container gets beside its image: secrets, SSH keys, and where it finds them (AGENT.md section 11)."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.node import private_files
from agents.node.engines import EngineError
from agents.node.workload import Workload
from agents.protocol import WorkloadSpec

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler


@dataclass(frozen=True)
class Put:
    """folder: on the host, to be mounted; None where there is none. tenant_env: may be overridden by the tenant's own
    variables; platform_env: may not."""

    folder: str | None = None
    tenant_env: dict[str, str] = field(default_factory=dict)
    platform_env: dict[str, str] = field(default_factory=dict)


def put(reconciler: "Reconciler", workload: Workload, spec: WorkloadSpec, secrets: dict[str, str]) -> Put:
    """Write the files of a container into memory, and return where it sees them.

    A secret is a file and never a variable: an engine writes variables to its disk. NAME_FILE says where NAME is, as
    many images expect it. Raises EngineError where there is no memory to write to.
    """
    files = {f"{private_files.SECRETS}/{name}": value.encode() for name, value in secrets.items()}
    if spec.ssh_keys:
        files[private_files.SSH_KEYS] = "".join(f"{key}\n" for key in spec.ssh_keys).encode()
    store = reconciler.private_files
    files |= _notice(workload)
    if store is None:
        if secrets or spec.ssh_keys:
            raise EngineError("engine_error", "this host has no file system in memory for secrets and keys")
        return Put()
    folder = store.write(workload.name, files)
    seen_at = private_files.INSIDE if reconciler.engine.mounts else str(folder)
    tenant = {f"{name}_FILE": f"{seen_at}/{private_files.SECRETS}/{name}" for name in secrets}
    platform = {"GPUYARD_FILES": seen_at, "GPUYARD_NOTICE_FILE": f"{seen_at}/{private_files.NOTICE}"}
    if workload.expires_at:
        platform["GPUYARD_EXPIRES_AT"] = workload.expires_at
    if spec.ssh_keys:
        platform["GPUYARD_SSH_KEYS_FILE"] = f"{seen_at}/{private_files.SSH_KEYS}"
        platform["GPUYARD_SSH_KEYS"] = "\n".join(spec.ssh_keys)  # public, so a variable will do
    return Put(folder=str(folder), tenant_env=tenant, platform_env=platform)


def tell(reconciler: "Reconciler", workload: Workload) -> None:
    """Put the notice of an end where a running container sees it (GPUYARD_NOTICE_FILE), or take it away again."""
    store = reconciler.private_files
    if store is None or workload.name not in store.names():
        return  # not started yet: it gets the notice with its other files
    if workload.notice is None:
        store.drop(workload.name, private_files.NOTICE)
    else:
        store.write(workload.name, _notice(workload))


def _notice(workload: Workload) -> dict[str, bytes]:
    return {} if workload.notice is None else {private_files.NOTICE: json.dumps(workload.notice).encode() + b"\n"}


def take_away(reconciler: "Reconciler", workload: Workload) -> None:
    """Remove a container's files; its container must be gone."""
    if reconciler.private_files is not None:
        reconciler.private_files.remove(workload.name)
