"""Methods that are written once and work on both clients: blocking on `Client`, awaitable on `AsyncClient`.

`@operation` turns a function that fills in a Call into a method that makes it, `@listing` into one that walks the
pages, `@flow` and `@stream` make methods of several calls. The type parameter of a resource, `Blocking` or `Awaiting`,
says which kind of answer its methods give, so that a type checker knows it too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Self, overload

from gpuyard.calls import Call, Manner, Operation, ask, pages
from gpuyard.json_object import Object
from gpuyard.transport import AwaitingDriver, Driver, Flow, Stream


class Blocking:
    """Marks resources whose methods return when the answer is there."""


class Awaiting:
    """Marks resources whose methods are awaited."""


class Resource[M]:
    """A group of operations. It holds what every call needs and nothing else."""

    def __init__(self, driver: Driver, manner: Manner) -> None:
        self._driver = driver
        self._manner = manner


@dataclass(frozen=True)
class Listed:
    """An operation, and where the SDK has it, e.g. "Leases.create"."""

    operation: Operation
    method: str


OPERATIONS: dict[str, Listed] = {}


class Several[T]:
    """The items of a list, page after page as they are needed. Iterating again asks again."""

    def __init__(self, driver: Driver, start: Callable[[], Stream[T]]) -> None:
        self._driver = driver
        self._start = start

    def __iter__(self) -> Iterator[T]:
        iterator: Iterator[T] = self._driver.iterate(self._start())
        return iterator

    def first(self, count: int) -> list[T]:
        """Return at most `count` items, and ask for no page beyond them."""
        return list(itertools.islice(self, count))


class AwaitedSeveral[T]:
    """The items of a list, page after page as they are needed; `async for`. Iterating again asks again."""

    def __init__(self, driver: Driver, start: Callable[[], Stream[T]]) -> None:
        self._driver = driver
        self._start = start

    def __aiter__(self) -> AsyncIterator[T]:
        iterator: AsyncIterator[T] = self._driver.iterate(self._start())
        return iterator

    async def first(self, count: int) -> list[T]:
        """Return at most `count` items, and ask for no page beyond them."""
        items: list[T] = []
        if count:
            async for item in self:
                items.append(item)
                if len(items) == count:
                    break
        return items


class One[**P, T]:
    """A method with one answer."""

    def __init__(
        self, function: Callable[Concatenate[Any, P], Any], flow: Callable[Concatenate[Any, P], Flow[T]]
    ) -> None:
        self.function = function
        self.flow = flow
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Resource[Blocking], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Resource[Awaiting], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return instance._driver.run(self.flow(instance, *args, **kwargs))

        return functools.update_wrapper(call, self.function)


class Many[**P, T]:
    """A method whose answer is iterated over."""

    def __init__(
        self, function: Callable[Concatenate[Any, P], Any], stream: Callable[Concatenate[Any, P], Stream[T]]
    ) -> None:
        self.function = function
        self.stream = stream
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Resource[Blocking], owner: type) -> Callable[P, Several[T]]: ...
    @overload
    def __get__(self, instance: Resource[Awaiting], owner: type) -> Callable[P, AwaitedSeveral[T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            several = AwaitedSeveral if isinstance(instance._driver, AwaitingDriver) else Several
            return several(instance._driver, lambda: self.stream(instance, *args, **kwargs))

        return functools.update_wrapper(call, self.function)


class OneCall[**P, T: Object | str | bytes](One[P, T]):
    """A method that is one operation. `fill` returns its Call unsent."""

    def __init__(self, described: Operation, fill: Callable[Concatenate[Any, P], Call[T]]) -> None:
        def flow(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
            return ask(described, fill(self, *args, **kwargs), self._manner)

        super().__init__(fill, flow)
        self.operation = described
        self.fill = fill

    def __set_name__(self, owner: type, name: str) -> None:
        _register(self.operation, owner, name)


class ManyCalls[**P, T: Object](Many[P, T]):
    """A method that walks the pages of one operation. `fill` returns its first Call unsent."""

    def __init__(self, described: Operation, fill: Callable[Concatenate[Any, P], Call[T]]) -> None:
        def stream(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
            return pages(described, fill(self, *args, **kwargs), self._manner)

        super().__init__(fill, stream)
        self.operation = described
        self.fill = fill

    def __set_name__(self, owner: type, name: str) -> None:
        _register(self.operation, owner, name)


def operation[**P, T: Object | str | bytes](
    operation_id: str, method: str, path: str
) -> Callable[[Callable[Concatenate[Any, P], Call[T]]], OneCall[P, T]]:
    """Make a method of one call out of a function that fills it in."""
    return lambda fill: OneCall(Operation(operation_id, method, path), fill)


def listing[**P, T: Object](
    operation_id: str, path: str
) -> Callable[[Callable[Concatenate[Any, P], Call[T]]], ManyCalls[P, T]]:
    """Make a method that walks a list out of a function that fills in its first call."""
    return lambda fill: ManyCalls(Operation(operation_id, "GET", path), fill)


def flow[**P, T](function: Callable[Concatenate[Any, P], Flow[T]]) -> One[P, T]:
    """Make a method of several calls with one answer."""
    return One(function, function)


def stream[**P, T](function: Callable[Concatenate[Any, P], Stream[T]]) -> Many[P, T]:
    """Make a method of several calls that emits items."""
    return Many(function, function)


def _register(described: Operation, owner: type, name: str) -> None:
    if described.id in OPERATIONS:
        raise ValueError(f"{described.id} is described twice")
    OPERATIONS[described.id] = Listed(described, f"{owner.__name__}.{name}")
