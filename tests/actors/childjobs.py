"""What the tests of a child process run in it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

__all__: list[str] = []

def double(number: int) -> int:
    return number * 2


def write(text: str) -> None:
    """Print a part of a line, which no line-buffered stream would show yet."""
    sys.stdout.write(text)


def within() -> str:
    return os.environ["OMNIBUS_WITHIN"]


def leave(code: Any) -> None:
    sys.exit(code)


def wait_at(path: str) -> str:
    """Say that this is reached, and wait until the test lets it go."""
    with open(path, "wb", buffering=0) as pipe:
        pipe.write(b".")
    with open(path + ".go", "rb", buffering=0) as pipe:
        pipe.read(1)
    return "let go"


def spin_at(path: str) -> None:
    """Say that this is reached, and compute for ever."""
    with open(path, "wb", buffering=0) as pipe:
        pipe.write(b".")
    while True:
        time.monotonic()


class Plain:
    def __init__(self) -> None:
        self.pid = os.getpid()

    def get_pid(self) -> int:
        return self.pid

    def double(self, number: int) -> int:
        return number * 2

    def teardown(self) -> None:
        print("torn down")


class Patient:
    def __init__(self) -> None:
        self.ticks = 0
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.ticks += 1

    async def wait_for_ticks(self, count: int) -> int:
        while self.ticks < count:
            await asyncio.sleep(0)
        return self.ticks

    def ticked(self) -> int:
        return self.ticks

    async def double(self, number: int) -> int:
        return number * 2

    async def wait_at(self, path: str) -> None:
        with open(path, "wb", buffering=0) as pipe:
            pipe.write(b".")
        await asyncio.get_running_loop().create_future()

    def spin_at(self, path: str) -> None:
        spin_at(path)

    async def leave(self, code: Any) -> None:
        sys.exit(code)

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        print("torn down")
