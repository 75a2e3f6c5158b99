"""One workload as this host knows it: what is wanted, how far it has come, and until when it may run unheard."""

import re
from dataclasses import dataclass, field
from typing import Any

from agents import protocol

# Steps in which a container of it may exist.
MAY_HAVE_CONTAINER = frozenset({"creating", "starting", "probing", "ready", "stopping", "cleaning", "exited", "stuck"})
# Steps that end by themselves: a job works on them.
ON_THE_WAY = frozenset({"resolving", "pulling", "creating", "starting", "probing"})
MAX_DETAIL = 500

Key = tuple[str, int, int]  # lease, member, epoch


@dataclass
class Workload:
    """Mutable; changed under the reconciler's lock, and saved to the journal before anything is done about it.

    deadline_s: seconds since boot (None: no answer has armed it in this boot). container: the engine's id.
    """

    lease: str
    member: int
    epoch: int
    spec_hash: str
    spec: dict[str, Any]
    valid_for_s: int
    stop_grace_s: int = 30
    wanted: bool = True
    step: str = "absent"
    detail: str = ""
    failure: str | None = None
    exit_code: int | None = None
    container: str | None = None
    image_digest: str | None = None
    visible: list[str] | None = None
    ports: dict[str, int] = field(default_factory=dict)
    unusable: bool = False
    deadline_s: float | None = None
    log_offset: int = 0  # the next byte that the server wants
    idle_mib: dict[str, int] = field(default_factory=dict)  # used memory of its devices before it was started
    handover: dict[str, Any] | None = None  # how clean it left its devices
    # Not kept in the journal:
    notice: dict[str, Any] | None = None  # of an end ahead
    expires_at: str = ""
    sealed: str = ""  # base64: what only this host can open, as the newest full list brought it
    progress: dict[str, Any] = field(default_factory=dict)
    unhealthy: str = ""  # what its health check said, while it fails
    volumes_mib: dict[str, int] = field(default_factory=dict)  # what was in its scratch and volumes, by place
    since_s: float = 0.0  # seconds since boot at which it came into its step
    saved_deadline_s: float | None = None  # the deadline that the journal has

    @property
    def key(self) -> Key:
        return (self.lease, self.member, self.epoch)

    @property
    def text_key(self) -> str:
        return protocol.workload_key(*self.key)

    @property
    def name(self) -> str:
        """Return the container's name: the same after every restart, so that a second start finds the first."""
        return f"gy-{re.sub(r'[^A-Za-z0-9_.-]', '-', self.lease)}-{self.member}-{self.epoch}"

    @property
    def scratch(self) -> str:
        """Return the name of its lease's scratch on this host: the same for every epoch."""
        return protocol.scratch_place(self.lease, self.member)

    @property
    def devices(self) -> list[str]:
        return list(self.spec.get("devices", []))

    @property
    def over(self) -> bool:
        """Return whether nothing of it is left on this host."""
        return self.step == "gone"

    def shares_device_with(self, other: "Workload") -> bool:
        """Return whether both hold a unit of the same device."""
        mine, theirs = self.spec.get("units", {}), other.spec.get("units", {})
        for device in set(self.devices) & set(other.devices):
            first, end = mine.get(device, (0, 8))
            other_first, other_end = theirs.get(device, (0, 8))
            if first < other_end and other_first < end:
                return True
        return False

    def report(self) -> dict[str, Any]:
        """Return what the server is told of it."""
        return protocol.WorkloadReport(
            lease=self.lease,
            member=self.member,
            epoch=self.epoch,
            spec_hash=self.spec_hash,
            step=self.step,
            detail=self.detail[:MAX_DETAIL],
            failure=self.failure,
            exit_code=self.exit_code,
            container=self.container,
            image_digest=self.image_digest,
            visible_devices=self.visible,
            ports=dict(self.ports),
            progress=dict(self.progress),
            unusable=self.unusable,
            unhealthy=self.unhealthy[:200],
            volumes_mib=dict(self.volumes_mib),
            handover=self.handover,
        ).to_json()
