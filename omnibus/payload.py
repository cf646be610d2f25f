"""Python values ⇄ a msgpack tree, and blobs for what is big. No I/O.

nil, booleans, 64-bit integers, floats, text, bytes, lists and maps are msgpack's own; what msgpack lacks is
an ext type:

==== ================== =====================================================================================
code value              payload; numbers are big-endian, *blob* is a number: which blob of the record, from 0
==== ================== =====================================================================================
1    tuple              msgpack array
2    set                msgpack array
3    frozenset          msgpack array
4    big integer        two's complement
5    complex            two float64
6    big bytes          uint32: blob
7    tensor             uint32: length of the head, uint32: 0, the head, the body padded to 8 bytes;
                        or uint32: 0, uint32: blob of the head, and the next blob is the body (see
                        :mod:`omnibus.heads`)
8    pickle             msgpack array: the pickle or its blob, first blob of its buffers, number of these
9    date and time      text: ``date``, ``time``, ``datetime`` and ISO 8601, perhaps with ``[Zone/Name]``;
                        or ``delta`` days seconds microseconds
10   numpy scalar       text: dtype; a space; the value in little-endian order, for ``U`` in UTF-8
11   Arrow value        msgpack array: array, chunked, batch or table; the Arrow stream or its blob
12   text               UTF-8 with lone surrogates, which msgpack's text cannot hold
-1   time stamp         msgpack's own; read as a datetime in UTC, not written
==== ================== =====================================================================================

A call is an array of its positional arguments, or the map ``{"args": [...], "kwargs": {...}}``. A
``bytearray`` or a ``memoryview`` arrives as ``bytes``. Other values travel as pickles where both ends may
ship code (``code=True``): the whole value or argument that holds one, so that what it shares inside stays
shared. Nothing is unpickled where ``code`` is false.

A blob is the caller's own memory: it must not be written to until the message was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from omnibus.errors import OmnibusError, ProtocolError
from omnibus.faults import encode_error, rebuild_cause
from omnibus.lifting import READERS, Reader
from omnibus.lowering import BLOB, IDLE, INLINE, Writer, holds_blob, pack, try_pack
from omnibus.tensors import Buffer

__all__ = [
    "BLOB",
    "INLINE",
    "decode",
    "decode_call",
    "encode",
    "encode_call",
    "encode_error",
    "rebuild_cause",
]

_FAST: Final = frozenset({int, str, float, bool, type(None), list, dict})
"""Types that msgpack may well be able to pack as they are."""
_TEXT: Final = frozenset({str})
_idle: Final = IDLE  # Python 3.11 compiles calls of an imported name's methods to slower code


def encode(value: Any, *, code: bool) -> tuple[bytes, list[Buffer]]:
    """Return the body and the blobs of one value; ``code`` says whether it may hold a pickle.

    Raises :class:`NotPicklable`, which names the part that cannot be sent by its path, such as
    ``value['x'][2]``.
    """
    if type(value) in _FAST:
        body = try_pack(value)
        if body is not None:
            return body, []
    writer = Writer(code)
    return pack(writer.top(value, "value")), writer.blobs


def encode_call(args: Sequence[Any], kwargs: dict[str, Any], *, code: bool) -> tuple[bytes, list[Buffer]]:
    """Return the body and the blobs of a call's arguments, as :func:`encode` does for one value."""
    for arg in args:
        if type(arg) not in _FAST:
            break
    else:
        tree = {"args": list(args), "kwargs": kwargs} if kwargs else list(args)
        try:  # as try_pack does; this is the call that each task pays for
            packer = _idle.pop()
            body: bytes = packer.pack(tree)
        except (IndexError, TypeError, ValueError, OverflowError):
            pass  # and pack, below, leaves an idle packer for the next call
        else:
            if len(body) < BLOB:
                _idle.append(packer)
                return body, []
            if not holds_blob(tree):
                return body, []
    return _encode_parts(args, kwargs, code)


def _encode_parts(args: Sequence[Any], kwargs: dict[str, Any], code: bool) -> tuple[bytes, list[Buffer]]:
    writer = Writer(code)
    tree: Any = [writer.top(arg, f"args[{place}]") for place, arg in enumerate(args)]
    if kwargs:
        tree = {
            "args": tree,
            "kwargs": {name: writer.top(arg, f"kwargs[{name!r}]") for name, arg in kwargs.items()},
        }
    return pack(tree), writer.blobs


def decode(body: Buffer, blobs: Sequence[Buffer], *, code: bool) -> Any:
    """Return the value of a body and its record's blobs; ``code`` says whether a pickle in it may be loaded.

    Raises :class:`ProtocolError` for what is no value, :class:`Unauthorized` for a pickle that may not be
    loaded, :class:`SetupFailed` for one that cannot, and :class:`UsageError` for a torch tensor where torch
    is not installed.
    """
    reader = Reader(blobs, code, 0) if blobs else READERS[code]
    try:
        return msgpack.unpackb(body, strict_map_key=False, ext_hook=reader, timestamp=3)
    except OmnibusError:
        raise
    except (
        Exception
    ) as error:  # msgpack's own classes, unhashable keys, numbers out of range, a MemoryError …
        raise ProtocolError(
            f"body of {len(body)} bytes is not a value ({type(error).__name__}: {str(error)[:200]}); "
            "expected one msgpack value with the ext types of OMB/1"
        ) from None


def decode_call(body: Buffer, blobs: Sequence[Buffer], *, code: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call; raises what :func:`decode` raises."""
    call = decode(body, blobs, code=code)
    if type(call) is list:
        return call, {}
    if type(call) is dict:
        args, kwargs = call.get("args", []), call.get("kwargs", {})
        if type(args) is list and type(kwargs) is dict and _TEXT.issuperset(map(type, kwargs)):
            return args, kwargs
    raise ProtocolError(
        f"body of a call is a {type(call).__name__}; expected an array of arguments, or a map of 'args' "
        "(array) and 'kwargs' (map from text)"
    )
