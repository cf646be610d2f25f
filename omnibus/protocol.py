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

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgpack

from omnibus.errors import ProtocolError

__all__ = [
    "BATCH",
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
    "split_delimiter",
]

SIGNATURE: Final = b"OMB1"
VERSION: Final = 1
BATCH: Final = 128
"""Records that a sender packs into one message before it starts the next."""
INLINE: Final = 64 * 1024
"""Bodies of at least so many bytes travel as their record's first blob, not inside the batch."""

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

    ``batch_bytes``: size of the msgpack frame. ``records`` and ``blobs``: how many one message may hold. ``name``:
    length of a name, a topic or a method in characters. ``kinds``: kinds that a session may have defined at a time.
    ``window_tasks`` and ``window_bytes``: unfinished work of one client in one lane. ``message_bytes``: size of any
    one frame.
    """

    batch_bytes: int = 32 * 1024 * 1024
    records: int = 65_536
    blobs: int = 16_384
    name: int = 256
    kinds: int = 4_096
    window_tasks: int = 1_000_000
    window_bytes: int = 1 << 30
    message_bytes: int = 8 << 30


_DEFAULT_LIMITS: Final = Limits()


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
    return records


def _check(records: list[Any], blobs: int, limits: Limits) -> None:
    """Check every record's fields, and the sum of their blobs against the number of frames that came."""
    owned = 0
    for record in records:
        if type(record) is not list or len(record) != 5:
            raise ProtocolError(f"record {_short(record)} is not an array of five fields [verb, id, head, body, blobs]")
        verb, about, _, body, count = record
        if type(verb) is not int or type(about) is not int or type(count) is not int or about < 0 or count < 0:
            raise ProtocolError(f"record {_short(record)}: verb, id and blobs must be non-negative integers")
        if body is not None and type(body) is not bytes:
            raise ProtocolError(f"record {_short(record)}: the body must be a msgpack bin or nil")
        owned += count
    if owned != blobs:
        raise ProtocolError(f"records own {owned} blobs, but {blobs} blob frames came with them")
    if blobs > limits.blobs:
        raise ProtocolError(f"message of {blobs} blobs; at most {limits.blobs} are allowed: send less at a time")


def fit(body: bytes | None, blobs: Sequence[Blob]) -> tuple[bytes | None, Sequence[Blob]]:
    """Return body and blobs as a record carries them: a body of :data:`INLINE` bytes or more becomes the first blob.

    A nil body that has blobs would be mistaken for one that moved; callers give ``b""`` there.
    """
    if body is not None and len(body) >= INLINE:
        return None, [body, *blobs]
    return body, blobs


def split_delimiter(frames: Sequence[Blob]) -> tuple[bool, Sequence[Blob]]:
    """Return whether an empty delimiter frame came in front (a REQ peer), and the frames without it."""
    if frames and len(frames[0]) == 0:
        return True, frames[1:]
    return False, frames


def _no_signature(frames: Sequence[Blob]) -> str:
    first = bytes(frames[0])[:16] if frames else b""
    return (
        f"message of {len(frames)} frames starts with {first!r}; expected the signature {SIGNATURE!r}, then one batch "
        "frame: is the peer an OMB/1 peer of this major version?"
    )


def _short(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= 80 else text[:77] + "..."
