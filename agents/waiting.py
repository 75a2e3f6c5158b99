"""Held requests wait here until their host's `generation` moves. One query for all of them, ten times a second.

Level-triggered: the number itself is compared, so a change before the wait began, or between two looks, is not missed,
and nothing needs to be delivered to this process. Where LISTEN/NOTIFY would wake a little earlier, it would cost a
connection of its own and a lock at every commit, and the look would be needed all the same.

What touches the database runs in a few threads of their own (`in_pool`): a request that is held holds no thread and no
connection.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import close_old_connections

from agents.models import Host

LOOK_EVERY_S = 0.1
THREADS = 8

log = logging.getLogger(__name__)
_pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="agents-sync")


async def in_pool[**P, T](act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `act` in one of the pool's threads, with a database connection as the settings say."""

    def run() -> T:
        close_old_connections()
        try:
            return act(*args, **kwargs)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_pool, run)


class Watch:
    """The waits of one event loop, and the task that looks for them while there are any."""

    def __init__(self) -> None:
        self._waits: dict[UUID, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    async def moved(self, *, host_id: UUID, generation: int, within_s: float) -> bool:
        """Return True once the host's generation is another one, False after `within_s`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = (generation, done)
        self._waits[host_id].append(wait)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(done, within_s)
        except TimeoutError:
            return False
        finally:
            self._waits[host_id].remove(wait)
            if not self._waits[host_id]:
                del self._waits[host_id]
        return True

    async def _look(self) -> None:
        while self._waits:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                now = await in_pool(_generations, list(self._waits))
            except Exception:
                # The held requests are let go: each finds out by itself what is wrong, and says so to its agent.
                log.exception("the generations of held hosts could not be read")
                now = {}
            for host_id, waits in self._waits.items():
                for generation, done in waits:
                    if now.get(host_id) != generation and not done.done():
                        done.set_result(None)


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, Watch] = WeakKeyDictionary()


async def moved(*, host_id: UUID, generation: int, within_s: float) -> bool:
    """Wait until the generation of the host is not `generation` any more, for at most `within_s` seconds."""
    watch = _watches.setdefault(asyncio.get_running_loop(), Watch())
    return await watch.moved(host_id=host_id, generation=generation, within_s=within_s)


def _generations(host_ids: list[UUID]) -> dict[UUID, int]:
    return dict(Host.objects.filter(pk__in=host_ids).values_list("pk", "generation"))
