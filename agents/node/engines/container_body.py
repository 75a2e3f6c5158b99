"""What a tenant's container is made from, as the engine's API wants it: the hardening list of AGENT.md section 14.

Pure. Nothing a tenant says reaches a field that could widen what the container can do: the tenant has an image, a
command, an environment, ports and sizes.
"""

import os
from pathlib import Path
from typing import Any

from agents.node.engines import LABEL_HOST, LABEL_LEASE, Plan
from agents.node.engines.belongings import SCRATCH_INSIDE
from agents.node.private_files import INSIDE

MIB = 1024 * 1024
NOFILE = 65_536
LOG_FILE_BYTES = "10m"
TMP_MIB, TMP_PART = 1024, 4
# Images that name no user, or root, run as this one: without user namespaces, root inside is root outside.
ORDINARY_USER = "1000:1000"


def container_body(
    plan: Plan, *, image_user: str, user_namespaces: bool, init: bool, nofile_limit: int
) -> dict[str, Any]:
    """Return the body of POST /containers/create.

    image_user: the image's own USER, "" if it names none. nofile_limit: the engine's own limit of open files, which a
    container's cannot exceed where the engine runs without the right to raise it.
    """
    body: dict[str, Any] = {
        "Image": plan.image,
        "Env": [f"{name}={value}" for name, value in sorted(plan.env.items())],
        "Labels": plan.labels,
        "ExposedPorts": {f"{port}/tcp": {} for port in (*plan.ports, *plan.fixed_ports)},
        "AttachStdin": False,
        "OpenStdin": False,
        "HostConfig": _host_config(plan, init=init, nofile=min(NOFILE, nofile_limit)),
    }
    if plan.command is not None:
        body["Cmd"] = plan.command
    if not user_namespaces and is_root(image_user):
        body["User"] = ORDINARY_USER
        body["Env"] += [] if "HOME" in plan.env else ["HOME=/tmp"]
    return body


def is_root(user: str) -> bool:
    """Return whether a USER line means uid 0."""
    name = user.partition(":")[0].strip()
    return name in ("", "root") or (name.isdigit() and int(name) == 0)


def _host_config(plan: Plan, *, init: bool, nofile: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "RestartPolicy": {"Name": "no"},
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "PidsLimit": plan.pids,
        "ShmSize": plan.shm_mib * MIB,
        "Ulimits": [
            {"Name": "nofile", "Soft": nofile, "Hard": nofile},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_FILE_BYTES, "max-file": "2"}},
        "PortBindings": {
            **{f"{port}/tcp": [{"HostPort": _host_port(plan.port_range)}] for port in plan.ports},
            **{f"{port}/tcp": [{"HostPort": str(outside)}] for port, outside in plan.fixed_ports.items()},
        },
        "DeviceRequests": plan.device_requests,
    }
    config["NetworkMode"] = plan.name  # its own: see Belongings.make_network
    config["Mounts"] = _mounts(plan)
    if plan.read_only:
        config["ReadonlyRootfs"] = True
        config["Tmpfs"] = {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={_tmp_mib(plan)}m"}  # noqa: S108 -- its own
    if plan.device_nodes:
        config["Devices"] = [
            {"PathOnHost": node, "PathInContainer": node, "CgroupPermissions": "rw"} for node in plan.device_nodes
        ]
        config["GroupAdd"] = _groups(plan.device_nodes)
    if init:
        config["Init"] = True  # a program that is pid 1 would ignore SIGTERM unless it says otherwise
    if plan.ram_mib is not None:
        # Equal: no swap, so that one tenant's swapping cannot slow the others.
        config["Memory"] = config["MemorySwap"] = plan.ram_mib * MIB
    if plan.cpu_milli is not None:
        # An engine refuses a limit above what the machine has, and a simulated host may claim to have more.
        config["NanoCpus"] = min(plan.cpu_milli, 1000 * (os.cpu_count() or 1)) * 1_000_000
    return config


def _groups(nodes: list[str]) -> list[str]:
    """Return the groups that may open the nodes: the user inside is none of the host's own."""
    found = {Path(node).stat().st_gid for node in nodes if Path(node).exists()}
    return [str(gid) for gid in sorted(found - {0})]


def _mounts(plan: Plan) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    if plan.files is not None:
        mounts.append({"Type": "bind", "Source": plan.files, "Target": INSIDE, "ReadOnly": True})
    if plan.scratch is not None:
        labels = {name: plan.labels[name] for name in (LABEL_HOST, LABEL_LEASE) if name in plan.labels}
        mounts.append(
            {"Type": "volume", "Source": plan.scratch, "Target": SCRATCH_INSIDE, "VolumeOptions": {"Labels": labels}}
        )
    # Volumes are made by now: see Belongings.make_volume.
    return mounts + [{"Type": "volume", "Source": volume.place, "Target": volume.path} for volume in plan.volumes]


def _tmp_mib(plan: Plan) -> int:
    """Return the size of /tmp in memory: it counts against the container's own."""
    return TMP_MIB if plan.ram_mib is None else max(1, plan.ram_mib // TMP_PART)


def _host_port(port_range: tuple[int, int] | None) -> str:
    """Return "" (the engine chooses) or the owner's range, from which the engine takes a free one."""
    return "" if port_range is None else f"{port_range[0]}-{port_range[1] - 1}"
