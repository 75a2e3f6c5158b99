"""How a call travels: retries, idempotency keys, pages and errors, said once for the blocking and the awaiting client.

What a client does is written as generators ("flows") that yield `Send` and `Sleep` steps and receive the answers; the
two drivers at the end of this file perform the steps, one by blocking and one by awaiting. They know nothing else.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True)
class Send:
    """Perform one HTTP exchange; the flow receives the response, or the transport's error is thrown into it."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    content: bytes | None
    headers: dict[str, str]
    timeout_s: float


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Emit[T]:
    """Hand one item to whoever iterates."""

    item: T


type Step = Send | Sleep
type Flow[T] = Generator[Step, Any, T]
type Stream[T] = Generator[Step | Emit[T], Any, None]

# Called after each exchange with what was sent, what came (or the error), and the seconds it took.
type Observer = Callable[[Send, httpx2.Response | httpx2.TransportError, float], None]


class Driver(ABC):
    """Performs the steps of flows. `run` and `iterate` answer in the driver's own manner."""

    def __init__(self, *, observer: Observer | None) -> None:
        self.observer = observer

    @abstractmethod
    def run(self, flow: Flow[Any]) -> Any: ...

    @abstractmethod
    def iterate(self, stream: Stream[Any]) -> Any: ...

    @abstractmethod
    def close(self) -> Any: ...

    def _observe(self, step: Send, outcome: httpx2.Response | httpx2.TransportError, began: float) -> None:
        if self.observer is not None:
            self.observer(step, outcome, time.monotonic() - began)


class _Walk:
    """One pass through a flow: remembers what the last step gave, and hands it in."""

    def __init__(self, flow: Generator[Any, Any, Any]) -> None:
        self._flow = flow
        self._outcome: Any = None
        self.result: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, httpx2.TransportError):
                return self._flow.throw(outcome)
            return self._flow.send(outcome)
        except StopIteration as finished:
            self.result = finished.value
            raise StopIteration from None

    def receive(self, outcome: object) -> None:
        self._outcome = outcome

    def close(self) -> None:
        self._flow.close()


class BlockingDriver(Driver):
    def __init__(self, http: httpx2.Client, *, observer: Observer | None) -> None:
        super().__init__(observer=observer)
        self._http = http

    def run(self, flow: Flow[Any]) -> Any:
        walk = _Walk(flow)
        for step in walk:
            walk.receive(self._perform(step))
        return walk.result

    def iterate(self, stream: Stream[Any]) -> Iterator[Any]:
        walk = _Walk(stream)
        try:
            for step in walk:
                if isinstance(step, Emit):
                    yield step.item
                else:
                    walk.receive(self._perform(step))
        finally:
            walk.close()

    def close(self) -> None:
        self._http.close()

    def _perform(self, step: Step) -> httpx2.Response | httpx2.TransportError | None:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        began = time.monotonic()
        outcome: httpx2.Response | httpx2.TransportError
        try:
            outcome = self._http.request(**_arguments(step))
        except httpx2.TransportError as broken:
            outcome = broken
        self._observe(step, outcome, began)
        return outcome


class AwaitingDriver(Driver):
    def __init__(self, http: httpx2.AsyncClient, *, observer: Observer | None) -> None:
        super().__init__(observer=observer)
        self._http = http

    async def run(self, flow: Flow[Any]) -> Any:
        walk = _Walk(flow)
        for step in walk:
            walk.receive(await self._perform(step))
        return walk.result

    async def iterate(self, stream: Stream[Any]) -> AsyncIterator[Any]:
        walk = _Walk(stream)
        try:
            for step in walk:
                if isinstance(step, Emit):
                    yield step.item
                else:
                    walk.receive(await self._perform(step))
        finally:
            walk.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _perform(self, step: Step) -> httpx2.Response | httpx2.TransportError | None:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        began = time.monotonic()
        outcome: httpx2.Response | httpx2.TransportError
        try:
            outcome = await self._http.request(**_arguments(step))
        except httpx2.TransportError as broken:
            outcome = broken
        self._observe(step, outcome, began)
        return outcome


def _arguments(step: Send) -> dict[str, Any]:
    return {
        "method": step.method,
        "url": step.path,
        "params": list(step.query) or None,
        "content": step.content,
        "headers": step.headers,
        "timeout": step.timeout_s,
    }
