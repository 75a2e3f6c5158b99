"""What lies where in the engine's pool: leases by key and by host, and the arrays kept in line with them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scheduler.placement import kernels
from scheduler.placement.cache import ScoreCache
from scheduler.placement.pool import REST_IMAGES, WHOLE_GPU, Arrays, Shape, change


@dataclass(frozen=True, slots=True)
class Lease:
    """A placed request: its shape, its host's row, and the GPUs it has there."""

    key: Hashable
    shape: Shape
    host: int
    gpus: tuple[int, ...]


class Live:
    """Leases on a pool. `take` and `give` are the only things that change the arrays."""

    def __init__(self, arrays: Arrays, cache: ScoreCache, nodes: Sequence[str], *, compiled: bool) -> None:
        self.arrays, self.cache, self.nodes = arrays, cache, nodes
        self._compiled = compiled
        self.leases: dict[Hashable, Lease] = {}
        self.on_host: list[dict[Hashable, Lease]] = [{} for _ in range(arrays.hosts)]

    def take(self, key: Hashable, shape: Shape, host: int, rest: int) -> Lease:
        """Seat a request on a host: whole GPUs from the first free ones, a fraction on the first with this rest."""
        free = self.arrays.free[host].tolist()
        gpus: tuple[int, ...] = ()
        if shape.gpus == 1:
            gpus = (free.index(rest),)
        elif shape.gpus:
            gpus = tuple([gpu for gpu, left in enumerate(free) if left == WHOLE_GPU][: shape.gpus])
        lease = Lease(key, shape, host, gpus)
        self.put(lease)
        return lease

    def put(self, lease: Lease) -> None:
        """Seat a lease exactly where it says."""
        self._apply(lease, 1)
        self.leases[lease.key] = lease
        self.on_host[lease.host][lease.key] = lease

    def give(self, key: Hashable) -> Lease:
        """Take a lease off its host. Raises KeyError if there is none of this key."""
        lease = self.leases.pop(key)
        del self.on_host[lease.host][key]
        self._apply(lease, -1)
        return lease

    def _apply(self, lease: Lease, sign: int) -> None:
        mask = 0
        for gpu in lease.gpus:
            mask |= 1 << gpu
        shape = lease.shape
        if self._compiled:
            kernels.change(
                self.arrays.rows, self.arrays.free, REST_IMAGES, lease.host, mask, sign,
                shape.cpu_milli, shape.memory_mib, shape.gpu_milli,
            )  # fmt: skip
        else:
            change(self.arrays, lease.host, mask, sign, shape)
        self.cache.touch(lease.host)
