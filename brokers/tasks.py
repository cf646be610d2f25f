"""A task (or a message to an actor) as the broker holds it, from acceptance to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnibus.protocol import Blob

if TYPE_CHECKING:
    from .kinds import Kind
    from .peers import Worker

__all__ = ["HORIZON", "Task", "size_of"]

HORIZON = 2_000_000
"""Nanoseconds of work that a worker may hold: about a round trip's worth under load."""


def size_of(body: bytes | None, blobs: Sequence[Blob]) -> int:
    """Return the bytes of a payload."""
    size = len(body) if body else 0
    return size + sum(map(len, blobs)) if blobs else size


class Task:
    """One accepted task: its payload, opaque, and where it stands.

    It is queued while ``waiting``; it runs, or waits prefetched at a worker, while ``worker`` is set, and then
    ``aid`` names the attempt. ``attempt`` counts the attempts that were dispatched and not given back. ``born``
    is when it was queued last. ``cost`` is what the current attempt was reckoned at, in nanoseconds. ``size``:
    bytes of its payload. ``cancelling``: its client asked for its end. ``chunked``: a part of its stream is out,
    so that it cannot be run again.
    """

    __slots__ = (
        "aid",
        "attempt",
        "blobs",
        "body",
        "born",
        "cancelling",
        "chunked",
        "cost",
        "kind",
        "seq",
        "size",
        "waiting",
        "worker",
    )

    def __init__(self, kind: Kind, seq: int, body: bytes | None, blobs: Sequence[Blob], born: float) -> None:
        self.kind = kind
        self.seq = seq
        self.body = body
        self.blobs = blobs
        self.born = born
        self.size = size_of(body, blobs)
        self.waiting = False
        self.worker: Worker | None = None
        self.aid = 0
        self.attempt = 0
        self.cost = 0
        self.cancelling = False
        self.chunked = False
