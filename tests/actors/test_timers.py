"""Deadlines by key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnibus.actors.timers import Timers


def test_what_is_due_comes_in_order() -> None:
    timers: Timers[str] = Timers()
    for key, when in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        timers.set(key, when)
    assert timers.next() == 1.0
    assert [timers.pop(2.5) for _ in range(3)] == ["a", "b", None]
    assert timers.next() == 3.0
    assert list(timers) == ["c"]


def test_a_key_is_due_once_and_can_be_moved() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    assert timers.next() == 5.0
    assert timers.when("a", 0.0) == 5.0
    assert timers.pop(4.0) is None
    timers.set("a", 2.0)
    assert timers.pop(4.0) == "a"
    assert timers.next() is None
    assert timers.when("a", -1.0) == -1.0


def test_a_key_that_is_cleared_is_never_due() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1.0)
    timers.clear("a")
    timers.clear("never set")
    assert timers.next() is None
    assert timers.pop(9.0) is None
    assert "a" not in timers


def test_moving_keys_does_not_pile_up() -> None:
    timers: Timers[int] = Timers()
    timers.set(0, 0.0)
    for step in range(10_000):
        timers.set(1, 1000.0 - step / 100)
        timers.set(2, 1.0 + step)
    assert len(timers._heap) < 100


MOVE = st.tuples(st.integers(0, 5), st.integers(0, 20), st.sampled_from(["set", "clear", "pop"]))


@given(st.lists(MOVE, max_size=200))
def test_it_agrees_with_a_plain_table(moves: list[tuple[int, int, str]]) -> None:
    timers: Timers[int] = Timers()
    table: dict[int, float] = {}
    for key, when, move in moves:
        if move == "set":
            timers.set(key, when)
            table[key] = when
        elif move == "clear":
            timers.clear(key)
            table.pop(key, None)
        else:
            due = timers.pop(when)
            if due is None:
                assert all(each > when for each in table.values())
            else:
                assert table[due] == min(table.values())
                assert table.pop(due) <= when
        assert timers.next() == (min(table.values()) if table else None)
        assert len(timers) == len(table)
