"""Done for many at once what many ask for one by one."""

import asyncio
import threading
from typing import Any

import pytest

from agents import gathering
from agents.gathering import Gathering
from apikit.errors import Unavailable

pytestmark = pytest.mark.django_db(transaction=True)


def stays() -> "asyncio.Future[object]":
    return asyncio.get_running_loop().create_future()


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_who_comes_while_others_are_served_is_served_with_the_next() -> None:
    async def scenario() -> None:
        batches: list[list[int]] = []
        going_on = threading.Event()

        def act(items: list[int]) -> list[int]:
            batches.append(items)
            going_on.wait(10)
            return [10 * item for item in items]

        many = Gathering(act)
        first = asyncio.create_task(many.take(0, stays()))
        while not batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(many.take(number, stays())) for number in range(1, 6)]
        await asyncio.sleep(0)
        going_on.set()

        assert await asyncio.gather(first, *others) == [0, 10, 20, 30, 40, 50]
        assert batches == [[0], [1, 2, 3, 4, 5]]

    run(scenario)


def test_who_has_gone_is_not_served_and_a_failure_is_everyones() -> None:
    async def scenario() -> None:
        batches: list[list[int]] = []

        def act(items: list[int]) -> list[int]:
            batches.append(items)
            if 3 in items:
                raise ValueError
            return items

        many, gone = Gathering(act), stays()
        gone.set_result(None)
        assert await many.take(1, gone) is None
        assert await many.take(2, stays()) == 2
        assert batches == [[2]]
        failed = await asyncio.gather(many.take(3, stays()), many.take(4, stays()), return_exceptions=True)
        assert [type(fault) for fault in failed] == [ValueError, ValueError]
        assert await many.take(5, stays()) == 5

    run(scenario)


def test_no_batch_is_larger_than_the_most_and_who_would_wait_too_long_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "MOST", 3)

    async def scenario() -> None:
        sizes: list[int] = []

        def act(items: list[int]) -> list[int]:
            sizes.append(len(items))
            return items

        many = Gathering(act, within_s=0.04)
        waiting = [asyncio.create_task(many.take(number, stays())) for number in range(8)]
        await asyncio.sleep(0)
        many._takes_s = 1.0
        with pytest.raises(Unavailable):
            await many.take(9, stays())
        assert await asyncio.gather(*waiting) == list(range(8))
        assert sizes == [3, 3, 2]

    run(scenario)
