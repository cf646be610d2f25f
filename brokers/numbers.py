"""Which numbers a client has used for its work, so that a number that comes again is known for what it is.

Clients count up, from one thread or from several at once, and use some numbers for questions: what was used is
nearly all below the highest one. So the *holes* below that are kept, a few spans, however many tasks have ended.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["MOST_HOLES", "Numbers"]

MOST_HOLES = 4096
"""Spans of unused numbers that are remembered; the lowest are forgotten first, and count as used from then on."""


class Numbers:
    """The numbers that one client has used. All from ``next`` on are fresh; the hot path steps it by itself."""

    __slots__ = ("_ends", "_starts", "next")

    def __init__(self) -> None:
        self.next = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, number: int) -> bool:
        """Use ``number``; false where it was used before."""
        if number >= self.next:
            if number > self.next:
                self._insert(len(self._starts), self.next, number)
            self.next = number + 1
            return True
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._ends[at]:
            return False
        start, end = self._starts.pop(at), self._ends.pop(at)
        if number + 1 < end:
            self._insert(at, number + 1, end)
        if start < number:
            self._insert(at, start, number)
        return True

    def give(self, number: int) -> None:
        """Let ``number``, which was taken, be used again: what it named was refused."""
        if number == self.next - 1:
            self.next = number
            return
        self._insert(bisect_right(self._starts, number), number, number + 1)

    def _insert(self, at: int, start: int, end: int) -> None:
        if at and self._ends[at - 1] == start:
            self._ends[at - 1] = end
            return
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        if len(self._starts) > MOST_HOLES:
            del self._starts[0], self._ends[0]
