"""The msgpack tree and the blobs of :mod:`omnibus.payload` → Python values: the half that receives.

What comes in may be anything. Whatever a function here raises, :func:`omnibus.payload.decode` makes a
:class:`ProtocolError` of it; none allocates by a size that was only claimed.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

from omnibus import lowering, pickling, tensors
from omnibus.errors import ProtocolError, Unauthorized
from omnibus.heads import layout, numpy_dtype
from omnibus.tensors import Buffer

__all__ = ["READERS", "Reader"]

_PAIR: Final = struct.Struct(">II")
_DOUBLES: Final = struct.Struct(">dd")
_ZONED: Final = re.compile(r"([^\[]+)\[([A-Za-z0-9_+/-]{1,64})\]")


class Reader:
    """The hook that msgpack calls for each ext value, at one depth of tuples within tuples."""

    __slots__ = ("blobs", "code", "deeper", "depth")

    def __init__(self, blobs: Sequence[Buffer], code: bool, depth: int) -> None:
        self.blobs = blobs
        self.code = code
        self.depth = depth
        self.deeper: Reader | None = None

    def __call__(self, ext: int, data: bytes) -> Any:
        """Return the value of an ext type and its payload."""
        if ext not in _LIFT:
            raise ProtocolError(f"ext type {ext} is unknown here; is the sender a newer version?")
        return _LIFT[ext](self, data)

    def nested(self, data: bytes) -> Any:
        """Return the msgpack value inside an ext value."""
        if self.deeper is None:
            if self.depth >= lowering.DEPTH:
                raise ProtocolError(f"value is nested more than {lowering.DEPTH} levels deep")
            self.deeper = Reader(self.blobs, self.code, self.depth + 1)
        return msgpack.unpackb(data, strict_map_key=False, ext_hook=self.deeper, timestamp=3)

    def items(self, data: bytes, count: int | None = None) -> list[Any]:
        """Return the msgpack array, of ``count`` items, inside an ext value."""
        found = self.nested(data)
        if type(found) is not list or (count is not None and len(found) != count):
            raise ProtocolError(
                f"ext value holds {str(found)[:80]}; expected an array" + (f" of {count}" if count else "")
            )
        return found

    def blob(self, index: Any) -> Buffer:
        """Return the record's blob of that number."""
        if type(index) is not int or not 0 <= index < len(self.blobs):
            raise ProtocolError(
                f"value refers to blob {str(index)[:40]}, but its record has {len(self.blobs)}"
            )
        return self.blobs[index]

    def big(self, data: Any) -> Buffer:
        """Return what :meth:`Writer.big` was given."""
        return data if type(data) is bytes else self.blob(data)


def _lift_tensor(reader: Reader, data: bytes) -> Any:
    seen = _seen.get(len(data))
    if seen is not None and data.startswith(seen[0]):  # cheaper than to cut out the head, and to hash it
        return seen[1](data, len(seen[0]))
    size, index = _PAIR.unpack_from(data)
    if not size:
        return tensors.decode(reader.blob(index), reader.blob(index + 1))
    found = layout(data[8 : 8 + size])
    if found is None:
        return tensors.decode(data[8:], b"")
    if len(_seen) >= _SEEN:
        _seen.clear()
    _seen[len(data)] = data[: 8 + size], found.fresh
    return found.fresh(data, 8 + size)


_SEEN: Final = 256
_seen: Final[dict[int, tuple[bytes, Callable[[bytes, int], Any]]]] = {}
"""By the length of an inline tensor: what the last of it began with, and what makes a tensor of the rest."""


def _lift_pickle(reader: Reader, data: bytes) -> Any:
    if not reader.code:
        raise Unauthorized(
            "a pickled value came over a link that may not carry code; send plain values, or connect with "
            "the mesh's key"
        )
    stored, first, count = reader.items(data, 3)
    if count:
        reader.blob(first), reader.blob(first + count - 1)
    return pickling.loads(bytes(reader.big(stored)), reader.blobs[first : first + count], "a value")


def _lift_time(reader: Reader, data: bytes) -> Any:
    kind, _, text = data.decode().partition(" ")
    if kind == "delta":
        days, seconds, microseconds = map(int, text.split())
        return datetime.timedelta(days, seconds, microseconds)
    zoned = _ZONED.fullmatch(text)
    if kind == "datetime" and zoned:
        return _in_zone(datetime.datetime.fromisoformat(zoned[1]), zoned[2])
    if kind not in ("date", "time", "datetime"):
        raise ProtocolError(f"time of the form {kind[:20]!r} is unknown here; is the sender a newer version?")
    return getattr(datetime, kind).fromisoformat(text)


def _in_zone(moment: datetime.datetime, key: str) -> datetime.datetime:
    """Return the moment in a named zone, or with its offset from UTC where the zone is unknown here."""
    import zoneinfo

    try:
        zone = zoneinfo.ZoneInfo(key)
    except (KeyError, OSError, ValueError):  # unknown, no database of zones, no name of a zone
        return moment
    local = moment.replace(tzinfo=zone)
    return local if local.utcoffset() == moment.utcoffset() else local.replace(fold=1)


def _lift_scalar(reader: Reader, data: bytes) -> Any:
    import numpy as np

    name, _, value = data.partition(b" ")
    if name == b"U":
        return np.str_(value.decode("utf-8", "surrogatepass"))
    if name == b"S":
        return np.bytes_(value)
    dtype = numpy_dtype(name.decode())
    if len(value) != dtype.itemsize:
        raise ProtocolError(f"numpy scalar of {len(value)} bytes; {dtype} has {dtype.itemsize}")
    return np.frombuffer(value, dtype)[0]


def _lift_arrow(reader: Reader, data: bytes) -> Any:
    kind, stream = reader.items(data, 2)
    if type(kind) is not str:
        raise ProtocolError(f"Arrow value of the kind {str(kind)[:20]!r}; expected text")
    return tensors.decode_arrow(kind, reader.big(stream), trusted=reader.code)


_LIFT: Final[dict[int, Callable[[Reader, bytes], Any]]] = {
    lowering.TUPLE: lambda reader, data: tuple(reader.items(data)),
    lowering.SET: lambda reader, data: set(reader.items(data)),
    lowering.FROZENSET: lambda reader, data: frozenset(reader.items(data)),
    lowering.INTEGER: lambda reader, data: int.from_bytes(data, "big", signed=True),
    lowering.COMPLEX: lambda reader, data: complex(*_DOUBLES.unpack(data)),
    lowering.BYTES: lambda reader, data: bytes(reader.blob(int.from_bytes(data, "big"))),
    lowering.TENSOR: _lift_tensor,
    lowering.PICKLE: _lift_pickle,
    lowering.TIME: _lift_time,
    lowering.SCALAR: _lift_scalar,
    lowering.ARROW: _lift_arrow,
    lowering.TEXT: lambda reader, data: data.decode("utf-8", "surrogatepass"),
}

READERS: Final = {code: Reader((), code, 0) for code in (False, True)}
"""The readers of records without blobs, which is most."""
