"""A second book of an engine's pool, in plain dictionaries and sharing no code with it, that judges each answer."""

from collections.abc import Hashable, Iterable
from typing import Any


class Recount:
    """Follow an engine's answers. Every method raises AssertionError where an answer cannot be right.

    nodes: the engine's rows. Answers and requests are duck-typed: `key, cpu_milli, memory_mib, gpus, gpu_milli, models`
    of a request; `node, gpus` of an answer.
    """

    def __init__(self, nodes: Iterable[tuple[str, int, int, int, str]]) -> None:
        self.cpu: dict[str, int] = {}
        self.memory: dict[str, int] = {}
        self.model: dict[str, str] = {}
        self.left: dict[str, list[int]] = {}
        self.held: dict[Hashable, tuple[Any, str, tuple[int, ...]]] = {}
        self.allocated_milli = 0
        for name, cpu, memory, gpus, model in nodes:
            self.cpu[name], self.memory[name], self.model[name] = cpu, memory, model
            self.left[name] = [1000] * gpus

    def placed(self, request: Any, node: str, gpus: tuple[int, ...]) -> None:
        """Book a placement."""
        assert request.key not in self.held, "placed twice"
        assert len(gpus) == len(set(gpus)) == request.gpus, "wrong number of GPUs"
        assert not request.models or self.model[node] in request.models, "model not allowed"
        self.cpu[node] -= request.cpu_milli
        self.memory[node] -= request.memory_mib
        assert self.cpu[node] >= 0, "CPU let twice"
        assert self.memory[node] >= 0, "memory let twice"
        for gpu in gpus:
            self.left[node][gpu] -= request.gpu_milli
            assert self.left[node][gpu] >= 0, "a GPU let twice"
        self.allocated_milli += request.gpus * request.gpu_milli
        self.held[request.key] = (request, node, gpus)

    def released(self, key: Hashable) -> None:
        """Book a release."""
        request, node, gpus = self.held.pop(key)
        self.cpu[node] += request.cpu_milli
        self.memory[node] += request.memory_mib
        for gpu in gpus:
            self.left[node][gpu] += request.gpu_milli
        self.allocated_milli -= request.gpus * request.gpu_milli

    def moved(self, key: Hashable, node: str, gpus: tuple[int, ...]) -> None:
        """Book that a lease lies elsewhere now. Book all releases of a set of moves before the new places."""
        request = self.held[key][0]
        self.released(key)
        self.placed(request, node, gpus)

    def has_room(self, request: Any) -> bool:
        """Tell whether any node could take the request now."""
        return any(self._fits(request, node) for node in self.cpu)

    def _fits(self, request: Any, node: str) -> bool:
        if request.models and self.model[node] not in request.models:
            return False
        if self.cpu[node] < request.cpu_milli or self.memory[node] < request.memory_mib:
            return False
        if not request.gpus:
            return True
        enough = [left for left in self.left[node] if left >= request.gpu_milli]
        return len(enough) >= int(request.gpus)
