"""OMB/1, the wire: verbs, records, batches, and how they become frames. No I/O.

One multipart message carries a batch::

    [ b"OMB1", msgpack [record, record, ...], blob, blob, ... ]

A record is a list of exactly five fields, ``[verb, id, head, body, blobs]``: an int of :class:`Verb`, an int that
names what it is about, a head (nil, an int, a list or a map, as the verb says), an inline body (bytes or nil) and the
number of blobs that it owns. Blobs follow in the order of their records. Where the body is nil and there are blobs,
the first blob is the body. The full specification is ``docs/spec/omb-1.md``.

On the hot path a record stays a plain list: there is no class for it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgpack

from omnibus.errors import ProtocolError

__all__ = [
    "BATCH",
    "DEPTH",
    "INLINE",
    "SIGNATURE",
    "VERSION",
    "Blob",
    "Limits",
    "Record",
    "Verb",
    "decode",
    "encode",
    "fit",
    "messages",
    "split_delimiter",
]

SIGNATURE: Final = b"OMB1"
VERSION: Final = 1
BATCH: Final = 128
"""Records that a sender packs into one message before it starts the next."""
INLINE: Final = 64 * 1024
"""Bodies of at least so many bytes travel as their record's first blob, not inside the batch."""

DEPTH: Final = 16
"""How many arrays and maps may stand within each other in a record's head, the head itself counted."""

Record: TypeAlias = list[Any]
Blob: TypeAlias = Any
"""Anything with the buffer protocol: ``bytes``, a ``memoryview``, a ``zmq.Frame``."""


class Verb(IntEnum):
    """What a record asks or says; the number is its first field."""

    HELLO = 1
    WELCOME = 2
    ERROR = 3
    BYE = 4
    PING = 5
    PONG = 6
    ACK = 7

    DEFINE = 10
    FORGET = 11
    SUBMIT = 12
    ASK = 13
    TELL = 14
    CANCEL = 15
    CREDIT = 16
    SPAWN = 17
    STOP = 18
    STATUS = 19
    FETCH = 20
    PUBLISH = 21
    SUBSCRIBE = 22
    UNSUBSCRIBE = 23
    LEND = 24

    RESULT = 30
    FAILED = 31
    CHUNK = 32
    EVENT = 33

    RUN = 40
    REVOKE = 41

    DONE = 50
    FAIL = 51
    TIMED = 52

    START = 60
    HALT = 61
    WATCH = 62
    ABORT = 63
    RECALL = 64
    CHILD = 65
    RECALLED = 66


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one peer may send; the broker states them in WELCOME.

    ``batch_bytes``: size of the msgpack frame. ``body``: size of one body inside it. ``records``, ``blobs``: how many
    one message may hold. ``name``: length of a name, a topic or a method in characters. ``kinds``: kinds that a session
    may have defined at a time. ``window_tasks`` and ``window_bytes``: unfinished work of one client in one lane.
    ``message_bytes``: size of any one frame.
    """

    batch_bytes: int = 16 * 1024 * 1024
    body: int = 1024 * 1024
    records: int = 65_536
    blobs: int = 16_384
    name: int = 256
    kinds: int = 4_096
    window_tasks: int = 1_000_000
    window_bytes: int = 1 << 30
    message_bytes: int = 8 << 30


_DEFAULT_LIMITS: Final = Limits()
_FULL: Final = _DEFAULT_LIMITS.batch_bytes // 2
_NESTS: Final = frozenset({list, dict})


def encode(records: Sequence[Record], blobs: Sequence[Blob] = ()) -> list[Blob]:
    """Return the frames of one message that carries ``records`` and, in their order, their ``blobs``.

    The caller answers for the counts: the sum of the records' fifth fields is ``len(blobs)``.
    """
    return [SIGNATURE, msgpack.packb(records), *blobs]


def decode(frames: Sequence[Blob], limits: Limits = _DEFAULT_LIMITS) -> list[Record]:
    """Return the records of one message, each checked to be five fields of the right types.

    ``frames`` starts at the signature (see :func:`split_delimiter`); the first two are ``bytes``. The blobs of the
    records are ``frames[2:]``, in order, and their number is checked.

    Raises :class:`ProtocolError` for anything else; the message says what was wrong, what was expected and where.
    """
    if len(frames) < 2 or frames[0] != SIGNATURE:
        raise ProtocolError(_no_signature(frames))
    batch = frames[1]
    if len(batch) > limits.batch_bytes:
        raise ProtocolError(f"batch of {len(batch)} bytes; at most {limits.batch_bytes} may be sent at a time")
    try:
        records = msgpack.unpackb(batch)
    except Exception as error:  # msgpack raises ValueError, its own classes, and Unicode and recursion errors
        raise ProtocolError(f"batch is not valid msgpack ({type(error).__name__}: {error})") from None
    if type(records) is not list or len(records) > limits.records:
        raise ProtocolError(f"batch must be a msgpack array of at most {limits.records} records")
    _check(records, len(frames) - 2, limits)
    if len(batch) > limits.body:
        _check_bodies(records, limits)
    return records


def _check(records: list[Any], blobs: int, limits: Limits) -> None:
    """Check every record's fields, and the sum of their blobs against the number of frames that came."""
    owned = 0
    nests: list[Any] = []
    for record in records:
        if type(record) is not list or len(record) != 5:
            raise ProtocolError(f"record {_short(record)} is not an array of five fields [verb, id, head, body, blobs]")
        verb, about, head, body, count = record
        if not (type(verb) is type(about) is type(count) is int and verb >= 0 and about >= 0 and count >= 0):
            raise ProtocolError(f"record {_short(record)}: verb, id and blobs must be non-negative integers")
        if body is not None and type(body) is not bytes:
            raise ProtocolError(f"record {_short(record)}: the body must be a msgpack bin or nil")
        if head is not None and type(head) in _NESTS:  # written out, for a RUN's head is a list
            for part in head if type(head) is list else head.values():
                if type(part) in _NESTS:
                    nests.append(part)  # noqa: PERF401 - a comprehension is a call
        owned += count
    if nests:
        _check_depth(nests, limits)
    if owned != blobs:
        raise ProtocolError(f"records own {owned} blobs, but {blobs} blob frames came with them")
    if blobs > limits.blobs:
        raise ProtocolError(f"message of {blobs} blobs; at most {limits.blobs} are allowed: send less at a time")


def _check_depth(level: list[Any], limits: Limits) -> None:
    """Check how deep the heads nest, given the arrays and maps within them.

    What passes can be shown and packed again: Python does neither at any depth.
    """
    for _ in range(DEPTH - 1):
        if len(level) > limits.records:
            raise ProtocolError(f"heads hold more than {limits.records} arrays and maps: send large values as bodies")
        level = [
            part for nest in level for part in (nest.values() if type(nest) is dict else nest) if type(part) in _NESTS
        ]
        if not level:
            return
    raise ProtocolError(f"a head nests arrays and maps more than {DEPTH} deep: send such a value as a body")


def _check_bodies(records: list[Record], limits: Limits) -> None:
    """Check that no body is so large that a receiver might refuse the batch into which it is packed next."""
    for record in records:
        if record[3] is not None and len(record[3]) > limits.body:
            raise ProtocolError(
                f"record {_short(record)}: a body of {len(record[3])} bytes inside the batch, where {limits.body} are "
                f"allowed: send one of {INLINE} bytes or more as the record's first blob"
            )


def fit(body: bytes | None, blobs: Sequence[Blob]) -> tuple[bytes | None, Sequence[Blob]]:
    """Return body and blobs as a record carries them: a body of :data:`INLINE` bytes or more becomes the first blob.

    A nil body that has blobs would be mistaken for one that moved; callers give ``b""`` there.
    """
    if body is not None and len(body) >= INLINE:
        return None, [body, *blobs]
    return body, blobs


def messages(records: Sequence[Record], blobs: Sequence[Blob] = ()) -> list[list[Blob]]:
    """Return the messages that carry ``records`` and their ``blobs`` in order.

    Each has at most :data:`BATCH` records, half of the bytes and all of the blobs that a receiver takes, or one record.
    """
    if len(records) <= BATCH and (len(blobs) <= _DEFAULT_LIMITS.blobs or len(records) == 1):
        frames = encode(records, blobs)
        if len(frames[1]) <= _FULL or len(records) == 1:
            return [frames]
    part = min(BATCH, (len(records) + 1) // 2)
    parts, at = [], 0
    for start in range(0, len(records), part):
        some = records[start : start + part]
        count = sum(record[4] for record in some)
        parts += messages(some, blobs[at : at + count])
        at += count
    return parts


def split_delimiter(frames: Sequence[Blob]) -> tuple[bool, Sequence[Blob]]:
    """Return whether an empty delimiter frame came in front (a REQ peer), and the frames without it."""
    if frames and len(frames[0]) == 0:
        return True, frames[1:]
    return False, frames


def _no_signature(frames: Sequence[Blob]) -> str:
    first = bytes(memoryview(frames[0])[:16]) if frames else b""
    return (
        f"message of {len(frames)} frames starts with {first!r}; expected the signature {SIGNATURE!r}, then one batch "
        "frame: is the peer an OMB/1 peer of this major version?"
    )


class _Brief(reprlib.Repr):
    """Shows the beginning of anything that msgpack can hold, however large or deep it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value) if len(value) <= self.maxother else f"{value[: self.maxother]!r}..."


def _short(record: Any) -> str:
    text = _Brief().repr(record)
    return text if len(text) <= 80 else text[:77] + "..."
