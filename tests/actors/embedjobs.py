"""Actors that the tests serve in their own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import omnibus

__all__: list[str] = []


class Plain:
    def __init__(self, value: int = 0, *, bad: bool = False) -> None:
        if bad:
            raise ValueError("will not count")
        self.value = value
        self.torn_down = 0
        self.reached = threading.Event()
        self.go = threading.Event()

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def where(self) -> str:
        return threading.current_thread().name

    def count(self, limit: int) -> Iterator[int]:
        yield from range(limit)

    def fail(self) -> None:
        raise ValueError("no")

    def leave(self) -> None:
        raise SystemExit(3)

    def wait(self) -> str:
        self.reached.set()
        self.go.wait()
        return "let go"

    def watch(self) -> None:
        """Work until the end is asked for."""
        self.reached.set()
        now = omnibus.current()
        while not now.cancelled:
            pass
        raise omnibus.Cancelled("so be it")

    def teardown(self) -> None:
        self.torn_down += 1


class Later:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.under_way = self.most = self.torn_down = 0

    async def setup(self) -> None:
        await asyncio.sleep(0)
        self.go = asyncio.Event()
        self.reached = asyncio.Event()

    async def meet(self, number: int) -> int:
        """Return once so many are here."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == number:
            self.go.set()
        await self.go.wait()
        return number

    async def wait(self) -> str:
        self.reached.set()
        await self.go.wait()
        return "let go"

    async def count(self, limit: int) -> AsyncIterator[int]:
        for number in range(limit):
            await asyncio.sleep(0)
            yield number

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        self.torn_down += 1


class Unready:
    async def setup(self) -> None:
        raise ValueError("not today")


class Stopping:
    """Stops itself."""

    served: Any = None

    def stop(self) -> bool:
        return bool(self.served.stop())
