"""Functions and classes that the tests of runners call by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import omnibus

__all__: list[str] = []

seen: list[Any] = []
"""What the functions below noted; a test clears it first."""


def double(value: int, *, by: int = 2) -> int:
    return value * by


async def double_later(value: int) -> int:
    await asyncio.sleep(0)
    return value * 2


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Worse(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Unsendable(Exception):
    def __init__(self) -> None:
        super().__init__(object())


class CancelledError(Exception):
    """Not asyncio's, and named like it."""


KINDS: dict[str, Any] = {
    "ValueError": ValueError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "SystemExit": SystemExit,
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "Evil": Evil,
    "Worse": Worse,
    "Unsendable": Unsendable,
    "Surrogate": lambda: ValueError("bad \udcff text"),
    "WorkerDied": lambda: omnibus.WorkerDied("another worker, not this one"),
    "Cancelled": lambda: omnibus.Cancelled("a task that it waited for"),
    "NotPicklable": lambda: omnibus.NotPicklable("raised by hand"),
}


def fail(kind: str, *args: Any) -> None:
    raise KINDS[kind](*args)


def fail_remotely() -> None:
    """Let the failure of another task through, as ``bus.submit(...).result()`` would raise it."""
    error = omnibus.RemoteError("KeyError: 'inner'", type_name="builtins.KeyError", traceback="its traceback")
    error.__cause__ = KeyError("inner")
    raise error


def unsendable() -> Any:
    return object()


def many_parts(count: int) -> list[bytes]:
    return [bytes(70_000)] * count


def who() -> tuple[str, int, str | None, bool]:
    now = omnibus.current()
    return now.id, now.attempt, now.name, now.cancelled


def count(limit: int) -> Iterator[int]:
    try:
        for number in range(limit):
            seen.append(number)
            yield number
    finally:
        seen.append("closed")


def count_badly(limit: int) -> Iterator[int]:
    yield from range(limit)
    raise ValueError("midway")


def count_stubbornly(limit: int) -> Iterator[int]:
    try:
        yield from range(limit)
    finally:
        raise ValueError("while closing")


async def count_later(limit: int) -> AsyncIterator[int]:
    try:
        for number in range(limit):
            await asyncio.sleep(0)
            yield number
    finally:
        seen.append("closed")


async def return_count(limit: int) -> list[int]:
    return list(range(limit))


def yields_unsendable() -> Iterator[Any]:
    yield 1
    yield object()


def swallow_abort() -> str:
    """Carry on whatever comes."""
    try:
        seen[0]()
    except BaseException as error:
        seen.append(type(error).__name__)
    return "carried on"


def convert_abort() -> None:
    try:
        seen[0]()
    except BaseException as error:
        raise RuntimeError("converted") from error


def surrender() -> None:
    seen[0]()
    raise omnibus.Cancelled("so be it")


def call_back() -> str:
    seen[0]()
    return "done"


class Counter:
    def __init__(self, value: int = 0, *, bad: bool = False) -> None:
        if bad:
            raise ValueError("will not count")
        self.value = value

    def setup(self) -> None:
        seen.append("setup")

    def teardown(self) -> None:
        seen.append("teardown")

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    async def add_later(self, number: int) -> int:
        await asyncio.sleep(0)
        return self.add(number)

    def _private(self) -> None:
        pass


class Slow:
    """An actor whose set-up is a coroutine."""

    ready = False

    async def setup(self) -> None:
        await asyncio.sleep(0)
        self.ready = True

    def is_ready(self) -> bool:
        return self.ready

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        seen.append("teardown")


class Broken:
    def teardown(self) -> None:
        raise ValueError("cannot clean up")
