"""Lanes: order, turns, the guard's share, discarding; and the whole against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omnibus.brokers.lanes import LaneQueue, Line


class Item:
    """Something that waits."""

    def __init__(self, name: object) -> None:
        self.name = name
        self.waiting = False

    def __repr__(self) -> str:
        return str(self.name)


def fill(queue: LaneQueue[Item], line: Line[Item], *names: object) -> list[Item]:
    """Push items of these names."""
    items = [Item(name) for name in names]
    for item in items:
        queue.push(line, item)
        queue.check_invariants()
    return items


def drain(queue: LaneQueue[Item]) -> list[object]:
    """Pop all there is, and return the names."""
    names = []
    while (item := queue.pop()) is not None:
        queue.check_invariants()
        assert not item.waiting
        names.append(item.name)
    assert queue.depth == 0
    return names


def test_a_line_is_first_in_first_out() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    fill(queue, queue.line(0), 1, 2, 3)
    assert drain(queue) == [1, 2, 3]


def test_an_empty_queue_gives_nothing() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    assert queue.pop() is None
    assert queue.top is None
    assert len(queue) == 0
    assert queue.depths() == {}


def test_the_higher_lane_goes_first_whenever_it_came() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    low, high = queue.line(-5), queue.line(10)
    fill(queue, low, "a", "b")
    fill(queue, high, "c")
    assert queue.top == 10
    assert queue.depths() == {10: 1, -5: 2}
    assert queue.pop() is not None
    assert queue.top == -5
    fill(queue, high, "d")
    assert drain(queue) == ["d", "a", "b"]


def test_lines_of_a_lane_take_turns() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    flood, other = queue.line(0), queue.line(0)
    fill(queue, flood, "a", "b", "c", "d")
    fill(queue, other, 1, 2)
    assert drain(queue) == ["a", 1, "b", 2, "c", "d"]


def test_what_comes_back_goes_first() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    mine, other = queue.line(0), queue.line(0)
    first, _ = fill(queue, mine, "a", "b")
    fill(queue, other, 1)
    assert queue.pop() is first
    queue.push_front(mine, first)
    assert drain(queue) == ["a", 1, "b"]
    queue.push_front(mine, first)
    assert drain(queue) == ["a"]


def test_a_line_outlives_its_lane() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    old = queue.line(0)
    fill(queue, old, 1)
    assert drain(queue) == [1]
    fresh = queue.line(0)
    fill(queue, fresh, 2)
    fill(queue, old, 3)
    assert queue.depths() == {0: 2}
    assert drain(queue) == [2, 3]
    queue.push_front(old, Item(4))
    assert drain(queue) == [4]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_what_is_discarded_is_not_given_out(position: int) -> None:
    queue: LaneQueue[Item] = LaneQueue()
    line = queue.line(0)
    items = fill(queue, line, 0, 1, 2)
    queue.discard(line, items[position])
    queue.check_invariants()
    assert queue.depth == 2
    assert drain(queue) == [item.name for item in items if item is not items[position]]


def test_discarding_the_last_one_empties_the_lane() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    line, low = queue.line(1), queue.line(0)
    items = fill(queue, line, 1, 2)
    fill(queue, low, 3)
    for item in items:
        queue.discard(line, item)
        queue.check_invariants()
    assert queue.depths() == {0: 1}
    assert not line.items
    assert not line.queued
    assert drain(queue) == [3]


def test_discarded_items_do_not_pile_up_behind_a_busy_lane() -> None:
    queue: LaneQueue[Item] = LaneQueue()
    keeper, line = queue.line(0), queue.line(0)
    fill(queue, keeper, *range(100))
    for _ in range(50):
        for item in fill(queue, line, *range(20)):
            queue.discard(line, item)
    queue.check_invariants()
    assert len(line.items) <= 120
    assert drain(queue) == list(range(100))


def test_strict_order_starves_and_the_guard_does_not() -> None:
    for guard, share in ((None, 0), (4, 5)):
        queue: LaneQueue[Item] = LaneQueue(guard)
        high, low = queue.line(1), queue.line(0)
        fill(queue, low, *["low"] * 20)
        given = []
        for _ in range(20):
            fill(queue, high, "high")
            item = queue.pop()
            assert item is not None
            given.append(item.name)
        assert given.count("low") == share


def test_the_guard_gives_the_lower_lanes_turns() -> None:
    queue: LaneQueue[Item] = LaneQueue(2)
    for priority in range(4):
        fill(queue, queue.line(priority), *[priority] * 10)
    given = [item.name for _ in range(12) if (item := queue.pop()) is not None]
    assert [given.count(priority) for priority in range(4)] == [2, 2, 2, 6]


class AgainstNaive(RuleBasedStateMachine):
    """The queue, and a list that is searched for what should come next."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: LaneQueue[Item] = LaneQueue()
        self.lines: list[tuple[int, Line[Item]]] = []
        self.waiting: dict[int, list[Item]] = {}
        self.turns: dict[int, list[int]] = {}
        self.count = 0

    @rule(priority=st.integers(-2, 2))
    def new_line(self, priority: int) -> None:
        self.waiting[len(self.lines)] = []
        self.lines.append((priority, self.queue.line(priority)))

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), front=st.booleans())
    def push(self, data: st.DataObject, front: bool) -> None:
        at = data.draw(st.integers(0, len(self.lines) - 1))
        priority, line = self.lines[at]
        self.count += 1
        item = Item(self.count)
        turns = self.turns.setdefault(priority, [])
        if front:
            self.queue.push_front(line, item)
            self.waiting[at].insert(0, item)
            if at in turns:
                turns.remove(at)
            turns.insert(0, at)
        else:
            self.queue.push(line, item)
            self.waiting[at].append(item)
            if at not in turns:
                turns.append(at)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from([at for at, items in self.waiting.items() if items]))
        item = data.draw(st.sampled_from(self.waiting[at]))
        self.queue.discard(self.lines[at][1], item)
        self.waiting[at].remove(item)
        self.forget_turns(self.lines[at][0])

    def forget_turns(self, priority: int) -> None:
        """A lane that empties forgets whose turn it was."""
        if not any(items for at, items in self.waiting.items() if self.lines[at][0] == priority):
            self.turns[priority] = []

    @rule()
    def pop(self) -> None:
        item = self.queue.pop()
        if not any(self.waiting.values()):
            assert item is None
            return
        top = max(self.lines[at][0] for at, items in self.waiting.items() if items)
        turns = self.turns[top]
        while not self.waiting[turns[0]]:
            turns.pop(0)  # all that it had was discarded
        at = turns.pop(0)
        assert item is self.waiting[at].pop(0)
        if self.waiting[at]:
            turns.append(at)
        self.forget_turns(top)

    @invariant()
    def holds(self) -> None:
        self.queue.check_invariants()
        depths: dict[int, int] = {}
        for at, items in self.waiting.items():
            if items:
                depths[self.lines[at][0]] = depths.get(self.lines[at][0], 0) + len(items)
        assert self.queue.depths() == depths
        assert self.queue.depth == sum(depths.values())


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
