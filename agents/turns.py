"""Whose sync is taken in next, when more agents speak than can be heard at once.

After a restart of the control plane, or a long pause of its database, thousands of agents come at once, and each first
look at a host takes many times what a quiet sync takes. Without this, requests pile up before the threads, their agents
give up and ask again, and the threads work for those that have gone: nobody is answered any more, and it never ends.

So: at most AT_ONCE are taken in at a time, in the order in which they came; who goes loses his turn; and who would wait
for longer than WITHIN_S is told so at once (503), and comes again later, at a time of his own (agents.node.syncing).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from weakref import WeakKeyDictionary

from apikit.errors import Unavailable
from apikit.watching import THREADS

AT_ONCE = THREADS - 2  # answers and looks need a thread, too
WITHIN_S = 5.0
FIRST_GUESS_S = 0.02
WEIGHT = 0.05  # of one more duration in what is expected


class Turns:
    """The turns of one event loop. `begin` is followed by `end`, if it returned True."""

    def __init__(self, *, at_once: int = AT_ONCE, within_s: float = WITHIN_S) -> None:
        self._free, self._at_once, self._within_s = at_once, at_once, within_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._takes_s = FIRST_GUESS_S

    @property
    def expected_wait_s(self) -> float:
        return len(self._waiting) * self._takes_s / self._at_once

    async def begin(self, gone: asyncio.Future[object]) -> bool:
        """Wait for a turn; False: the caller has gone meanwhile. Raises Unavailable where it would take too long."""
        if self._free and not self._waiting:
            self._free -= 1
            return True
        if self.expected_wait_s > self._within_s:
            again = Unavailable("Too many hosts speak at once. Come again later.")
            again.retry_after_s = int(self._within_s) + 1
            raise again
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait((turn, gone), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(turn)
            raise
        if gone.done():
            self._leave(turn)
            return False
        return True

    def end(self, *, took_s: float) -> None:
        self._takes_s += WEIGHT * (took_s - self._takes_s)
        self._pass_on()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._pass_on()
        else:
            self._waiting.remove(turn)

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1


_of: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def here() -> Turns:
    """Return the turns of the running loop."""
    return _of.setdefault(asyncio.get_running_loop(), Turns())


async def taken[T](act: Awaitable[T], turns: Turns) -> T:
    """Await `act` in a turn that was begun, and end the turn."""
    began = time.monotonic()
    try:
        return await act
    finally:
        turns.end(took_s=time.monotonic() - began)
