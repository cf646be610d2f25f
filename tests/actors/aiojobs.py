"""Actors with coroutines, for the tests of what runs them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import omnibus

__all__: list[str] = []

seen: list[Any] = []
"""What the methods below noted; a test clears it first."""
gates: dict[str, asyncio.Event] = {}
"""What the methods below wait for; a test opens them."""


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


class Patient:
    """Waits at gates."""

    def __init__(self) -> None:
        self.ticks = 0

    async def setup(self) -> None:
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.ticks += 1

    def ticked(self) -> int:
        return self.ticks

    async def pass_gate(self, name: str) -> str:
        seen.append(f"{name} begins")
        try:
            await gate(name).wait()
        finally:
            seen.append(f"{name} ends")
        return name

    async def insist(self, name: str) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await gate(name).wait()
        return "carried on"

    async def convert(self, name: str) -> None:
        try:
            await gate(name).wait()
        except asyncio.CancelledError:
            raise RuntimeError("converted") from None

    async def cancel_itself(self) -> None:
        raise asyncio.CancelledError

    async def fail(self, message: str) -> None:
        raise ValueError(message)

    async def leave(self, code: int) -> None:
        sys.exit(code)

    def leave_now(self, code: int) -> None:
        sys.exit(code)

    async def interrupt(self) -> None:
        raise KeyboardInterrupt

    async def unsendable(self) -> Any:
        return self.stream_now(3)

    async def double(self, number: int) -> int:
        return number * 2

    def double_now(self, number: int) -> int:
        return number * 2

    def call(self) -> Any:
        return seen[0]()

    async def stream(self, limit: int) -> AsyncIterator[int]:
        try:
            for number in range(limit):
                yield number
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    def stream_now(self, limit: int) -> Iterator[int]:
        try:
            yield from range(limit)
        finally:
            seen.append("closed")

    async def stream_list(self, limit: int) -> list[int]:
        return list(range(limit))

    def stream_badly(self, limit: int) -> Iterator[int]:
        yield from range(limit)
        raise ValueError("midway")

    def stream_stubbornly(self, limit: int) -> Iterator[int]:
        try:
            yield from range(limit)
        finally:
            raise ValueError("while closing")

    async def who(self) -> list[Any]:
        inner = asyncio.get_running_loop().create_task(self._id())
        return [omnibus.current().id, await inner, await asyncio.to_thread(lambda: omnibus.current().id)]

    async def _id(self) -> str:
        return omnibus.current().id

    async def teardown(self) -> None:
        self.ticking.cancel()
        seen.append("teardown")


class Plain:
    """Has no coroutine."""

    def double(self, number: int) -> int:
        return number * 2

    def call(self) -> Any:
        return seen[0]()

    def leave(self, code: int) -> None:
        sys.exit(code)

    def teardown(self) -> None:
        seen.append("teardown")


class Unready:
    async def setup(self) -> None:
        raise ValueError("not today")
