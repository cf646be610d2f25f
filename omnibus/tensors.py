"""numpy, torch and pyarrow values ⇄ frames.

A tensor is two frames: an Arrow IPC *head*, which :mod:`omnibus.heads` makes and reads, and the tensor's own
memory as the *body*. The head depends on dtype and shape alone and is cached on both sides, so on a hot path
nothing is computed and nothing copied. A pyarrow array, table or record batch is one frame, a whole Arrow IPC
stream.

What arrives: a numpy array that is aligned, and either writable or plainly flagged read-only; a torch tensor
on the CPU, a leaf that requires a gradient where the sender's was one. A tensor inside an autograd graph
arrives detached: the graph cannot travel. Fortran order and ``channels_last`` are kept, and so is big-endian
order in numpy; other strides become C order.

numpy, torch and pyarrow are imported only by the functions that need them, and torch only where a torch
tensor turns up.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from omnibus.errors import NotPicklable, ProtocolError
from omnibus.heads import Layout, head, layout, torch_storage

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "COPY",
    "Buffer",
    "body",
    "decode",
    "decode_arrow",
    "encode",
    "encode_arrow",
    "head",
    "prepare",
    "prepare_numpy",
    "prepare_torch",
]

Buffer: TypeAlias = Any
"""Anything with the buffer protocol: ``bytes``, a ``memoryview``, a ``zmq.Frame``."""

COPY: Final = 64 * 1024
"""Bodies below so many bytes are copied on arrival, which is cheaper than to keep a frame."""


def encode(value: Any) -> tuple[bytes, memoryview]:
    """Return the head and the body of a ``numpy.ndarray``, ``torch.Tensor`` or ``torch.nn.Parameter``.

    The body is the tensor's own memory: do not write to it until the frames were sent. Copied first is only
    what is not dense (a slice with gaps, a negative or zero stride), is big-endian, or is on a device.

    Raises :class:`NotPicklable` for what has no fixed-width dense memory, saying what to send instead.
    """
    frame, array = prepare(value)
    return frame, body(array)


def prepare(value: Any) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return the head of a tensor, and a C-contiguous array whose bytes are its body."""
    return (prepare_torch if type(value).__module__.startswith("torch") else prepare_numpy)(value)


def prepare_numpy(value: Any) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return what :func:`prepare` does, for an array of numpy's."""
    dtype = value.dtype
    if dtype.isnative and value.flags.c_contiguous:
        return head(dtype, value.shape), value
    places = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
    array = value.transpose(places)
    order = _inverse(places) if array.flags.c_contiguous else None
    if order is None:
        array = value.copy("C")
    frame = head(dtype, value.shape, order)
    return frame, array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def body(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a C-contiguous array as a flat view of bytes."""
    flat: Any = array.reshape(-1).view("u1") if array.size else b""
    return memoryview(flat)


def _inverse(places: list[int]) -> tuple[int, ...] | None:
    """Return the order that undoes a transposition, or ``None`` where it moves nothing."""
    order = tuple(places.index(axis) for axis in range(len(places)))
    return order if list(order) != sorted(order) else None


def prepare_torch(value: Any) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return what :func:`prepare` does, for a tensor or a parameter of torch's."""
    torch: Any = sys.modules["torch"]
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        raise _no_dense_memory(value)
    name, storage = torch_storage(value.dtype)
    facts: tuple[str, ...] = ()
    tensor = value
    if value.requires_grad or not value.is_cpu or type(value) is not torch.Tensor:
        kind = "" if type(value) is torch.Tensor else "torch.nn.Parameter"
        facts = (
            kind,
            "" if value.is_cpu else str(value.device),
            "1" if value.requires_grad and value.is_leaf else "",
        )
        tensor = value.detach().cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    order = None
    if not tensor.is_contiguous():
        places = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        flipped = tensor.permute(places)
        order = _inverse(places) if flipped.is_contiguous() else None
        tensor = tensor.contiguous() if order is None else flipped
    frame = head(value.dtype, value.shape, order, *facts)
    return frame, (tensor if name == storage else tensor.view(getattr(torch, storage))).numpy()


def _no_dense_memory(value: Any) -> NotPicklable:
    forms = {"quantised": value.is_quantized, "nested": value.is_nested, "meta": value.is_meta}
    form = next((form for form, found in forms.items() if found), str(value.layout).removeprefix("torch."))
    hints = {"quantised": "its .dequantize()", "nested": "its .unbind()", "meta": "its shape and dtype"}
    hint = hints.get(form, "its .to_dense(), or its indices and values")
    return NotPicklable(f"a {form} torch tensor has no dense memory to send: send {hint}")


def decode(frame: Buffer, content: Buffer) -> Any:
    """Return the tensor whose head is ``frame`` and whose body is ``content``.

    A body of :data:`COPY` bytes or more is not copied: the tensor looks into ``content`` and keeps it alive.
    It is writable where ``content`` is; else a numpy array is flagged read-only, and a torch tensor, which
    has no such flag, is a copy. It is a view all the same where the object that exports the memory has an
    attribute ``copy_on_write`` that is true: a stray write then touches a private page. What is out of
    alignment is copied too.

    A head without ``omnibus.dtype`` is read with its body as the Arrow stream of one column that they then
    must be.

    Raises :class:`ProtocolError` where head and body do not fit, and :class:`UsageError` where torch is
    needed but missing.
    """
    found = layout(frame if type(frame) is bytes else bytes(frame))
    if found is None:
        return _foreign(frame, content)
    size = memoryview(content).nbytes
    if size not in found.sizes:
        raise found.wrong_size(size)
    try:
        array = _look(found, content)
    except (BufferError, ValueError) as error:  # memory with gaps, too many dimensions for this numpy
        raise ProtocolError(
            f"tensor body cannot be seen as {found.storage} of shape {found.shape}: {error}"
        ) from None
    if size < COPY or not array.flags.aligned:
        array = array.copy()
    elif found.writable and not array.flags.writeable:
        array = _thaw(array, content)
    return array if found.finish is None else found.finish(array)


def _look(found: Layout, content: Buffer) -> Any:
    """Return an array that looks into ``content`` and holds its memory.

    ``numpy.ndarray(buffer=...)`` keeps the object but not its buffer: a map could be closed, and a bytearray
    resized, under it.
    """
    import numpy as np

    if not found.nbytes:  # which frombuffer refuses
        return np.empty(found.shape, found.storage)
    return np.frombuffer(content, found.storage, found.nbytes // found.storage.itemsize).reshape(found.shape)


def _thaw(array: Any, content: Buffer) -> Any:
    """Return the array writable: the same memory where a write there is private, else a copy.

    torch has no read-only tensors, and warns when it is given read-only memory.
    """
    import ctypes

    import numpy as np

    if not getattr(memoryview(content).obj, "copy_on_write", False):
        return array.copy()
    window: Any = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    window.memory = array  # the new array keeps the window, and the window what the memory belongs to
    return np.frombuffer(window, array.dtype).reshape(array.shape)


def _foreign(frame: Buffer, content: Buffer) -> Any:
    """Return the numpy array of an Arrow stream of one column of numbers that another library wrote."""
    import pyarrow as pa

    try:
        batch = pa.ipc.open_stream(
            b"".join((frame, content, bytes(-memoryview(content).nbytes % 8)))
        ).read_next_batch()
        batch.validate(full=True)
        (column,) = batch.columns
        if isinstance(column, pa.FixedShapeTensorArray):
            array: Any = column.to_numpy_ndarray()
            array = array[0] if len(array) == 1 else array
        else:
            array = column.to_numpy(zero_copy_only=False)
    except (
        Exception
    ) as error:  # pyarrow's own classes, a second column, a MemoryError for a size that was claimed
        raise ProtocolError(f"tensor head and body are no Arrow stream of one column ({error})") from None
    if array.dtype.kind not in "biufMm" or column.null_count:
        raise ProtocolError(
            f"Arrow column of {column.type} with {column.null_count} nulls is no tensor; "
            "expected numbers without nulls"
        )
    return array if array.flags.writeable else array.copy()


def encode_arrow(value: Any) -> tuple[str, memoryview]:
    """Return kind and Arrow IPC stream of an ``Array``, ``ChunkedArray``, ``RecordBatch`` or ``Table``.

    The stream is a copy, as Arrow writes it. Raises :class:`NotPicklable` for other values of pyarrow.
    """
    import pyarrow as pa

    if isinstance(value, pa.Table):
        kind, table = "table", value
    elif isinstance(value, pa.RecordBatch):
        kind, table = "batch", value
    elif isinstance(value, pa.ChunkedArray):
        kind, table = "chunked", pa.table({"values": value})
    elif isinstance(value, pa.Array):
        kind, table = "array", pa.record_batch({"values": value})
    else:
        raise NotPicklable(
            f"a pyarrow {type(value).__name__} cannot be sent: send an array, a record batch or a table"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return kind, memoryview(sink.getvalue())


def decode_arrow(kind: str, content: Buffer, *, trusted: bool) -> Any:
    """Return the pyarrow value of a stream, without a copy: it looks into ``content`` and keeps it alive.

    Everything in it is checked, down to each offset and each string, unless the sender is ``trusted``. Raises
    :class:`ProtocolError` for what is no such stream.
    """
    import pyarrow as pa

    buffer = pa.py_buffer(content)
    try:
        with pa.ipc.open_stream(
            buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(content))
        ) as reader:
            batches = list(reader)
            table = pa.Table.from_batches(batches, reader.schema)
        table.validate(full=not trusted)
    except Exception as error:  # pyarrow has its own classes, and a MemoryError for a size that was claimed
        raise ProtocolError(f"not an Arrow stream ({type(error).__name__}: {error})") from None
    if kind == "table":
        return table
    if kind == "batch" and len(batches) == 1:
        return batches[0]
    if kind == "chunked" and table.num_columns == 1:
        return table.column(0)
    if kind == "array" and len(batches) == 1 and table.num_columns == 1:
        return batches[0].column(0)
    raise ProtocolError(
        f"Arrow stream of {len(batches)} batches and {table.num_columns} columns is no {kind[:20]!r}; "
        "is the sender a newer version?"
    )
