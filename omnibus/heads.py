"""Arrow IPC heads of tensors: made from dtype and shape, read back into a :class:`Layout`; both are cached.

A head is an Arrow schema message followed by the metadata message of one record batch. Head, then body, then
zeros up to a multiple of 8 bytes is an Arrow IPC stream that every Arrow library reads
(``pyarrow.ipc.open_stream``). It has one column, ``tensor``: one row of ``arrow.fixed_shape_tensor`` where
the tensor has two dimensions or more and 1 to 2³¹-1 elements, else one row for each element. What Arrow
cannot say is in the field's metadata, all of it text:

``omnibus.dtype``
    ``float32``, ``bool``, ``datetime64[ns]``, ``S8``, ``U3``, ``V16``, ``bfloat16``, ``float8_e5m2`` …; with
    ``>`` in front where the sender's array was big-endian (the body never is).
``omnibus.shape``
    the logical shape as a JSON array.
``omnibus.order``
    only where the memory is dense but not in C order (Fortran order, ``channels_last``): a JSON array that
    gives for each logical dimension its place among the dimensions of the body, which is in C order (Arrow's
    ``permutation``).
``omnibus.kind``
    ``numpy``, ``torch`` or ``torch.nn.Parameter``: what the receiver makes of it.
``omnibus.device``
    where a torch tensor was, if not on the CPU. It arrives on the CPU.
``omnibus.grad``
    ``1`` for a torch leaf that requires a gradient, which arrives as one.

As Arrow values a bool is a uint8, a complex number two floats (a last dimension of 2), bfloat16 a uint16, a
float8 a uint8, a ``datetime64`` or ``timedelta64`` in s, ms, us or ns a timestamp or a duration and in other
units an int64, and ``S``, ``U`` and ``V`` items are fixed-size binaries (``U`` is UCS-4, little-endian).
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from omnibus.errors import NotPicklable, ProtocolError, UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Layout", "head", "layout", "numpy_dtype", "numpy_name", "torch_storage"]

_CACHED: Final = 1024
_HEAD_BYTES: Final = 16 * 1024
_DIMENSIONS: Final = 64
_LIST_ROWS: Final = 2**31 - 1
_NUMPY_NAME: Final = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|[SUV][1-9][0-9]{0,8}"
    r"|(datetime|timedelta)64(\[[0-9]{0,9}[A-Za-z]{1,2}\])?"
)
_ARROW_TIME: Final = re.compile(r"(datetime|timedelta)64\[(s|ms|us|ns)\]")
_TORCH: Final = {
    **{name: name for name in ("bool", "complex64", "complex128", "float16", "float32", "float64")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bfloat16": "uint16",
    **{f"float8_{form}": "uint8" for form in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
}
"""torch's dtypes that travel, each with the numpy dtype whose memory it shares."""


class Layout(NamedTuple):
    """What a head says, ready for use: how to see a body as an array, and what to make of that array."""

    storage: np.dtype[Any]
    shape: tuple[int, ...]
    """The dimensions in memory, in C order: the logical ones unless the head has an order."""
    nbytes: int
    sizes: frozenset[int]
    """What a body may measure: those bytes, or those padded to 8 or to 64."""
    finish: Callable[[Any], Any] | None
    """Turns the array in memory into the value; ``None`` where it is the value already."""
    writable: bool
    """Whether ``finish`` needs memory that may be written, as torch does."""
    fresh: Callable[[bytes, int], Any]
    """Returns a tensor with its own memory from the body that starts at an offset in ``bytes``."""

    def wrong_size(self, size: int) -> ProtocolError:
        """Return the error for a body of another size."""
        return ProtocolError(
            f"tensor body of {size} bytes; its head says {self.nbytes}, "
            f"for {self.storage} of shape {self.shape}"
        )


@lru_cache(_CACHED)
def head(
    dtype: Any,
    shape: tuple[int, ...],
    order: tuple[int, ...] | None = None,
    kind: str = "",
    device: str = "",
    grad: str = "",
) -> bytes:
    """Return the head of a tensor of this numpy or torch dtype and logical shape.

    The further arguments are the facts of the module's table; an empty ``kind`` follows from the dtype.
    Raises :class:`NotPicklable` for a dtype that does not travel.
    """
    import pyarrow as pa

    torch_like = type(dtype).__module__ == "torch"
    name = torch_storage(dtype)[0] if torch_like else numpy_name(dtype)
    storage = _TORCH.get(name, name) if torch_like else name
    dims = [shape[order.index(place)] for place in range(len(shape))] if order else list(shape)
    column = [*dims, 2] if "complex" in name else dims
    count = math.prod(column)
    nested = len(column) > 1 and 0 < count <= _LIST_ROWS
    value_type = _arrow_type(storage.lstrip(">"))
    if nested:
        places = [*order, *range(len(order), len(column))] if order else None
        value_type = pa.fixed_shape_tensor(value_type, column, permutation=places)
    facts = {"dtype": name, "shape": json.dumps(list(shape)), "order": json.dumps(order) if order else ""}
    facts |= {"kind": kind or ("torch" if torch_like else "numpy"), "device": device, "grad": grad}
    metadata = {f"omnibus.{key}": text for key, text in facts.items() if text}
    schema: bytes = pa.schema([pa.field("tensor", value_type, metadata=metadata)]).serialize().to_pybytes()
    return schema + _batch(count, math.prod(shape) * numpy_dtype(storage).itemsize, nested)


def _batch(count: int, size: int, nested: bool) -> bytes:
    """Return the Arrow message of a record batch whose body is one buffer: ``count`` values, ``size`` bytes.

    pyarrow would want the body, and copy it, to say how long it is. The message is a flatbuffer of fixed
    form, so it is written here: the offsets of its tables and vectors are constants.
    """
    nodes = (
        (1, 0, count, 0) if nested else (count, 0)
    )  # of each level of the column: values, and nulls among them
    buffers = (0, 0) * (len(nodes) // 2) + (
        0,
        size,
    )  # offset and length: an absent validity bitmap a level, the data
    message = struct.pack("<I6HihBxIxxxxq", 16, 12, 24, 4, 6, 8, 16, 12, 4, 3, 28, (size + 7) // 8 * 8)
    message += struct.pack("<5Hxxiqii", 10, 20, 4, 12, 16, 12, nodes[0], 12, 16 + 8 * len(nodes))
    message += struct.pack(f"<xxxxi{len(nodes)}q", len(nodes) // 2, *nodes)
    message += struct.pack(f"<xxxxi{len(buffers)}q", len(buffers) // 2, *buffers)
    return struct.pack("<Ii", 0xFFFFFFFF, len(message)) + message


def _arrow_type(name: str) -> Any:
    """Return the Arrow type of one value, or of one of the two components of a complex one."""
    import pyarrow as pa

    if name.startswith("complex"):
        return pa.float32() if name == "complex64" else pa.float64()
    if time := _ARROW_TIME.fullmatch(name):
        return (pa.timestamp if time[1] == "datetime" else pa.duration)(time[2])
    if name[0] in "SUV":
        return pa.binary(numpy_dtype(name).itemsize)
    return getattr(pa, "uint8" if name == "bool" else "int64" if "time" in name else name)()


@lru_cache(_CACHED)
def numpy_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a numpy dtype on the wire; raises :class:`NotPicklable`, saying what to send."""
    name = dtype.str[1:] if dtype.kind in "SUV" else dtype.name
    if dtype.names or not _NUMPY_NAME.fullmatch(name):
        raise NotPicklable(f"a numpy array of dtype {dtype!r} cannot be sent as a tensor: {_advice(dtype)}")
    return name if dtype.isnative else ">" + name


def _advice(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return "its items are Python objects; send array.tolist(), or convert it to a numeric or 'U' dtype"
    if dtype.names:
        return "send its fields as separate arrays: {name: array[name] for name in array.dtype.names}"
    return "convert it with array.astype(...) or array.view(...) to a fixed-width dtype such as float64"


@lru_cache(_CACHED)
def torch_storage(dtype: Any) -> tuple[str, str]:
    """Return a torch dtype's name, and the numpy dtype whose memory it has; raises :class:`NotPicklable`."""
    name = str(dtype).removeprefix("torch.")
    if name not in _TORCH:
        raise NotPicklable(
            f"a torch tensor of dtype {dtype} cannot be sent: convert it, with .to(torch.float32) for example"
        )
    return name, _TORCH[name]


@lru_cache(_CACHED)
def layout(frame: bytes) -> Layout | None:
    """Return what a head says, or ``None`` for one that Omnibus did not make; raises :class:`ProtocolError`.

    Nothing is allocated by what a head claims: compare ``nbytes`` with the body that came.
    """
    if len(frame) > _HEAD_BYTES:
        return None
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(frame))
        raw = dict(schema.field(0).metadata or {}) if len(schema) == 1 else {}
        facts = {key.decode(): text.decode() for key, text in raw.items()}
    except Exception as error:  # pyarrow has its own classes, and damaged text raises UnicodeError
        raise ProtocolError(f"tensor head of {len(frame)} bytes is not an Arrow schema ({error})") from None
    if "omnibus.dtype" not in facts:
        return None
    try:
        return _layout(facts)
    except (ProtocolError, UsageError):
        raise
    except Exception as error:  # JSON that is none, wrong types in it, units that numpy does not know
        raise ProtocolError(
            f"tensor head makes no sense: {facts} ({type(error).__name__}: {error})"
        ) from None


def _layout(facts: dict[str, str]) -> Layout:
    import numpy as np

    name, kind = facts["omnibus.dtype"], facts.get("omnibus.kind", "numpy")
    shape = tuple(json.loads(facts["omnibus.shape"]))
    if len(shape) > _DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
        raise ProtocolError(
            f"tensor of shape {str(shape)[:80]}; expected up to {_DIMENSIONS} lengths of 0 or more"
        )
    straight = tuple(range(len(shape)))
    order = tuple(json.loads(facts["omnibus.order"])) if "omnibus.order" in facts else straight
    if sorted(order) != list(straight):
        raise ProtocolError(
            f"tensor order {str(order)[:80]} is no permutation of the {len(shape)} dimensions"
        )
    places = None if order == straight else order
    finish: Callable[[Any], Any] | None
    if kind == "numpy":
        dtype = numpy_dtype(name)
        storage, finish = dtype.newbyteorder("="), _numpy_finish(dtype, places)
    elif kind in ("torch", "torch.nn.Parameter") and name in _TORCH:
        storage = numpy_dtype(_TORCH[name])
        finish = _torch_finish(name, places, kind != "torch", facts.get("omnibus.grad") == "1")
    else:
        raise ProtocolError(
            f"tensor of kind {kind!r} and dtype {name!r}: unknown here; is the sender a newer version?"
        )
    if math.prod(length or 1 for length in shape) * storage.itemsize >= 2**63:
        raise ProtocolError(f"tensor of {name}, shape {str(shape)[:80]}: larger than any memory")
    dims = tuple(shape[order.index(place)] for place in straight)
    nbytes = math.prod(shape) * storage.itemsize
    sizes = frozenset({nbytes, -(-nbytes // 8) * 8, -(-nbytes // 64) * 64})
    ndarray = np.ndarray

    def fresh(content: bytes, offset: int) -> Any:
        if len(content) - offset not in sizes:
            raise found.wrong_size(len(content) - offset)
        array = ndarray(dims, storage, content, offset).copy()
        return array if finish is None else finish(array)

    found = Layout(storage, dims, nbytes, sizes, finish, kind != "numpy", fresh)
    return found


@lru_cache(_CACHED)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name on the wire, never one of objects; raises :class:`ProtocolError`."""
    import numpy as np

    plain = name.removeprefix(">")
    if not _NUMPY_NAME.fullmatch(plain):
        raise ProtocolError(f"numpy dtype {name[:80]!r} is unknown here; is the sender a newer version?")
    dtype = np.dtype(plain)
    return dtype.newbyteorder(">") if plain != name else dtype


def _numpy_finish(dtype: np.dtype[Any], places: tuple[int, ...] | None) -> Callable[[Any], Any] | None:
    if dtype.isnative and places is None and dtype.kind != "U":
        return None

    def finish(array: Any) -> Any:
        # numpy fails with a SystemError when it meets a number that no Python string can hold
        if dtype.kind == "U" and array.size and array.reshape(-1).view("u4").max() > 0x10FFFF:
            raise ProtocolError(f"tensor of {dtype} holds a number that is not a Unicode code point")
        array = array if dtype.isnative else array.astype(dtype)
        return array if places is None else array.transpose(places)

    return finish


def _torch_finish(
    name: str, places: tuple[int, ...] | None, parameter: bool, grad: bool
) -> Callable[[Any], Any]:
    try:
        import torch
    except ImportError:
        raise UsageError(
            "a torch tensor arrived, but torch cannot be imported here: pip install 'omnibus[torch]'"
        ) from None
    dtype = getattr(torch, name)

    def finish(array: Any) -> Any:
        # from_numpy gives an empty tensor strides of 0, which view() of another item size refuses
        tensor = torch.from_numpy(array) if array.size else torch.empty(array.shape, dtype=dtype)
        if tensor.dtype != dtype:
            tensor = tensor.view(dtype)
        if places is not None:
            tensor = tensor.permute(places)
        if parameter:
            return torch.nn.Parameter(tensor, requires_grad=grad)
        return tensor.requires_grad_() if grad else tensor

    return finish
