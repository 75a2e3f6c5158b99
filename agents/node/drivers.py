"""What the agent needs of a family of accelerators, whichever library or file stands behind it."""

from dataclasses import dataclass
from typing import Any, Protocol


class DeviceFault(Exception):
    """A device that answers its driver does not do what it was told; the sentence says what."""


@dataclass(frozen=True)
class Facts:
    """What does not change while the driver stays the same: the driver's part of the inventory document."""

    gpus: list[dict[str, Any]]
    driver_version: str | None = None
    cuda_version: str | None = None
    toolkit: dict[str, Any] | None = None


class Driver(Protocol):
    """One family. `simulated` says so wherever a device of it is shown."""

    name: str
    simulated: bool

    def inventory(self) -> Facts: ...

    def sample(self) -> list[dict[str, Any]]:
        """Return one DeviceReport per device, the newest there is, with its age; never waits for the hardware."""

    def taken(self) -> None:
        """The server has the last sample: Xids in it need not be told again."""

    def add_xid(self, uuid: str, xid: int) -> None:
        """Take in an Xid that the kernel log tells of, for the next sample."""

    def conditions(self) -> list[str]: ...

    def state(self) -> str:
        """Return "ok", or in one word what is wrong with the probe."""

    def environment(self, devices: list[str]) -> dict[str, str]:
        """Return the variables by which a container is given exactly these devices."""

    def device_requests(self, devices: list[str]) -> list[dict[str, Any]]: ...

    def device_nodes(self, devices: list[str]) -> list[str]:
        """Return the device files of the host that a container gets for these devices, where no runtime adds them."""

    def visible_command(self) -> list[str]:
        """Return what to run inside a container to see its devices."""

    def visible_in(self, output: str) -> list[str]: ...

    def figures(self, uuid: str, *, seed: str, within_s: float) -> dict[str, int]:
        """Measure an idle device for about `within_s`; return what protocol.py names, as far as it was measured.

        seed: of the test, hex. Raises DeviceFault when the device is seen not to work.
        """

    def overwrite(self, uuid: str, *, within_s: float) -> int | None:
        """Write over the memory of a device that nobody uses; return how many MiB, or None where there are no means.

        Raises DeviceFault.
        """

    def close(self) -> None: ...
