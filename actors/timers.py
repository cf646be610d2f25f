"""Deadlines by key: what is due next, and what is due now. Pure: ``now`` is an argument."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Timers"]

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """A set of keys, each with the time at which it is due. Setting one again moves it."""

    __slots__ = ("_due", "_heap", "_order")

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[K]:
        return iter(self._due)

    def set(self, key: K, when: float) -> None:
        """Make ``key`` due at ``when``."""
        order = next(self._order)
        self._due[key] = (when, order)
        heapq.heappush(self._heap, (when, order, key))
        self._prune()

    def clear(self, key: K) -> None:
        """Take ``key`` out, if it is there."""
        if self._due.pop(key, None) is not None:
            self._prune()

    def when(self, key: K, default: float) -> float:
        """Return when ``key`` is due, ``default`` where it is not there."""
        return self._due[key][0] if key in self._due else default

    def next(self) -> float | None:
        """Return when the next key is due; ``None`` where there is none."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> K | None:
        """Take out the key that has been due longest, and return it; ``None`` where none is due."""
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._prune()
        return key

    def _prune(self) -> None:
        """Drop what was moved or taken out: from the top always, from everywhere when it is the larger part."""
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        if len(heap) > 64 + 2 * len(due):
            self._heap = [entry for entry in heap if due.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)
