"""Five hundred followers on one streaming process: none loses an event over a restart, and none gets one twice."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apikit import clock
from embedded import processes
from leasing import lifecycle, term_changes
from leasing.models import Lease
from leasing.states import EndReason
from tenants.models import Role
from tests.api import real_server
from tests.factories import make_lease
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db(transaction=True)
FOLLOWERS = 500
BEFORE, MEANWHILE, AFTER = 10, 5, 5  # edits: before the restart, while the server is away, after it
WITHIN_S = 240.0
RETRY_S = 0.2  # of a client whose server is away


class Follower:
    """A client that reads a stream to its end and comes back with the last id whenever it breaks."""

    def __init__(self, *, port: int, path: str, secret: str) -> None:
        self._port, self._path, self._secret = port, path, secret
        self.ids: list[int] = []
        self.connections = 0
        self._is_over = False

    async def follow(self, until: float) -> None:
        while not self._is_over and time.monotonic() < until:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._read()
            if not self._is_over:
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            asked = [
                f"GET {self._path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Authorization: Bearer {self._secret}",
                "Accept: text/event-stream", *([f"Last-Event-ID: {self.ids[-1]}"] if self.ids else []),
            ]  # fmt: skip
            writer.write("\r\n".join([*asked, "", ""]).encode())
            if b" 200 " in await reader.readline():
                self.connections += 1
                while line := await reader.readline():
                    self._hear(line.decode().strip())
        finally:
            writer.close()

    def _hear(self, line: str) -> None:
        if line.startswith("id: "):
            self.ids.append(int(line.removeprefix("id: ")))
        elif line.startswith("data: "):
            self._is_over = json.loads(line.removeprefix("data: "))["to_state"] == "ended"


def follow_all(followers: list[Follower]) -> None:
    async def together() -> None:
        until = time.monotonic() + WITHIN_S
        await asyncio.gather(*(follower.follow(until) for follower in followers))

    asyncio.run(together())


def rename(lease: Lease, times: int) -> None:
    for _ in range(times):
        name = f"name {time.monotonic_ns()}"
        term_changes.edit(lease_id=lease.pk, changes={"name": name}, at=clock.now())


def all_have(followers: list[Follower], wanted: Callable[[Follower], bool]) -> Callable[[], bool]:
    return lambda: all(wanted(follower) for follower in followers)


def test_none_of_five_hundred_followers_loses_an_event_over_a_restart(tmp_path: Path) -> None:
    tenant = real_server.market(gpus=1)
    secret = MemberCaller(tenant, Role.VIEWER).secret
    lease = make_lease(tenant, at=clock.now())
    port = real_server.free_port()
    path = f"/api/v1/leases/{lease.public_id}/events"
    followers = [Follower(port=port, path=path, secret=secret) for _ in range(FOLLOWERS)]

    with ThreadPoolExecutor(1) as pool:
        with real_server.serving("streams", folder=tmp_path, port=port):
            done = pool.submit(follow_all, followers)
            processes.poll_until(all_have(followers, lambda f: bool(f.ids)), within_s=WITHIN_S, what="500 followers")
            rename(lease, BEFORE)
            first_heard = lambda: any(len(f.ids) > 1 for f in followers)  # noqa: E731 -- in the middle of telling
            processes.poll_until(first_heard, within_s=WITHIN_S, what="the first edit to be told")
        rename(lease, MEANWHILE)
        with real_server.serving("streams", folder=tmp_path, port=port):
            rename(lease, AFTER)
            lifecycle.end(lease_id=lease.pk, reason=EndReason.TENANT, at=clock.now())
            done.result(WITHIN_S)

    events = list(lease.events.order_by("seq").values_list("seq", flat=True))
    assert len(events) == 1 + BEFORE + MEANWHILE + AFTER + 1
    assert Counter(tuple(follower.ids) for follower in followers) == {tuple(events): FOLLOWERS}
    assert all(follower.connections >= 2 for follower in followers)  # each of them lived through the restart
    assert threading.active_count() < FOLLOWERS
