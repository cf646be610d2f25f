"""The shelf: the ends of detached tasks, kept for a while for whoever fetches them by the task's id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from omnibus.protocol import Blob, Record

from .tasks import size_of

if TYPE_CHECKING:
    from .peers import Peer

__all__ = ["Kept", "Shelf", "TaskId"]

TaskId = tuple[bytes, int]
"""A task's id in the mesh: its client's session and its number."""


class Kept(NamedTuple):
    """One end: the record that tells of it, and until when it is kept."""

    record: Record
    blobs: Sequence[Blob]
    size: int
    until: float


class Shelf:
    """The ends by task id. Each is kept for ``keep`` seconds, and fewer where all together exceed ``most_bytes``."""

    def __init__(self, keep: float, most_bytes: int) -> None:
        self.size = 0
        self._kept: dict[TaskId, Kept] = {}
        self._keep = keep
        self._most = most_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, task: TaskId, record: Record, blobs: Sequence[Blob], now: float) -> None:
        """Keep an end."""
        if task in self._kept:
            self._forget(task)
        size = size_of(record[3], blobs)
        self._kept[task] = Kept(record, blobs, size, now + self._keep)
        self.size += size
        while self.size > self._most and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def answer(self, peer: Peer, seq: int, task: TaskId) -> bool:
        """Send a kept end as the answer to request ``seq``; false where it is not there."""
        kept = self._kept.get(task)
        if kept is None:
            return False
        verb, _, head, body, count = kept.record
        peer.put([verb, seq, head, body, count], kept.blobs)
        return True

    def expire(self, now: float) -> float | None:
        """Drop what was kept long enough; return when to look again, ``None`` where nothing is kept."""
        while self._kept:
            task, kept = next(iter(self._kept.items()))
            if kept.until > now:
                return kept.until
            self._forget(task)
        return None

    def _forget(self, task: TaskId) -> None:
        self.size -= self._kept.pop(task).size

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the size is off; for tests."""
        assert self.size == sum(kept.size for kept in self._kept.values()), "shelf: its size is off"
