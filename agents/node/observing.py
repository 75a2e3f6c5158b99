"""What the engine's list shows of this host's containers: the truth about them. Everything else is a hint to look."""

from collections.abc import Callable

from agents.node.engines import Container, Engine, EngineError

LIST_EVERY_S = 30.0
# An engine tells of an end before its own list shows it.
SECOND_LOOKS_S = (0.2, 1.0)


class Observing:
    """containers: by name, None while the engine does not answer; fault: what it said then.

    failures: how often in a row it did not. listed_s: when the last good list was asked for, in seconds since boot.
    """

    def __init__(self, *, engine: Engine, host: str, now_s: Callable[[], float]) -> None:
        self._engine, self._host, self._now_s = engine, host, now_s
        self.containers: dict[str, Container] | None = None
        self.fault, self.failures = "", 0
        self.listed_s = -1e9
        self._stale = True
        self._hinted_s = -1e9

    def hint(self) -> None:
        """Something may have changed in the engine: a list is due, and two more soon."""
        self._hinted_s = self._now_s()
        self._stale = True

    def outdate(self) -> None:
        """We changed something ourselves: a list is due."""
        self._stale = True

    def is_due(self, now: float) -> bool:
        return (
            self._stale
            or self.containers is None
            or now - self.listed_s >= LIST_EVERY_S
            or any(self.listed_s < due <= now for due in self._second_looks_s())
        )

    def due_s(self) -> list[float]:
        """Return when second looks are due."""
        return [due for due in self._second_looks_s() if due > self.listed_s]

    def _second_looks_s(self) -> list[float]:
        return [self._hinted_s + later for later in SECOND_LOOKS_S]

    def list(self) -> None:
        """Ask the engine. It may hang: the caller holds no lock."""
        self._stale, began_s = False, self._now_s()
        try:
            self.containers = {container.name: container for container in self._engine.containers(self._host)}
        except EngineError as fault:
            self.fault, self.containers, self.failures = str(fault), None, self.failures + 1
            return
        self.fault, self.failures, self.listed_s = "", 0, began_s
