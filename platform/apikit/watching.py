"""Waiting for something in the database to move: thousands of waiters, one look for all of them a few times a second.

Level-triggered: the position itself is compared, so a change before the wait began, or between two looks, is not
missed, and nothing needs to be delivered to this process. Where LISTEN/NOTIFY would wake a little earlier, it would
cost a connection of its own and a lock at every commit, and the look would be needed all the same.

A waiter is a coroutine that holds neither thread nor connection. What touches the database runs in a few threads of
their own (`in_pool`).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from django.db import close_old_connections

THREADS = 8

log = logging.getLogger(__name__)
_pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="watching")


async def in_pool[**P, T](act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `act` in one of the pool's threads, with a database connection as the settings say."""

    def run() -> T:
        close_old_connections()
        try:
            return act(*args, **kwargs)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_pool, run)


class Watch[Key: Hashable, Mark]:
    """The waits for one kind of thing in one event loop, and the task that looks for them while there are any.

    look: given (key, mark that was seen) of all waits, returns the marks as they are now; a key that it leaves out has
    not moved. lets_go: whether all waiters are let go, as if theirs had moved, when the look fails.
    """

    def __init__(
        self, look: Callable[[list[tuple[Key, Mark]]], Mapping[Key, Mark]], *, every_s: float, lets_go: bool
    ) -> None:
        self._look, self._every_s, self._lets_go = look, every_s, lets_go
        self.waits: dict[Key, list[tuple[Mark, asyncio.Future[None]]]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    async def moved(self, key: Key, *, seen: Mark, within_s: float) -> bool:
        """Return True once the mark of `key` is another one than `seen`, False after `within_s`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = (seen, done)
        self.waits[key].append(wait)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait_for(done, within_s)
        except TimeoutError:
            return False
        finally:
            self.waits[key].remove(wait)
            if not self.waits[key]:
                del self.waits[key]
        return True

    async def _run(self) -> None:
        while self.waits:
            await asyncio.sleep(self._every_s)
            pairs = [(key, seen) for key, waits in self.waits.items() for seen, _ in waits]
            try:
                now: Mapping[Key, Mark] | None = await in_pool(self._look, pairs)
            except Exception:
                # The database is away, as a rule. Who is let go finds out by himself what is wrong, and says so.
                log.exception("what is waited for could not be looked at")
                now = None
            if now is None and not self._lets_go:
                continue
            for key, waits in self.waits.items():
                for seen, done in waits:
                    if (now is None or now.get(key, seen) != seen) and not done.done():
                        done.set_result(None)


class Watches[Key: Hashable, Mark]:
    """One `Watch` for each event loop of the process."""

    def __init__(
        self, look: Callable[[list[tuple[Key, Mark]]], Mapping[Key, Mark]], *, every_s: float, lets_go: bool
    ) -> None:
        self._look, self._every_s, self._lets_go = look, every_s, lets_go
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, Watch[Key, Mark]] = WeakKeyDictionary()

    def here(self) -> Watch[Key, Mark]:
        """Return the watch of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._of:
            self._of[loop] = Watch(self._look, every_s=self._every_s, lets_go=self._lets_go)
        return self._of[loop]
