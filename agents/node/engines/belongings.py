"""What a lease has at a Docker-compatible engine beside its container: a network of its own, and scratch on the disk.

The network's bridge is named gy..., so that an owner's firewall can speak of all of them in one rule. Containers on two
bridges cannot reach each other (the engine's own rules). Scratch is a volume of the engine: a lease keeps it over
restarts on the same host.
"""

import contextlib
import hashlib
import io
import itertools
import json
import tarfile
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from agents.node.engines import (
    LABEL_EPOCH,
    LABEL_HOST,
    LABEL_LEASE,
    LABEL_MEMBER,
    LABEL_VOLUME_OF,
    EngineError,
    NoSuchContainer,
    Plan,
    VolumeMount,
    refusals,
    subnets,
)
from agents.node.engines.unix_http import Refusal

SCRATCH_INSIDE = "/scratch"
SIZES_TIMEOUT_S = 120.0
SUBNETS_TRIED = 4
MIB = 1024 * 1024


def bridge_of(container: str) -> str:
    """Return the name of the host's interface behind which a container is alone."""
    return f"gy{hashlib.sha256(container.encode()).hexdigest()[:12]}"


class Belongings:
    """Part of DockerEngine: networks, scratch and volumes."""

    volume_quota: bool | None = None  # whether its file system keeps a volume to its size; None: not known yet

    def _call(self, method: str, target: str, **options: Any) -> Any:
        raise NotImplementedError

    def _create(self, plan: Plan, body: dict[str, Any]) -> str:
        raise NotImplementedError

    def remove(self, container: str) -> None:
        raise NotImplementedError

    def make_network(self, plan: Plan) -> None:
        """Make the container's own network, named as the container; one that is there is used.

        Its addresses are ours to choose (agents.node.engines.subnets); where the engine takes none of them, it chooses.
        """
        labels = {name: plan.labels[name] for name in (LABEL_HOST, LABEL_LEASE) if name in plan.labels}
        body = {
            "Name": plan.name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Labels": labels,
            "Options": {"com.docker.network.bridge.name": bridge_of(plan.name)},
        }
        taken = [*subnets.of_engine(self._call("GET", "/networks") or ()), *subnets.of_machine()]
        chosen = itertools.islice(subnets.free(plan.name, taken), SUBNETS_TRIED)
        for addresses in [*({"IPAM": subnets.configuration(subnet)} for subnet in chosen), {}]:
            try:
                self._call("POST", "/networks/create", body={**body, **addresses})
            except Refusal as refusal:
                if refusal.status == 409:
                    return
                if addresses and "overlap" in str(refusal).lower():
                    continue  # of another one that was made meanwhile
                raise EngineError("engine_error", f"no network could be made: {refusal}") from None
            return

    def networks(self, host: str) -> list[str]:
        filters = json.dumps({"label": [f"{LABEL_HOST}={host}"]})
        return [str(row["Name"]) for row in self._call("GET", "/networks", query={"filters": filters})]

    def remove_network(self, name: str) -> None:
        with contextlib.suppress(NoSuchContainer):
            self._call("DELETE", f"/networks/{quote(name)}")

    def open_scratch(self, container: str, path: str = SCRATCH_INSIDE) -> None:
        """Let every user inside write to the scratch, or to a volume: an engine makes it for root alone, and nobody in
        it is root."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            folder = tarfile.TarInfo(path.lstrip("/"))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        self._call("PUT", f"/containers/{container}/archive", query={"path": "/"}, raw=raw.getvalue())

    def make_volume(self, volume: VolumeMount, *, host: str) -> None:
        """Make a volume that is not there, kept to its size where the engine's file system can do that."""
        body: dict[str, Any] = {"Name": volume.place, "Labels": {LABEL_VOLUME_OF: host}}
        if self.volume_quota is not False:
            body["DriverOpts"] = {"size": f"{volume.size_mib}M"}
        try:
            self._call("POST", "/volumes/create", body=body)
        except Refusal as refusal:
            if refusal.status == 409:
                return  # it is there, made otherwise
            if "DriverOpts" in body and refusals.has_no_volume_quota(str(refusal)):
                self.volume_quota = False
                self.make_volume(volume, host=host)
                return
            raise EngineError("engine_error", f"no volume could be made: {refusal}") from None

    def sizes_mib(self, places: set[str]) -> dict[str, int]:
        rows = self._call("GET", "/system/df", query={"type": "volume"}, timeout_s=SIZES_TIMEOUT_S)["Volumes"] or []
        sizes = {str(row["Name"]): (row.get("UsageData") or {}).get("Size", -1) for row in rows}
        return {name: -(-size // MIB) for name, size in sizes.items() if name in places and size >= 0}

    def open_all(self, plan: Plan, container: str) -> None:
        """Open what the container can write to beside its own root."""
        if plan.scratch is not None:
            self.open_scratch(container)
        for volume in plan.volumes:
            self.open_scratch(container, volume.path)

    def open_beside(self, plan: Plan, body: dict[str, Any]) -> None:
        """An engine puts nothing into a container that is read-only: one beside it, never started, has the same scratch
        and volumes. Its labels name a lease that nobody knows: if we die now, it is an orphan like any other."""
        if plan.scratch is None and not plan.volumes:
            return
        lease = f"{plan.labels.get(LABEL_LEASE, plan.name)}-scratch"
        labels = {LABEL_MEMBER: "0", LABEL_EPOCH: "0", **plan.labels, LABEL_LEASE: lease}
        beside = replace(plan, name=f"gy-{lease}-{labels[LABEL_MEMBER]}-{labels[LABEL_EPOCH]}", labels=labels)
        config = {**body["HostConfig"], "ReadonlyRootfs": False, "NetworkMode": "none", "PortBindings": {}}
        made = self._create(beside, {**body, "Labels": labels, "HostConfig": config})
        self.open_all(beside, made)
        self.remove(made)

    def scratch_inside(self, name: str) -> str:
        return SCRATCH_INSIDE

    def scratches(self, host: str) -> dict[str, str]:
        filters = json.dumps({"label": [f"{LABEL_HOST}={host}"]})
        rows = self._call("GET", "/volumes", query={"filters": filters})["Volumes"] or []
        return {str(row["Name"]): str((row.get("Labels") or {}).get(LABEL_LEASE, "")) for row in rows}

    def remove_scratch(self, name: str) -> None:
        with contextlib.suppress(NoSuchContainer):
            self._call("DELETE", f"/volumes/{quote(name)}")
