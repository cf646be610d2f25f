"""Numbers: what was used is known, however the numbers come, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnibus.brokers.numbers import MOST_HOLES, Numbers


def test_counting_up_keeps_nothing() -> None:
    numbers = Numbers()
    assert all(numbers.take(number) for number in range(1000))
    assert not any(numbers.take(number) for number in range(1000))
    assert numbers.next == 1000
    assert not numbers._starts


def test_what_was_passed_over_can_still_come() -> None:
    numbers = Numbers()
    assert numbers.take(5)
    assert numbers.take(3)
    assert not numbers.take(3)
    assert [number for number in range(6) if numbers.take(number)] == [0, 1, 2, 4]
    assert not numbers._starts


def test_what_is_given_back_can_be_taken_again() -> None:
    numbers = Numbers()
    for number in (1, 2, 3):
        numbers.take(number)
    numbers.give(2)
    numbers.give(3)
    assert numbers.next == 3
    assert numbers.take(2)
    assert not numbers.take(2)
    assert numbers.take(3)


def test_refusals_in_a_row_are_one_span() -> None:
    numbers = Numbers()
    for number in range(10_000):
        assert numbers.take(number)
        numbers.give(number)
    assert len(numbers._starts) <= 1
    assert numbers.take(0)


def test_the_lowest_holes_are_forgotten_when_there_are_too_many() -> None:
    numbers = Numbers()
    for number in range(1, 2 * MOST_HOLES + 10, 2):
        assert numbers.take(number)
    assert len(numbers._starts) == MOST_HOLES
    assert not numbers.take(0)
    assert numbers.take(2 * MOST_HOLES)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200))
def test_it_is_a_set(steps: list[tuple[bool, int]]) -> None:
    numbers = Numbers()
    used: set[int] = set()
    for take, number in steps:
        if take:
            assert numbers.take(number) == (number not in used)
            used.add(number)
        elif number in used:
            numbers.give(number)
            used.remove(number)
    assert [number for number in range(50) if not numbers.take(number)] == sorted(used)
