"""What the agent needs of a container engine: twelve verbs, whichever engine answers them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

LABEL_HOST = "gpuyard.host"
LABEL_LEASE = "gpuyard.lease"
LABEL_MEMBER = "gpuyard.member"
LABEL_EPOCH = "gpuyard.epoch"
LABEL_SPEC = "gpuyard.spec"
LABEL_DEVICES = "gpuyard.devices"
LABEL_AGENT = "gpuyard.agent"
LABEL_SIMULATED = "gpuyard.simulated"
LABEL_VOLUME_OF = "gpuyard.volume-of"  # the host, on a volume: not LABEL_HOST, whose things are collected

Progress = Callable[[dict[str, Any]], None]  # called with {bytes, total, rate, layer...}; may raise to abort


class EngineError(Exception):
    """A verb failed. `failure` is one of protocol.FAILURES; the sentence is for people."""

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


class EngineDown(EngineError):
    """The engine does not answer; what it runs may well run on."""

    def __init__(self, detail: str) -> None:
        super().__init__("engine_error", detail)


class NoSuchContainer(EngineError):
    """The container is not there (any more)."""

    def __init__(self, detail: str) -> None:
        super().__init__("engine_error", detail)


@dataclass(frozen=True)
class Container:
    """One container as the engine lists it. exit_code: None while it runs, or when nobody knows it.

    begun: False while nothing of the image runs in it yet, but only what starts it.
    """

    id: str
    name: str
    labels: dict[str, str]
    running: bool
    exit_code: int | None = None
    pid: int | None = None
    detail: str = ""
    begun: bool = True


@dataclass(frozen=True)
class Ran:
    """What came of a command inside. exit_code: None when it was ended from outside (too late, or said too much)."""

    exit_code: int | None
    output: bytes
    truncated: bool = False
    timed_out: bool = False


@dataclass(frozen=True)
class Login:
    """What a registry is told at a pull, and nobody else ever."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class VolumeMount:
    """A volume that outlives the container: what the engine calls it, where it is seen inside, how much it may hold."""

    place: str
    path: str
    size_mib: int


@dataclass(frozen=True)
class Plan:
    """All that a container is made from. env: the tenant's, the platform's and the driver's, in this order of rank."""

    name: str
    image: str
    labels: dict[str, str]
    env: dict[str, str]
    devices: list[str]
    command: list[str] | None = None
    ports: list[int] = field(default_factory=list)
    port_range: tuple[int, int] | None = None  # host ports [first, end) that the owner gave; None: engine's choice
    cpu_milli: int | None = None
    ram_mib: int | None = None
    disk_mib: int | None = None
    pids: int = 4096
    shm_mib: int = 64
    read_only: bool = False  # the root file system; what is written then is /tmp, in memory, and the scratch
    device_requests: list[dict[str, Any]] = field(default_factory=list)  # the driver's, in the engine API's form
    fixed_ports: dict[int, int] = field(default_factory=dict)  # container port -> the host port it must have
    device_nodes: list[str] = field(default_factory=list)  # files of the host: the driver's, never a tenant's
    scratch: str | None = None  # name of the lease's scratch; made if it is not there
    volumes: list[VolumeMount] = field(default_factory=list)  # made if they are not there
    files: str | None = None  # the host's folder that is seen read-only at private_files.INSIDE


class Engine(Protocol):
    """Every verb may block for seconds (pull: for minutes) and raises EngineError; each is safe to repeat."""

    name: str  # "docker", "podman", "process": shown to people
    mounts: bool  # whether a folder of the host is seen elsewhere inside; if not, a workload sees the host's own path

    disk_quota: bool | None  # whether its storage keeps a container to its share; None: not known yet

    def version(self) -> str: ...

    def image_digest(self, image: str) -> str | None:
        """Return the digest of an image that is present, or None."""

    def pull(self, image: str, progress: Progress, *, login: Login | None = None) -> str: ...

    def remove_images(self, repository: str) -> None:
        """Remove every image of the repository; raise EngineError while a container uses one."""

    def create(self, plan: Plan) -> str:
        """Return the id of the container named so; one that is already there with the same spec is adopted."""

    def start(self, container: str) -> None: ...

    def containers(self, host: str) -> list[Container]: ...

    def inspect(self, container: str) -> Container: ...

    def exec(self, container: str, argv: list[str], *, timeout_s: float) -> tuple[int, str]:
        """Run `argv` inside; return its exit code and output. 126, 127: it is not there to run."""

    def run_inside(self, container: str, argv: list[str], *, timeout_s: float, limit: int) -> Ran:
        """Run a tenant's `argv` inside, as what the container runs as; end it after `timeout_s` or `limit` bytes of
        output and errors together."""

    def stop(self, container: str, *, grace_s: int) -> bool:
        """SIGTERM, wait `grace_s`, SIGKILL, wait 60 s; return whether nothing of it runs any more."""

    def remove(self, container: str) -> None: ...

    def logs(self, container: str, *, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of output from byte `offset` on."""

    def ports(self, container: str) -> dict[str, int]: ...

    def address(self, container: str, port: int) -> tuple[str, int]:
        """Return where this host reaches a port of the container, published or not."""

    def watch(self, ring: Callable[[], None]) -> None:
        """Call `ring` whenever something may have changed: a hint, never the truth."""

    def networks(self, host: str) -> list[str]:
        """Return the names of the networks that were made for containers of this host: each has its container's."""

    def remove_network(self, name: str) -> None:
        """Remove the network of a container; none there is well too. Raises EngineError while something uses it."""

    def scratch_inside(self, name: str) -> str:
        """Return where a container sees its scratch."""

    def scratches(self, host: str) -> dict[str, str]:
        """Return the lease of each scratch of this host, by its name."""

    def remove_scratch(self, name: str) -> None:
        """Remove a scratch or a volume; none there is well too. Raises EngineError while something uses it."""

    def sizes_mib(self, places: set[str]) -> dict[str, int]:
        """Return how much is in these scratches and volumes, of those whose size is known, rounded up."""

    def close(self) -> None: ...
