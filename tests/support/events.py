"""Waiting in tests: the one place where they poll.

A test first looks for an event to wait for: a future, a reply, a condition, a pidfd. Where there is none,
because the thing watched belongs to another process, it polls through :func:`eventually`, which ends with the
first success and says what was missing when the deadline passes. Nothing in ``tests/`` sleeps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["aeventually", "eventually"]

T = TypeVar("T")

STEP = 0.005


def eventually(predicate: Callable[[], T], timeout: float = 5.0, what: str = "") -> T:
    """Call ``predicate`` until it returns something true, and return that.

    An ``AssertionError`` from the predicate counts as "not yet", so it may hold plain asserts; it must then
    return something true at its end. When ``timeout`` seconds have passed, fail with ``what`` and the last
    outcome.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline     # read first: the last look comes after the deadline
        outcome, value = _look(predicate)
        if value:
            return value
        if late:
            raise AssertionError(_missed(predicate, timeout, what, outcome))
        threading.Event().wait(STEP)


async def aeventually(predicate: Callable[[], T], timeout: float = 5.0, what: str = "") -> T:
    """Do what :func:`eventually` does, and let the event loop run in between."""
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        outcome, value = _look(predicate)
        if value:
            return value
        if late:
            raise AssertionError(_missed(predicate, timeout, what, outcome))
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=STEP)


def _look(predicate: Callable[[], T]) -> tuple[object, T | None]:
    """Return what to report if this was the last look, and the value."""
    try:
        value = predicate()
    except AssertionError as error:
        return error, None
    return value, value


def _missed(predicate: Callable[[], object], timeout: float, what: str, outcome: object) -> str:
    name = what or getattr(predicate, "__name__", repr(predicate))
    return f"not within {timeout:g} s: {name}; the last look gave {outcome!r}"
