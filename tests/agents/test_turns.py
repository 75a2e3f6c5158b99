"""More agents than can be heard at once: in order, none who has gone, and none kept waiting for nothing."""

import asyncio
from typing import Any

import pytest

from agents.turns import Turns, taken
from apikit.errors import Unavailable


def stays() -> "asyncio.Future[object]":
    return asyncio.get_running_loop().create_future()


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_so_many_at_once_and_the_others_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        turns, order = Turns(at_once=2), []

        async def one(number: int) -> None:
            assert await turns.begin(stays())
            order.append(number)
            assert len(running) < 2
            running.add(number)
            await asyncio.sleep(0.01)
            running.discard(number)
            turns.end(took_s=0.01)

        running: set[int] = set()
        await asyncio.gather(*(one(number) for number in range(9)))
        assert order == list(range(9))
        assert turns._free == 2

    run(scenario)


def test_who_goes_while_waiting_costs_nobody_a_turn() -> None:
    async def scenario() -> None:
        turns = Turns(at_once=1)
        assert await turns.begin(stays())
        gone = stays()
        leaves, stays_on = asyncio.create_task(turns.begin(gone)), asyncio.create_task(turns.begin(stays()))
        await asyncio.sleep(0)
        gone.set_result(None)
        assert await leaves is False
        assert not stays_on.done()
        turns.end(took_s=0.0)
        assert await stays_on is True
        turns.end(took_s=0.0)
        assert (turns._free, len(turns._waiting)) == (1, 0)

    run(scenario)


def test_who_goes_in_the_very_moment_of_his_turn_passes_it_on() -> None:
    async def scenario() -> None:
        turns = Turns(at_once=1)
        assert await turns.begin(stays())
        gone = stays()
        leaves, next_one = asyncio.create_task(turns.begin(gone)), asyncio.create_task(turns.begin(stays()))
        await asyncio.sleep(0)
        turns.end(took_s=0.0)
        gone.set_result(None)
        assert await leaves is False
        assert await next_one is True

    run(scenario)


def test_a_request_that_is_cancelled_leaves_the_line() -> None:
    async def scenario() -> None:
        turns = Turns(at_once=1)
        assert await turns.begin(stays())
        task = asyncio.create_task(turns.begin(stays()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        turns.end(took_s=0.0)
        assert turns._free == 1

    run(scenario)


def test_who_would_wait_too_long_is_told_so_at_once() -> None:
    async def scenario() -> None:
        turns = Turns(at_once=2, within_s=5)
        for _ in range(200):  # each takes a second
            assert await turns.begin(stays())
            turns.end(took_s=1.0)
        for _ in range(2):
            assert await turns.begin(stays())
        waiting = [asyncio.create_task(turns.begin(stays())) for _ in range(11)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as told:
            await turns.begin(stays())
        assert told.value.retry_after_s == 6
        for _ in range(13):
            turns.end(took_s=0.001)
        assert await asyncio.gather(*waiting) == [True] * 11

    run(scenario)


def test_a_turn_ends_also_when_its_work_fails() -> None:
    async def fails() -> None:
        raise ValueError

    async def scenario() -> None:
        turns = Turns(at_once=1)
        assert await turns.begin(stays())
        with pytest.raises(ValueError):
            await taken(fails(), turns)
        assert await turns.begin(stays())

    run(scenario)
