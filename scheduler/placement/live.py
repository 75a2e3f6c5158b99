"""What lies where in the engine's pool: leases by key and by host, over arrays that the score cache keeps."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scheduler.placement.cache import ScoreCache, Seat
from scheduler.placement.pool import Arrays, Shape


@dataclass(slots=True)
class Lease:
    """A placed request: its shape, its host's row, and the GPUs it has there."""

    key: Hashable
    shape: Shape
    host: int
    gpus: tuple[int, ...]


class Live:
    """Leases on a pool."""

    def __init__(self, arrays: Arrays, cache: ScoreCache, nodes: Sequence[str]) -> None:
        self.arrays, self.cache, self.nodes = arrays, cache, nodes
        self.leases: dict[Hashable, Lease] = {}
        self.on_host: list[dict[Hashable, Lease]] = [{} for _ in range(arrays.hosts)]

    def take(self, key: Hashable, shape: Shape, kept_gpus: int = 0) -> Lease | int:
        """Seat a request on the best host, or return why not (see `ScoreCache.take`)."""
        seat = self.cache.take(shape, kept_gpus)
        return seat if isinstance(seat, int) else self._note(key, shape, seat)

    def take_whole(self, key: Hashable, shape: Shape, host: int) -> Lease:
        """Seat a request for whole GPUs on a certain host, which must have them."""
        return self._note(key, shape, self.cache.take_whole(shape, host))

    def put(self, lease: Lease) -> None:
        """Seat a lease exactly where it says."""
        self.cache.put(lease.host, lease.gpus, lease.shape, 1)
        self.leases[lease.key] = self.on_host[lease.host][lease.key] = lease

    def give(self, key: Hashable) -> Lease:
        """Take a lease off its host. Raises KeyError if there is none of this key."""
        lease = self.leases.pop(key)
        del self.on_host[lease.host][key]
        self.cache.put(lease.host, lease.gpus, lease.shape, -1)
        return lease

    def _note(self, key: Hashable, shape: Shape, seat: Seat) -> Lease:
        lease = Lease(key, shape, *seat)
        self.leases[key] = self.on_host[seat[0]][key] = lease
        return lease
