"""Stops containers whose time is over and that nobody has stopped: the core is dead, or hangs.

The core begins at the deadline. AFTER_S later this begins too, with the same grace, so that the end is seen well before
the control plane's fence (deadline + grace + 30 s) lets the devices again. The next core finds the container gone.
"""

import threading
from collections.abc import Callable

from agents.node import clocks
from agents.node.engines import Engine, EngineError
from agents.node.root.orders import Order, Orders

AFTER_S = 5.0
AGAIN_S = 5.0  # until a stop that did not work, or an engine that does not answer, is tried again

Say = Callable[[str], None]


class Overdue:
    def __init__(self, engine: Engine, *, say: Say, now_s: Callable[[], float] = clocks.boot_s) -> None:
        self._engine, self._say, self._now_s = engine, say, now_s
        self._stopping: dict[str, threading.Thread] = {}
        self._done: set[Order] = set()

    def look(self, orders: Orders) -> float:
        """Begin to stop what is overdue; return after how many seconds to look again."""
        now = self._now_s()
        self._done.intersection_update(orders.workloads)
        waits = []
        for order in orders.workloads:
            left_s = order.deadline_s + AFTER_S - now
            if left_s > 0:
                waits.append(left_s)
            elif order not in self._done:
                self._begin(orders.host, order)
                waits.append(AGAIN_S)
        return min(waits, default=float("inf"))

    def _begin(self, host: str, order: Order) -> None:
        """In a thread each: one with a long grace must not keep the others running."""
        thread = self._stopping.get(order.name)
        if thread is not None and thread.is_alive():
            return
        thread = threading.Thread(target=self._stop, args=(host, order), name=f"stop-{order.name}", daemon=True)
        self._stopping[order.name] = thread
        thread.start()

    def _stop(self, host: str, order: Order) -> None:
        try:
            there = {container.name: container.running for container in self._engine.containers(host)}
            if there.get(order.name):
                late_s = self._now_s() - order.deadline_s
                self._say(f"{order.name} is {late_s:.0f} s over its time and nobody has stopped it: stopping it")
            # One that the engine says does not run may have processes that it does not know of.
            ended = order.name not in there or self._engine.stop(order.name, grace_s=order.grace_s)
            if there.get(order.name) or not ended:
                self._say(f"{order.name} {'has ended' if ended else 'survived SIGKILL: restart this machine'}")
            else:
                self._done.add(order)
        except EngineError as fault:
            self._say(f"{order.name} is overdue and could not be stopped: {fault}")
