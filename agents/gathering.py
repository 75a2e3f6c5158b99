"""What thousands ask for one by one, done for many at once: whoever comes while others are served is served next.

The more come, the more go together, so that each costs less the busier it is; nobody waits for a batch to fill.
"""

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from apikit.errors import Unavailable
from apikit.watching import in_pool

MOST = 100  # at once
PAUSE_S = 0.02  # between two batches: so long the next one gathers
WITHIN_S = 5.0  # who would wait for longer is told so at once
FIRST_GUESS_S = 0.005
WEIGHT = 0.1  # of one more batch in what one of it is expected to take


class Gathering[Item, Result]:
    """The batches of one event loop. act: given items, returns their results in that order; it runs in a thread."""

    def __init__(self, act: Callable[[list[Item]], list[Result]], *, within_s: float = WITHIN_S) -> None:
        self._act, self._within_s, self._takes_s = act, within_s, FIRST_GUESS_S
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def take(self, item: Item, gone: asyncio.Future[object]) -> Result | None:
        """Return the result of `item`, None if its caller has gone. Raises Unavailable where it would take too long."""
        if gone.done():
            return None
        if len(self._waiting) * self._takes_s > self._within_s:
            again = Unavailable("Too many hosts speak at once. Come again later.")
            again.retry_after_s = int(self._within_s) + 1
            raise again
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
            return result.result() if result.done() else None
        finally:
            result.cancel()

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            batch = [(item, result) for item, result in batch if not result.done()]  # the others have gone
            if batch:
                await self._serve(batch)
            if len(self._waiting) < MOST:
                await asyncio.sleep(PAUSE_S)

    async def _serve(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        began = time.monotonic()
        try:
            found = await in_pool(self._act, [item for item, _ in batch])
        except Exception as fault:
            for _, result in batch:
                if not result.done():
                    result.set_exception(fault)
            return
        for (_, result), one in zip(batch, found, strict=True):
            if not result.done():
                result.set_result(one)
        self._takes_s += WEIGHT * ((time.monotonic() - began + PAUSE_S) / len(batch) - self._takes_s)


class Gatherings[Item, Result]:
    """One `Gathering` for each event loop of the process."""

    def __init__(self, act: Callable[[list[Item]], list[Result]]) -> None:
        self._act = act
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, Gathering[Item, Result]] = WeakKeyDictionary()

    def here(self) -> Gathering[Item, Result]:
        """Return the gathering of the running loop."""
        return self._of.setdefault(asyncio.get_running_loop(), Gathering(self._act))
