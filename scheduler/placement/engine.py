"""Place a stream of requests on a pool: the engine that benchmarks and other harnesses drive."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import NamedTuple, SupportsIndex

from scheduler.placement import kernels
from scheduler.placement.cache import CompiledCache, ScoreCache
from scheduler.placement.demand import build as build_demand
from scheduler.placement.live import Lease, Live
from scheduler.placement.moves import Move, Mover
from scheduler.placement.pool import GPUS, LEASES, WHOLE_GPU, NodeRow, Shape, build
from scheduler.placement.score import Policy, Weights, empty_of, load_policy

TURNOVER_WINDOW = 1_024  # arrivals after which the engine looks whether leases come and go
FIRST_LESSON, LAST_LESSON = 64, 16_384  # arrivals between two readings of what was learnt: from, doubling, up to
SHAPES_KEPT = 4_096  # requests whose class is remembered
LARGEST_NUMBER = 1 << 40  # no node has more of anything
ARRIVAL = 1_024  # what one arrival counts, so that halving keeps rare classes for some ten lessons


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. gpu_milli: thousandths of each GPU, below 1000 only with gpus=1; gpus=0 = CPU only.

    models: GPU models that may serve it, empty = any. key: whatever names it for `release`.
    """

    key: Hashable
    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_milli: int = WHOLE_GPU
    models: tuple[str, ...] = ()


class Placed(NamedTuple):
    """Where a request went: the node, the indices of its GPUs there, and the leases moved to make room for it."""

    node: str
    gpus: tuple[int, ...]
    moves: tuple[Move, ...] = ()


class Engine:
    """A pool that places and releases requests, one at a time.

        engine = Engine([("node-1", 96_000, 393_216, 8, "A100_80G"), ("node-2", 104_000, 524_288, 2, "T4")])
        placed = engine.place(Request("job-1", cpu_milli=11_400, memory_mib=60_000, gpus=1, gpu_milli=470))
        if placed is not None:            # None: no node has room
            print(placed.node, placed.gpus)
        engine.release("job-1")

    Rows are (node, cpu_milli, memory_mib, gpu count, gpu model). Nothing else is needed. Optional:
    histogram   how many requests of each `Shape` to expect; without it the engine learns as it goes. A shape's models
                are a bit mask over the pool's model names in alphabetical order, -1 = any.
    compiled    True = numba, False = numpy, None = numba where it is installed. The placements are the same.
    may_refuse  keep a few empty hosts for requests that need a whole one, by refusing small ones that would open them.
    moves       on a refusal move at most so many leases of one GPU or less off one host (each lease once), in all not
                more than moves_allowance_bp / 10,000 of the GPUs offered.

    Whatever some node has room for is placed, unless may_refuse was asked for. What cannot be meant (a negative number,
    a fraction of two GPUs, a key that is placed already) raises ValueError, a release of what is not placed KeyError;
    after either all is as before. Requests may be of another class, as long as they have these fields.

    The same calls give the same placements on every machine; neither names nor the order of rows change the result
    beyond which of two equal hosts is taken. Weights are those for filling a pool until leases are seen to leave.
    """

    def __init__(
        self,
        nodes: Sequence[NodeRow],
        *,
        histogram: Mapping[Shape, int] | None = None,
        policy: Policy | None = None,
        compiled: bool | None = None,
        may_refuse: bool = False,
        moves: int = 0,
        moves_allowance_bp: int = 75,
    ) -> None:
        self._policy = policy or load_policy()
        self._arrays = build(nodes)
        self._nodes = [name for name, *_ in nodes]
        self._shapes: dict[Hashable, Shape] = {}
        self._turnover = Turnover()
        self._memory = Memory(histogram)
        self._demand = build_demand(self._memory.histogram, self._arrays)
        compiled = kernels.AVAILABLE if compiled is None else compiled
        cache = CompiledCache if compiled else ScoreCache
        self._cache: ScoreCache = cache(self._arrays, self._demand, self._weights())
        self._live = Live(self._arrays, self._cache, self._nodes)
        self._may_refuse = may_refuse
        self._largest = int(self._arrays.rows[:, GPUS].max(initial=0))
        self._empty = empty_of(self._arrays.rows, self._largest)
        self._large_leases = 0
        self._mover = Mover(moves, moves_allowance_bp) if moves else None

    def shape_of(self, request: Request) -> Shape:
        """Return the class of a request. Models that no node has allow no node. Raises ValueError, see `place`."""
        told = (request.cpu_milli, request.memory_mib, request.gpu_milli, request.gpus, request.models)
        try:
            shape = self._shapes.get(told)
        except TypeError:  # models in a list or a set
            shape = None
        if shape is None:
            shape = _checked(request, self._arrays.names)
            if len(self._shapes) >= SHAPES_KEPT:
                self._shapes.clear()
            if isinstance(request.models, tuple):
                self._shapes[told] = shape
        return shape

    def place(self, request: Request) -> Placed | None:
        """Place a request, or return None if no node has room (or what has room is kept for larger requests).

        Raises ValueError for a key that is placed already, and for numbers that mean nothing.
        """
        if request.key in self._live.leases:
            raise ValueError(f"cannot be placed: the key {request.key!r} is placed already")
        shape = self.shape_of(request)
        if max(shape) > LARGEST_NUMBER:
            return None
        self._observe(shape)
        lease = self._live.take(request.key, shape, self._kept_gpus(shape) if self._may_refuse else 0)
        if not isinstance(lease, int):
            self._count(lease, 1)
            return Placed(self._nodes[lease.host], lease.gpus)
        return self._place_by_moving(request.key, shape) if self._mover and lease == kernels.NO_ROOM else None

    def release(self, request: Request | Hashable) -> None:
        """Give back what a request holds; it may be given by its key. Raises KeyError if it holds nothing."""
        key = getattr(request, "key", request)
        if key not in self._live.leases:
            raise KeyError(f"nothing is placed under the key {key!r}")
        lease = self._live.give(key)
        self._count(lease, -1)
        self._turnover.released(lease.shape.milli)
        if self._mover is not None:
            self._mover.forget(key)

    @property
    def steady(self) -> bool:
        """Tell whether leases have been seen to come and go, so that the weights for that are in use."""
        return self._turnover.steady

    @property
    def moved_milli(self) -> int:
        """Thousandths of GPUs moved so far."""
        return self._mover.moved_milli if self._mover else 0

    def _place_by_moving(self, key: Hashable, shape: Shape) -> Placed | None:
        assert self._mover is not None
        done = self._mover.make_room(self._live, key, shape)
        if done is None:
            return None
        lease, moves = done
        self._large_leases += lease.shape.gpus == self._largest
        self._empty = empty_of(self._arrays.rows, self._largest)
        return Placed(self._nodes[lease.host], lease.gpus, moves)

    def _weights(self) -> Weights:
        return self._policy.steady if self._turnover.steady else self._policy.filling

    def _observe(self, shape: Shape) -> None:
        """Count an arrival; when enough has been seen, learn the demand anew or change between the sets of weights."""
        learnt = self._memory.saw(shape)
        if learnt:
            self._demand = build_demand(self._memory.histogram, self._arrays)
        if self._turnover.offered(shape.milli) or learnt:
            self._cache.expect(self._demand, self._weights())
        if self._mover is not None:
            self._mover.offered(shape.milli)

    def _kept_gpus(self, shape: Shape) -> int:
        """Return of how many GPUs the empty hosts are that are kept for requests that need all of one; 0 = none are.

        About as many are kept as arrivals of such requests can outrun their departures: the root of their number,
        times a tuned factor.
        """
        if shape.gpus >= self._largest:
            return 0
        kept = self._policy.kept_whole_percent_moving if self._mover else self._policy.kept_whole_percent
        return self._largest if 100 * self._empty * self._empty <= kept * self._large_leases else 0

    def _count(self, lease: Lease, sign: int) -> None:
        row = self._arrays.rows[lease.host]
        self._large_leases += sign * (lease.shape.gpus == self._largest)
        if row[GPUS] == self._largest and row[LEASES] == (1 if sign > 0 else 0):
            self._empty -= sign


class Turnover:
    """Whether leases come and go: in each window of placements, is a quarter as much released as is offered?"""

    def __init__(self) -> None:
        self.steady = False
        self._arrivals = self._offered = self._released = 0

    def released(self, milli: int) -> None:
        """Count a release."""
        self._released += milli

    def offered(self, milli: int) -> bool:
        """Count an arrival; return True if the answer has changed by it."""
        self._arrivals += 1
        self._offered += milli
        if self._arrivals < TURNOVER_WINDOW:
            return False
        before, self.steady = self.steady, self._released * 4 >= self._offered > 0
        self._arrivals = self._offered = self._released = 0
        return before != self.steady


class Memory:
    """The histogram of what is asked for: given, or learnt from arrivals with what is old counting less."""

    def __init__(self, histogram: Mapping[Shape, int] | None) -> None:
        self.histogram = {Shape(*shape): count for shape, count in (histogram or {}).items() if count > 0}
        self._learning = histogram is None
        self._seen, self._next = 0, FIRST_LESSON

    def saw(self, shape: Shape) -> bool:
        """Count an arrival; return True if the histogram should be looked at anew. Twice as rarely each time."""
        if not self._learning:
            return False
        self.histogram[shape] = self.histogram.get(shape, 0) + ARRIVAL
        self._seen += 1
        if self._seen < self._next:
            return False
        if self._next == LAST_LESSON:
            self._seen = 0
            self.histogram = {known: count // 2 for known, count in self.histogram.items() if count > 1}
        else:
            self._next *= 2
        return True


def _checked(request: Request, names: tuple[str, ...]) -> Shape:
    """Return the class of a request. Raises ValueError if it cannot be meant."""
    numbers = (request.cpu_milli, request.memory_mib, request.gpus, request.gpu_milli)
    if not all(isinstance(number, SupportsIndex) and not isinstance(number, bool) for number in numbers):
        raise ValueError(f"cannot be placed: numbers are whole ones: {request}")
    cpu, memory, gpus, milli = map(index, numbers)
    fraction = 0 < milli < WHOLE_GPU and gpus == 1
    if min(cpu, memory, gpus) < 0 or not (gpus == 0 or milli == WHOLE_GPU or fraction):
        raise ValueError(f"cannot be placed: {request}")
    if isinstance(request.models, str) or not all(isinstance(model, str) for model in request.models):
        raise ValueError(f"cannot be placed: models are a tuple of names: {request}")
    mask = sum(1 << bit for bit, name in enumerate(names) if name in request.models) if request.models else -1
    return Shape(cpu, memory, milli if gpus else 0, gpus, mask)
