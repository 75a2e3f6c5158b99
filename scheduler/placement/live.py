"""What lies where in the engine's pool: leases by key and by host, and the arrays kept in line with them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scheduler.placement.cache import ScoreCache
from scheduler.placement.pool import CPU, LEASES, MEMORY, WHOLE_GPU, Arrays, Shape, refresh


@dataclass(frozen=True, slots=True)
class Lease:
    """A placed request: its shape, its host's row, and the GPUs it has there."""

    key: Hashable
    shape: Shape
    host: int
    gpus: tuple[int, ...]


class Live:
    """Leases on a pool. `take` and `give` are the only things that change the arrays."""

    def __init__(self, arrays: Arrays, cache: ScoreCache, nodes: Sequence[str]) -> None:
        self.arrays, self.cache, self.nodes = arrays, cache, nodes
        self.leases: dict[Hashable, Lease] = {}
        self.on_host: list[dict[Hashable, Lease]] = [{} for _ in range(arrays.hosts)]

    def take(self, key: Hashable, shape: Shape, host: int, rest: int) -> Lease:
        """Seat a request on a host: whole GPUs from the first free ones, a fraction on the first with this rest."""
        if shape.gpus == 1:
            gpus: tuple[int, ...] = (self.arrays.free[host].tolist().index(rest),)
        else:
            free = self.arrays.free[host].tolist() if shape.gpus else []
            gpus = tuple(gpu for gpu, left in enumerate(free) if left == WHOLE_GPU)[: shape.gpus]
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
        row, shape = self.arrays.rows[lease.host], lease.shape
        row[CPU] -= sign * shape.cpu_milli
        row[MEMORY] -= sign * shape.memory_mib
        row[LEASES] += sign
        if lease.gpus:
            free = self.arrays.free[lease.host]
            for gpu in lease.gpus:
                free[gpu] -= sign * shape.gpu_milli
            refresh(self.arrays, (lease.host,))
        self.cache.touch(lease.host)
