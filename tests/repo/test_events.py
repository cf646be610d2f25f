"""The polling helper: it returns what it waited for, and says what it missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.events import aeventually, eventually


def after(calls: int) -> Callable[[], str]:
    """Return a predicate that is true from its n-th call on."""
    seen: list[None] = []

    def predicate() -> str:
        seen.append(None)
        return "there" if len(seen) >= calls else ""

    return predicate


def test_it_returns_the_first_true_value() -> None:
    assert eventually(after(3)) == "there"
    assert asyncio.run(aeventually(after(3))) == "there"


def test_an_assertion_that_comes_to_hold_is_waited_for() -> None:
    predicate = after(2)

    def holds() -> bool:
        assert predicate()
        return True

    assert eventually(holds)


def test_a_miss_names_the_thing_and_the_last_outcome() -> None:
    with pytest.raises(AssertionError, match=r"0\.01 s: the broker listens; the last look gave \[\]"):
        eventually(list, 0.01, "the broker listens")
    with pytest.raises(AssertionError, match="the broker listens"):
        asyncio.run(aeventually(list, 0.01, "the broker listens"))


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0)
