"""Judge a whole run from its answers alone: nothing is let twice, and nothing was refused that had room."""

import numpy as np
from placement_trace import Ints, Trace

from scheduler.placement.pool import NodeRow


class Book:
    """Capacity of every node, followed answer by answer; shares no code with engine or controls."""

    def __init__(self, trace: Trace, nodes: list[NodeRow]) -> None:
        self.trace = trace
        self.cpu = np.array([row[1] for row in nodes], np.int64)
        self.memory = np.array([row[2] for row in nodes], np.int64)
        self.left = np.zeros((len(nodes), 8), np.int64)
        for index, row in enumerate(nodes):
            self.left[index, : row[3]] = 1000
        self.model = np.array([trace.names.index(row[4]) for row in nodes], np.int64)
        self.allocated = 0

    def book(self, pod: int, node: int, gpus: tuple[int, ...], sign: int) -> None:
        """Take (1) or give back (-1); raises AssertionError where something would be let twice."""
        trace = self.trace
        self.cpu[node] -= sign * trace.cpu[pod]
        self.memory[node] -= sign * trace.memory[pod]
        milli = int(trace.milli[pod])
        for gpu in gpus:
            self.left[node, gpu] -= sign * milli
            assert 0 <= self.left[node, gpu] <= 1000, "a GPU is let twice"
        self.allocated += sign * milli * len(gpus)
        if sign > 0:
            assert self.cpu[node] >= 0 <= self.memory[node], "CPU or memory is let twice"
            assert len(set(gpus)) == trace.gpus[pod], "wrong number of GPUs"
            assert trace.models[pod] >> self.model[node] & 1, "a model that is not allowed"

    def has_room(self, pod: int) -> bool:
        """Tell whether any node could have taken the pod."""
        trace = self.trace
        room = (self.cpu >= trace.cpu[pod]) & (self.memory >= trace.memory[pod])
        room &= trace.models[pod] >> self.model & 1 == 1
        if trace.gpus[pod]:
            room &= (self.left >= trace.milli[pod]).sum(axis=1) >= trace.gpus[pod]
        return bool(room.any())


def judge(trace: Trace, nodes: list[NodeRow], pods: Ints, departs: Ints, arrival: Ints, went: Ints, masks: Ints) -> int:
    """Recount a run given as arrays; return the GPU milli allocated at its end."""
    book = Book(trace, nodes)
    for is_departure, who in zip(departs.tolist(), arrival.tolist(), strict=True):
        pod, node = int(pods[who]), int(went[who])
        gpus = tuple(gpu for gpu in range(8) if int(masks[who]) >> gpu & 1)
        if node >= 0:
            book.book(pod, node, gpus, -1 if is_departure else 1)
        elif not is_departure:
            assert not book.has_room(pod), "refused although a node had room"
    return book.allocated
