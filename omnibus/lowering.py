"""Python values → the msgpack tree and the blobs of :mod:`omnibus.payload`: the half that sends.

Each type of value has one function, found in a table; a library's types enter the table when the first of
their values turns up, by the name of their module, so that nothing is imported for them.
"""

from __future__ import annotations

import datetime
import functools
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import msgpack

from omnibus import pickling, tensors
from omnibus.errors import NotPicklable
from omnibus.heads import numpy_name
from omnibus.tensors import Buffer

__all__ = [
    "ARROW",
    "BLOB",
    "BYTES",
    "COMPLEX",
    "DEPTH",
    "FROZENSET",
    "IDLE",
    "INLINE",
    "INTEGER",
    "PICKLE",
    "SCALAR",
    "SET",
    "TENSOR",
    "TEXT",
    "TIME",
    "TUPLE",
    "Writer",
    "holds_blob",
    "pack",
    "try_pack",
]

TUPLE, SET, FROZENSET, INTEGER, COMPLEX, BYTES, TENSOR, PICKLE, TIME, SCALAR, ARROW, TEXT = range(1, 13)

BLOB: Final = 64 * 1024
"""Bytes objects, pickles and Arrow streams of so many bytes or more travel as blobs."""
INLINE: Final = 32 * 1024
"""Tensors of up to so many bytes travel in the body: below that, copying costs less than two frames."""
DEPTH: Final = 100
"""How many lists, maps, tuples and sets may stand within each other."""

_ATOMS: Final = frozenset({float, bool, type(None)})
_CASTS: Final = frozenset("?cbBhHiIlLqQnNfd")
_BYTES: Final = frozenset({bytes, bytearray, memoryview})
_ExtType: Final = msgpack.ExtType
_new_tuple: Final = tuple.__new__
_CONTAINERS: Final = frozenset({list, dict})
_PAIR: Final = struct.Struct(">II")
_NUMBER: Final = struct.Struct(">I")
_DOUBLES: Final = struct.Struct(">dd")

IDLE: Final[list[Any]] = []
"""Packers that are not in use. A packer serves one call at a time; both operations on the list are atomic."""


def pack(tree: Any) -> bytes:
    """Return the msgpack of a tree that holds nothing else than what msgpack can pack."""
    try:
        packer = IDLE.pop()
    except IndexError:
        packer = msgpack.Packer(strict_types=True, buf_size=4096)
    try:
        body: bytes = packer.pack(tree)
    except ValueError as error:  # a text or an array of 4 GiB
        raise NotPicklable(
            f"a value is too large for one message: {error}; send it in parts, or as an array"
        ) from None
    if len(body) < BLOB:  # a packer keeps the memory of the largest tree that it packed
        IDLE.append(packer)
    return body


def try_pack(tree: Any) -> bytes | None:
    """Return the msgpack of a value as it is.

    ``None`` where it holds what msgpack cannot pack, or what should be a blob.
    """
    try:
        packer = IDLE.pop()
    except IndexError:
        packer = msgpack.Packer(strict_types=True, buf_size=4096)
    try:
        body: bytes = packer.pack(tree)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # an unknown type; text or nesting; a number of more than 64 bits
        return None
    if len(body) < BLOB:
        IDLE.append(packer)
        return body
    return None if holds_blob(tree) else body


def holds_blob(tree: Any) -> bool:
    """Say whether a tree that msgpack can pack holds bytes that should be a blob.

    Much faster than a look at each item by itself.
    """
    found = [tree] if type(tree) in (list, dict) else [[tree]]
    for part in found:  # which grows
        for items in (part.keys(), part.values()) if type(part) is dict else (part,):
            kinds = set(map(type, items))
            if kinds & _BYTES and any(
                memoryview(item).nbytes >= BLOB for item in items if type(item) in _BYTES
            ):
                return True
            if kinds & _CONTAINERS:
                found += [item for item in items if type(item) in _CONTAINERS]
    return False


class _Refused(Exception):
    """A part of a value has no encoding without a pickle; ``path`` grows outwards while it unwinds."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        self.path: list[str] = []


class Writer:
    """Turns values into msgpack trees, and collects their blobs."""

    __slots__ = ("blobs", "code")

    def __init__(self, code: bool) -> None:
        self.code = code
        self.blobs: list[Buffer] = []

    def top(self, value: Any, path: str) -> Any:
        """Return the tree of a whole value or argument: one pickle where it cannot go otherwise, and may."""
        mark = len(self.blobs)
        kind = type(value)
        try:
            return (_LOWER.get(kind) or _handler(kind))(self, value, 0)
        except _Refused as refusal:
            del self.blobs[mark:]
            if refusal.final or not self.code:
                where = path + "".join(reversed(refusal.path))
                raise NotPicklable(f"{where} cannot be sent: {refusal}") from None
        data, buffers = pickling.dumps(value, path)
        first = len(self.blobs)
        self.blobs += buffers
        return msgpack.ExtType(PICKLE, pack([self.big(data), first, len(buffers)]))

    def big(self, data: Buffer) -> Any:
        """Return ``data`` for the tree where it is small, else the number of the blob that it becomes."""
        if len(data) < BLOB:
            return data
        self.blobs.append(data)
        return len(self.blobs) - 1

    def lower(self, value: Any, depth: int) -> Any:
        """Return the tree of a part of a value."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        return (_LOWER.get(kind) or _handler(kind))(self, value, depth)


_Handler = Callable[[Writer, Any, int], Any]


def _ext(code: int, data: bytes) -> msgpack.ExtType:
    # half the price of ExtType's own constructor, whose checks of the two types are not needed here
    return _new_tuple(_ExtType, (code, data))


def _lower_int(writer: Writer, value: int, depth: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return _ext(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _lower_str(writer: Writer, value: str, depth: int) -> Any:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return _ext(TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _lower_bytes(writer: Writer, value: Any, depth: int) -> Any:
    view = memoryview(value)
    if view.nbytes < BLOB:
        return bytes(value)
    if type(value) is memoryview and view.c_contiguous and view.format in _CASTS:
        value = view.cast("B")
    elif type(value) is not bytes:  # a bytearray must not be locked against resizing, nor a view with gaps go
        value = bytes(value)
    writer.blobs.append(value)
    return _ext(BYTES, _NUMBER.pack(len(writer.blobs) - 1))


def _lower_list(writer: Writer, value: Any, depth: int) -> Any:
    if depth >= DEPTH:
        raise _Refused(f"it is nested more than {DEPTH} levels deep, or contains itself", final=True)
    if len(value) > 16 and _is_plain(value):
        return value
    tree = []
    for place, item in enumerate(value):
        try:
            tree.append(writer.lower(item, depth + 1))
        except _Refused as refusal:
            refusal.path.append(f"[{place}]")
            raise
    return tree


def _is_plain(value: Any) -> bool:
    """Say whether a long list of numbers or of text may go as it is, faster than by a look at each item."""
    kinds = set(map(type, value)) - _ATOMS
    if kinds == {int}:
        numbers = [item for item in value if type(item) is int]
        return min(numbers) >= -(1 << 63) and max(numbers) < 1 << 64
    return not kinds or (kinds == {str} and "".join(item for item in value if type(item) is str).isascii())


def _lower_tuple(writer: Writer, value: Any, depth: int) -> Any:
    return _ext(TUPLE, pack(list(_lower_list(writer, value, depth))))


def _lower_set(writer: Writer, value: Any, depth: int) -> Any:
    return _ext(SET if type(value) is set else FROZENSET, pack(_lower_list(writer, list(value), depth)))


def _lower_dict(writer: Writer, value: dict[Any, Any], depth: int) -> Any:
    if depth >= DEPTH:
        raise _Refused(f"it is nested more than {DEPTH} levels deep, or contains itself", final=True)
    tree = {}
    for key, item in value.items():
        try:
            name = key if type(key) is str and key.isascii() else writer.lower(key, depth + 1)
            tree[name] = writer.lower(item, depth + 1)
        except _Refused as refusal:
            refusal.path.append(f"[{pickling.short(key)}]")
            raise
    return tree


def _lower_complex(writer: Writer, value: complex, depth: int) -> Any:
    return _ext(COMPLEX, _DOUBLES.pack(value.real, value.imag))


def _lower_time(writer: Writer, value: Any, depth: int) -> Any:
    kind = type(value).__name__
    if kind == "timedelta":
        return _ext(TIME, f"delta {value.days} {value.seconds} {value.microseconds}".encode())
    zone, name = getattr(value, "tzinfo", None), ""
    if zone is not None and type(zone) is not datetime.timezone:
        key = getattr(zone, "key", None)
        if kind == "time" or type(zone).__name__ != "ZoneInfo" or not key:
            raise _Refused(
                f"a {kind} in the time zone {zone!r}; send it in UTC, or in a zoneinfo.ZoneInfo zone"
            )
        name = f"[{key}]"
    return _ext(TIME, f"{kind} {value.isoformat()}{name}".encode())


def _lower_array(writer: Writer, value: Any, depth: int) -> Any:
    dtype = value.dtype
    if value.nbytes <= INLINE and dtype.isnative and value.flags.c_contiguous:
        try:
            data = _framed_head(dtype, value.shape) + value.tobytes()
        except NotPicklable as error:
            raise _Refused(str(error)) from None
        return _ext(TENSOR, data if len(data) % 8 == 0 else data + bytes(-len(data) % 8))
    return _tensor(writer, value, tensors.prepare_numpy)


@functools.lru_cache(1024)
def _framed_head(dtype: Any, shape: tuple[int, ...]) -> bytes:
    head = tensors.head(dtype, shape)
    return _PAIR.pack(len(head), 0) + head


def _lower_torch(writer: Writer, value: Any, depth: int) -> Any:
    return _tensor(writer, value, tensors.prepare_torch)


def _tensor(writer: Writer, value: Any, prepare: Callable[[Any], tuple[bytes, Any]]) -> Any:
    try:
        head, array = prepare(value)
    except NotPicklable as error:
        raise _Refused(str(error)) from None
    size = array.nbytes
    if size <= INLINE:
        padding = b"" if size % 8 == 0 else bytes(-size % 8)
        return _ext(TENSOR, b"".join((_PAIR.pack(len(head), 0), head, array.tobytes(), padding)))
    writer.blobs += (head, tensors.body(array))
    return _ext(TENSOR, _PAIR.pack(0, len(writer.blobs) - 2))


def _lower_scalar(writer: Writer, value: Any, depth: int) -> Any:
    name = value.dtype.kind
    if name in "US":
        # by str's and bytes' own methods: numpy's drop zeros at the end
        data = str.encode(value, "utf-8", "surrogatepass") if name == "U" else bytes.__add__(value, b"")
    else:
        try:
            name, data = numpy_name(value.dtype), value.tobytes()
        except NotPicklable as error:
            raise _Refused(str(error)) from None
    return _ext(SCALAR, b"%s %s" % (name.encode(), data))


def _lower_arrow(writer: Writer, value: Any, depth: int) -> Any:
    try:
        kind, stream = tensors.encode_arrow(value)
    except NotPicklable as error:
        raise _Refused(str(error)) from None
    return _ext(ARROW, pack([kind, writer.big(stream)]))


def _lower_other(writer: Writer, value: Any, depth: int) -> Any:
    kind = type(value)
    raise _Refused(
        f"{kind.__module__}.{kind.__qualname__} is not plain data, and pickles do not travel on this link; "
        "send numbers, text, bytes, dates, lists, tuples, sets, dicts, arrays or tensors made from it, "
        "or connect with the mesh's key"
    )


def _lower_atom(writer: Writer, value: Any, depth: int) -> Any:
    return value


_LOWER: Final[dict[type, _Handler]] = {
    float: _lower_atom,
    bool: _lower_atom,
    type(None): _lower_atom,
    int: _lower_int,
    str: _lower_str,
    bytes: _lower_bytes,
    bytearray: _lower_bytes,
    memoryview: _lower_bytes,
    list: _lower_list,
    dict: _lower_dict,
    tuple: _lower_tuple,
    set: _lower_set,
    frozenset: _lower_set,
    complex: _lower_complex,
    datetime.datetime: _lower_time,
    datetime.date: _lower_time,
    datetime.time: _lower_time,
    datetime.timedelta: _lower_time,
}


def _handler(kind: type) -> _Handler:
    """Return how values of a library's type are lowered, found by its module, so that nothing is imported."""
    root = kind.__module__.partition(".")[0]
    library: Any = sys.modules.get(root)
    found = _lower_other
    if root == "numpy" and library is not None:
        if kind in (library.ndarray, library.memmap):
            found = _lower_array
        elif issubclass(kind, library.generic):
            found = _lower_scalar
    elif root == "torch" and library is not None:
        if kind in (library.Tensor, library.nn.Parameter):
            found = _lower_torch
    elif root == "pyarrow" and library is not None:
        found = _lower_arrow
    if found is not _lower_other:
        _LOWER[kind] = found  # only types of these libraries: a bounded number
    return found
