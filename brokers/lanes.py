"""Priority lanes: what waits, in the order in which it should run.

A queue holds lanes, one for each priority in use; a lane holds lines, one for each owner (a client); a line is
first in first out. The highest lane goes first, and within a lane the lines take turns, so that one client's
flood does not hold up another's work. ``push`` and ``pop`` cost the same whatever the backlog; only a lane that
begins or ceases to wait costs a search among the waiting lanes.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["Lane", "LaneQueue", "Line", "Waiting"]


class Waiting(Protocol):
    """What a queue holds. ``waiting``, which the queue alone sets, is true from ``push`` to ``pop`` or ``discard``."""

    waiting: bool


T = TypeVar("T", bound=Waiting)

_STALE = 64
"""Discarded items that a lane may keep although nothing waits behind them: compacting for fewer is not worth it."""


class Lane(Generic[T]):
    """All that waits at one priority: ``depth`` items, and ``stale`` ones, discarded but still in line."""

    __slots__ = ("depth", "priority", "stale", "turns")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.turns: deque[Line[T]] = deque()
        self.depth = 0
        self.stale = 0


class Line(Generic[T]):
    """One owner's queue at one priority. Make it with :meth:`LaneQueue.line`.

    ``queued``: it stands among its lane's turns. ``users`` is the owner's: how many of its kinds share the line.
    """

    __slots__ = ("items", "lane", "queued", "users")

    def __init__(self, lane: Lane[T]) -> None:
        self.lane = lane
        self.items: deque[T] = deque()
        self.queued = False
        self.users = 0


class LaneQueue(Generic[T]):
    """Lanes by priority, higher first; strict, unless ``guard`` is given.

    ``guard=n`` gives every n-th ``pop`` to a lower lane that waits, the lower lanes in turn: a small share that keeps
    them from starving. ``None`` (the default) is strict order.
    """

    __slots__ = ("_guard", "_lanes", "_order", "_pops", "depth")

    def __init__(self, guard: int | None = None) -> None:
        self._lanes: dict[int, Lane[T]] = {}
        self._order: list[Lane[T]] = []
        self._guard = guard
        self._pops = 0
        self.depth = 0

    def __len__(self) -> int:
        return self.depth

    @property
    def top(self) -> int | None:
        """The highest priority at which something waits."""
        return self._order[-1].priority if self._order else None

    def depths(self) -> dict[int, int]:
        """Return how much waits at each priority, highest first."""
        return {lane.priority: lane.depth for lane in reversed(self._order)}

    def line(self, priority: int) -> Line[T]:
        """Return a new line at ``priority``: its holder pushes through it, and it takes turns with others."""
        return Line(self._lanes.get(priority) or Lane(priority))

    def push(self, line: Line[T], item: T) -> None:
        """Queue ``item`` behind what its line holds."""
        item.waiting = True
        line.items.append(item)
        lane = line.lane
        if not lane.depth:
            lane = self._activate(line)
        if not line.queued:
            line.queued = True
            lane.turns.append(line)
        lane.depth += 1
        self.depth += 1

    def push_front(self, line: Line[T], item: T, behind: int = 0) -> None:
        """Queue what comes back: before all but the first ``behind`` of its line, which has the next turn."""
        item.waiting = True
        line.items.insert(behind, item)
        lane = line.lane
        if not lane.depth:
            lane = self._activate(line)
        if line.queued:
            lane.turns.remove(line)
        line.queued = True
        lane.turns.appendleft(line)
        lane.depth += 1
        self.depth += 1

    def pop(self) -> T | None:
        """Take the next item: of the highest lane, of the line whose turn it is. ``None`` when nothing waits."""
        if not self._order:
            return None
        lane = self._order[-1] if self._guard is None else self._guarded(self._guard)
        turns = lane.turns
        while True:
            line = turns[0]
            items = line.items
            item = items.popleft()
            if not items:
                turns.popleft()
                line.queued = False
            elif len(turns) > 1 and item.waiting:
                turns.rotate(-1)
            if item.waiting:
                break
            lane.stale -= 1
        item.waiting = False
        self._leave(lane)
        return item

    def discard(self, line: Line[T], item: T) -> None:
        """Take ``item``, which waits, out of its line wherever it stands: it was cancelled or expired."""
        item.waiting = False
        lane = line.lane
        lane.stale += 1
        self._leave(lane)
        if lane.stale > max(_STALE, lane.depth):
            _compact(lane)

    def _leave(self, lane: Lane[T]) -> None:
        self.depth -= 1
        lane.depth -= 1
        if not lane.depth:
            if lane.stale:
                _compact(lane)
            del self._lanes[lane.priority]
            if self._order[-1] is lane:
                self._order.pop()
            else:
                self._order.remove(lane)

    def _activate(self, line: Line[T]) -> Lane[T]:
        """Return the live lane of the line's priority: a line may keep one that was replaced when empty."""
        lane = line.lane = self._lanes.setdefault(line.lane.priority, line.lane)
        if not lane.depth:
            insort(self._order, lane, key=_priority)
        return lane

    def _guarded(self, guard: int) -> Lane[T]:
        self._pops += 1
        lower = len(self._order) - 1
        if lower and self._pops % guard == 0:
            return self._order[(self._pops // guard) % lower]
        return self._order[-1]

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the indexes do not agree; for tests."""
        assert [lane.priority for lane in self._order] == sorted(self._lanes), "lanes and their order differ"
        assert self.depth == sum(lane.depth for lane in self._order), "depth is not the sum of the lanes'"
        for lane in self._order:
            assert lane.depth > 0, f"lane {lane.priority} is empty and kept"
            waits = [item for line in lane.turns for item in line.items if item.waiting]
            assert lane.depth == len(waits), f"lane {lane.priority}: depth {lane.depth}, {len(waits)} wait"
            held = sum(len(line.items) for line in lane.turns)
            assert lane.stale == held - len(waits), f"lane {lane.priority}: stale count is off"
            assert all(line.queued and line.items and line.lane is lane for line in lane.turns), "a turn without items"


def _priority(lane: Lane[T]) -> int:
    return lane.priority


def _compact(lane: Lane[T]) -> None:
    """Drop what no longer waits from the lane's lines, so that cancelled work does not pile up behind a busy lane."""
    for line in list(lane.turns):
        kept = [item for item in line.items if item.waiting]
        line.items.clear()
        line.items.extend(kept)
        if not kept:
            lane.turns.remove(line)
            line.queued = False
    lane.stale = 0
