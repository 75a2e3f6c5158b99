"""A release on trial: it is kept once it was heard and has seen its engine's list, and left otherwise."""

import threading
import time
from collections.abc import Callable

from agents.node.slots import Chosen, Slots

TRIAL_S = 120.0
LOOK_EVERY_S = 0.5

type Say = Callable[..., None]  # kind, detail, **facts


class Trial:
    """Whether this release, which is on trial, proves itself: `is_well` within TRIAL_S, or the agent ends and the one
    before it goes on."""

    def __init__(
        self, *, slots: Slots, own: str, is_well: Callable[[], bool], event: Say, restart: Callable[[], None]
    ) -> None:
        self._slots, self._own, self._is_well = slots, own, is_well
        self._event, self._restart = event, restart

    def begin(self, chosen: Chosen, *, within_s: float = TRIAL_S) -> None:
        threading.Thread(target=self.run, args=(chosen, within_s), name="trial", daemon=True).start()

    def run(self, chosen: Chosen, within_s: float) -> None:
        if chosen.version != self._own:
            self._leave(f"it says that it is {self._own}", chosen)
            return
        deadline = time.monotonic() + within_s
        while not self._is_well():
            if time.monotonic() > deadline:
                self._leave(f"it was not heard, or did not see its engine's list, within {within_s:.0f} s", chosen)
                return
            time.sleep(LOOK_EVERY_S)
        self._slots.keep(chosen)
        self._event("upgraded", f"{self._own} runs", version=self._own)

    def _leave(self, reason: str, chosen: Chosen) -> None:
        self._slots.leave(reason, chosen)
        self._restart()
