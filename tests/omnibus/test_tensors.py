"""Tensors: dtypes, shapes and strides survive, Arrow reads the frames, memory is shared as promised."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus import heads, tensors
from omnibus.errors import NotPicklable, ProtocolError

torch = pytest.importorskip("torch")

NUMPY = [
    *(
        "bool",
        "i1",
        "u1",
        "i2",
        "u2",
        "i4",
        "u4",
        "i8",
        "u8",
        "f2",
        "f4",
        "f8",
        "c8",
        "c16",
        "S3",
        "U4",
        "V5",
    ),
    *("M8[ns]", "M8[us]", "M8[ms]", "M8[s]", "M8[D]", "M8[25s]", "M8", "m8[ns]", "m8[s]", "m8[W]", "m8"),
    *(">i2", ">f4", ">c16", ">U3", ">M8[us]"),
]
TORCH = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64, torch.bfloat16),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (2, 0, 4), (2, 3, 4), (1, 1, 1, 1)]


def some(dtype: str, shape: tuple[int, ...]) -> Any:
    kind = np.dtype(dtype)
    memory = np.arange(1, 1 + int(np.prod(shape)) * kind.itemsize, dtype="u4").astype("u1")
    if kind.kind == "U":
        return np.array([f"é{number}" for number in range(int(np.prod(shape)))], kind).reshape(shape)
    if kind.kind == "b":
        return (memory % 2).view(kind).reshape(shape)
    return np.frombuffer(memory.tobytes(), kind).reshape(shape)


def same(one: Any, other: Any) -> None:
    """Fail unless two tensors have the same type, dtype, shape and bits."""
    assert type(one) is type(other)
    assert (one.dtype, tuple(one.shape)) == (other.dtype, tuple(other.shape))
    if isinstance(one, np.ndarray):
        assert one.tobytes() == other.tobytes()
    else:
        raw = [
            tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
            for tensor in (one, other)
        ]
        assert torch.equal(*raw)


def column(frame: bytes, content: Any) -> Any:
    """Return the column that Arrow reads from a head and a body, checked in full."""
    table = pa.ipc.open_stream(frame + bytes(content) + bytes(-len(content) % 8)).read_all()
    table.validate(full=True)
    assert table.column_names == ["tensor"]
    return table.column(0).combine_chunks()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_survives_and_arrow_reads_it(dtype: str, shape: tuple[int, ...]) -> None:
    array = some(dtype, shape)
    frame, content = tensors.encode(array)
    found = tensors.decode(frame, content)
    same(found, array)
    assert found.flags.writeable
    assert found.flags.aligned
    values = column(frame, content)
    if isinstance(values, pa.FixedShapeTensorArray):
        values = values.storage.flatten()
    native = array.astype(array.dtype.newbyteorder("=")).tobytes()
    assert (values.buffers()[-1] or b"")[: len(native)] == native


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_torch_survives_and_arrow_reads_it(dtype: Any, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(int(np.prod(shape))).to(torch.float32).to(dtype).reshape(shape)
    frame, content = tensors.encode(tensor)
    same(tensors.decode(frame, content), tensor)
    assert len(content) == tensor.numel() * tensor.element_size()
    column(frame, content)


def test_arrow_sees_the_values() -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    values = column(*tensors.encode(array))
    assert values.to_numpy_ndarray().tolist() == [array.tolist()]
    assert column(*tensors.encode(np.array([1, 2], "M8[ms]"))).type == pa.timestamp("ms")
    assert column(*tensors.encode(np.array([1, 2], "m8[ns]"))).type == pa.duration("ns")
    assert column(*tensors.encode(np.array([b"ab", b"c"]))).to_pylist() == [b"ab", b"c\0"]
    assert column(*tensors.encode(np.array([True, False]))).to_pylist() == [1, 0]
    assert column(*tensors.encode(np.array([1 + 2j]))).storage.to_pylist() == [[1.0, 2.0]]
    fortran = np.asfortranarray(array)
    assert column(*tensors.encode(fortran)).to_numpy_ndarray().tolist() == [array.tolist()]


@pytest.mark.parametrize(
    "make",
    [
        lambda cube: cube[::-1],
        lambda cube: cube[:, ::2],
        lambda cube: cube[:, :, 1],
        lambda cube: np.broadcast_to(cube[0, 0, 0], (3, 4)),
        lambda cube: cube.T,
        lambda cube: cube.transpose(2, 0, 1),
        lambda cube: np.asfortranarray(cube),
        lambda cube: np.asfortranarray(cube).astype(">i4"),
        lambda cube: cube.astype("c8").transpose(1, 2, 0),
        lambda cube: cube.T[::-1, ::-2],
    ],
)
def test_strides_survive_as_values_and_dense_ones_as_strides(make: Any) -> None:
    array = make(np.arange(24).reshape(2, 3, 4))
    found = tensors.decode(*tensors.encode(array))
    same(found, array)
    if sorted(array.strides) == sorted(np.empty(array.shape, array.dtype).strides):
        assert found.strides == array.strides


def test_a_fortran_array_is_not_copied() -> None:
    array = np.asfortranarray(np.random.default_rng(0).random((200, 300)))
    frame, content = tensors.encode(array)
    assert np.shares_memory(np.frombuffer(content, "u1"), array)
    found = tensors.decode(frame, content)
    assert np.shares_memory(found, array)
    assert found.flags.f_contiguous
    same(found, array)


def test_channels_last_survives_without_a_copy() -> None:
    images = torch.randn(2, 3, 80, 50).to(memory_format=torch.channels_last)
    frame, content = tensors.encode(images)
    found = tensors.decode(frame, content)
    assert found.data_ptr() == images.data_ptr()
    assert found.is_contiguous(memory_format=torch.channels_last)
    same(found, images)


@given(st.lists(st.integers(0, 5), max_size=5), st.data())
def test_any_order_and_slice_survives(shape: list[int], data: st.DataObject) -> None:
    array = np.arange(int(np.prod(shape)), dtype="i2").reshape(shape)
    array = array.transpose(data.draw(st.permutations(range(len(shape)))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, 1, 2, -1, -2])] * len(shape)))
    array = array[(*(slice(None, None, step) for step in steps), ...)]
    same(tensors.decode(*tensors.encode(array)), array)
    if not any(step < 0 for step in steps):
        assert torch.equal(tensors.decode(*tensors.encode(torch.from_numpy(array))), torch.from_numpy(array))


def test_strided_torch_is_copied() -> None:
    tensor = torch.arange(24).reshape(4, 6)[:, ::2]
    same(tensors.decode(*tensors.encode(tensor)), tensor)
    expanded = torch.arange(3).reshape(3, 1).expand(3, 4)
    same(tensors.decode(*tensors.encode(expanded)), expanded)


def test_lazy_conjugates_and_negations_are_resolved() -> None:
    tensor = torch.randn(3, 2, dtype=torch.complex64)
    assert torch.equal(tensors.decode(*tensors.encode(tensor.conj())), tensor.conj().resolve_conj())
    assert torch.equal(tensors.decode(*tensors.encode(tensor.conj().imag)), tensor.conj().imag.resolve_neg())


def test_a_leaf_keeps_its_gradient_and_a_graph_does_not_travel() -> None:
    leaf = torch.randn(3, requires_grad=True)
    found = tensors.decode(*tensors.encode(leaf))
    assert found.requires_grad
    assert found.is_leaf
    inside = tensors.decode(*tensors.encode(leaf * 2))
    assert not inside.requires_grad
    assert torch.equal(inside, leaf.detach() * 2)


@pytest.mark.parametrize("grad", [True, False])
def test_a_parameter_arrives_as_one(grad: bool) -> None:
    parameter = torch.nn.Parameter(torch.randn(2, 2), requires_grad=grad)
    found = tensors.decode(*tensors.encode(parameter))
    same(found, parameter)
    assert found.requires_grad is grad


def test_a_tensor_on_a_device_arrives_on_the_cpu() -> None:
    class OnDevice:
        """Stands for a tensor on a device, which this host may not have."""

        __module__ = "torch"
        values = torch.arange(3.0)
        layout, dtype, shape = torch.strided, torch.float32, (3,)
        is_quantized = is_nested = is_meta = is_cpu = requires_grad = False
        device = torch.device("cuda:1")

        def detach(self) -> Any:
            return self

        def cpu(self) -> Any:
            return self.values

    frame, content = tensors.encode(OnDevice())
    found = tensors.decode(frame, content)
    assert torch.equal(found, OnDevice.values)
    assert found.device.type == "cpu"
    assert pa.ipc.read_schema(pa.py_buffer(frame)).field(0).metadata[b"omnibus.device"] == b"cuda:1"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_tensor_arrives_on_the_cpu() -> None:
    tensor = torch.randn(4, 5, device="cuda", dtype=torch.bfloat16).t()
    found = tensors.decode(*tensors.encode(tensor))
    assert torch.equal(found, tensor.cpu())
    parameter = torch.nn.Parameter(torch.randn(3, device="cuda"))
    same(tensors.decode(*tensors.encode(parameter)), torch.nn.Parameter(parameter.detach().cpu()))


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo.*to_dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr.*to_dense"),
        (lambda: torch.empty(3, device="meta"), "meta.*shape and dtype"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested.*unbind"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantised.*dequantize"),
    ],
)
def test_what_has_no_dense_memory_is_refused_with_advice(make: Any, hint: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these a prototype or deprecated
        value = make()
    with pytest.raises(NotPicklable, match=hint):
        tensors.encode(value)


# --- whose memory it is ---


def test_a_large_body_is_the_senders_memory_and_the_receivers() -> None:
    array = np.zeros(100_000)
    frame, content = tensors.encode(array)
    assert np.shares_memory(np.frombuffer(content, "u1"), array)
    received = bytearray(content)
    found = tensors.decode(frame, received)
    found[7] = 1
    assert any(received)
    assert found.flags.writeable
    tensor = tensors.decode(tensors.head(torch.float64, (100_000,)), received)
    tensor[8] = 2
    assert found[8] == 2


def test_a_small_body_is_copied() -> None:
    received = bytearray(8 * 100)
    found = tensors.decode(tensors.head(np.dtype("f8"), (100,)), received)
    found[:] = 1
    assert not any(received)


def test_read_only_memory_is_a_read_only_array_or_a_tensor_of_its_own() -> None:
    received = bytes(8 * 100_000)
    found = tensors.decode(tensors.head(np.dtype("f8"), (100_000,)), received)
    assert not found.flags.writeable
    assert not found.flags.owndata
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = tensors.decode(tensors.head(torch.float64, (100_000,)), received)
    tensor[0] = 1
    assert not any(received[:8])


class Private(mmap.mmap):
    """A private map: a write touches a page of this process alone."""

    copy_on_write = True


def test_a_torch_view_of_private_memory_is_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(np.arange(100_000, dtype="i4").tobytes())
    with path.open("rb") as file:
        segment = Private(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view = memoryview(segment).toreadonly()
    array = tensors.decode(tensors.head(np.dtype("i4"), (100_000,)), view)
    assert not array.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = tensors.decode(tensors.head(torch.int32, (100_000,)), view)
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    tensor[5] = -1
    assert array[5] == -1
    assert np.frombuffer(path.read_bytes(), "i4")[5] == 5
    del array, view
    with pytest.raises(BufferError):  # the tensor keeps the map
        segment.close()
    assert tensor[99_999] == 99_999
    del tensor
    segment.close()


@pytest.mark.parametrize("dtype", [np.dtype("f8"), torch.float64], ids=str)
def test_what_is_out_of_alignment_is_copied(dtype: Any) -> None:
    received = bytearray(8 * 100_000 + 1)
    found = tensors.decode(tensors.head(dtype, (100_000,)), memoryview(received)[1:])
    found[:] = 1
    assert not any(received)
    assert np.asarray(found).flags.aligned


def test_any_object_with_a_buffer_will_do() -> None:
    zmq = pytest.importorskip("zmq")
    array = np.arange(100_000)
    frame, content = tensors.encode(array)
    same(tensors.decode(memoryview(frame), zmq.Frame(content)), array)
    same(tensors.decode(zmq.Frame(frame), array), array)


# --- what does not fit ---


@pytest.mark.parametrize("size", [0, 1, 11, 13, 15, 17, 24, 63, 65, 128])
def test_a_body_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="its head says 12"):
        tensors.decode(tensors.head(np.dtype("f4"), (3,)), bytes(size))


@pytest.mark.parametrize("size", [12, 16, 64])
def test_a_body_may_be_padded(size: int) -> None:
    assert tensors.decode(tensors.head(np.dtype("f4"), (3,)), bytes(size)).tolist() == [0, 0, 0]


def test_a_claimed_size_allocates_nothing() -> None:
    with pytest.raises(ProtocolError, match="its head says 4611686018427387904"):
        tensors.decode(tensors.head(np.dtype("f4"), (2**60,)), b"1234")


def test_memory_with_gaps_and_too_many_dimensions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError, match="cannot be seen as"):
        tensors.decode(tensors.head(np.dtype("u1"), (100_000,)), memoryview(bytes(200_000))[::2])
    monkeypatch.setattr(heads, "_DIMENSIONS", 100)
    with pytest.raises(ProtocolError, match="cannot be seen as"):
        tensors.decode(tensors.head(np.dtype("u1"), (1,) * 70), b"1")


def test_a_code_point_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Unicode"):
        tensors.decode(tensors.head(np.dtype("U1"), (1,)), b"\xff\xff\xff\x7f")


# --- other libraries' streams ---


def stream(batch: Any, cut: int = 0) -> tuple[bytes, bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    data = sink.getvalue().to_pybytes()
    return (data[:-cut], data[-cut:]) if cut else (data, b"")


@pytest.mark.parametrize("cut", [0, 40])
def test_a_column_of_another_library_is_an_array(cut: int) -> None:
    found = tensors.decode(*stream(pa.record_batch({"x": pa.array([1.5, 2.5, 3.5])}), cut))
    assert found.tolist() == [1.5, 2.5, 3.5]
    assert found.flags.writeable


@pytest.mark.parametrize(("rows", "shape"), [(1, (2, 3)), (4, (4, 2, 3))])
def test_a_tensor_column_of_another_library_is_an_array(rows: int, shape: tuple[int, ...]) -> None:
    values = np.arange(rows * 6.0).reshape(rows, 2, 3)
    found = tensors.decode(
        *stream(pa.record_batch({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}))
    )
    assert np.array_equal(found, values.reshape(shape))


def test_bits_of_another_library_become_booleans() -> None:
    assert tensors.decode(*stream(pa.record_batch({"x": [True, False, True]}))).tolist() == [
        True,
        False,
        True,
    ]


def test_a_long_head_of_another_library_is_read_too() -> None:
    batch = pa.record_batch({"x": np.arange(10_000)})
    assert np.array_equal(tensors.decode(*stream(batch)), np.arange(10_000))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"x": ["text"]}),
        pa.record_batch({"x": pa.array([1, None])}),
        pa.record_batch({"x": [1], "y": [2]}),
        pa.record_batch({"x": [[1, 2]]}),
    ],
)
def test_a_column_that_is_no_tensor_is_refused(batch: Any) -> None:
    with pytest.raises(ProtocolError, match="Arrow"):
        tensors.decode(*stream(batch))


@given(st.data())
def test_damage_never_does_worse_than_an_error(data: st.DataObject) -> None:
    whole = bytearray(b"".join(stream(pa.record_batch({"x": np.arange(5.0)}))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = tensors.decode(bytes(whole), b"")
    except ProtocolError:
        return
    assert found.nbytes <= len(whole)


@given(st.data())
def test_a_damaged_head_never_does_worse_than_an_error(data: st.DataObject) -> None:
    frame = bytearray(tensors.head(np.dtype("f4"), (2, 3)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = tensors.decode(bytes(frame), bytes(24))
    except ProtocolError:
        return
    assert found.nbytes <= 24


# --- pyarrow's own values ---

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]}, metadata={"kept": "yes"})


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.slice(0, 0),
        pa.table({}),
        pa.array(["a", None, "c"]),
        pa.array([], pa.list_(pa.int8())),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.chunked_array([[1, 2], [3]]),
        pa.chunked_array([], pa.string()),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3, 4))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrow_values_survive(value: Any, trusted: bool) -> None:
    kind, content = tensors.encode_arrow(value)
    found = tensors.decode_arrow(kind, content, trusted=trusted)
    assert type(found) is type(value)
    assert found.equals(value)
    if isinstance(value, pa.Table):
        assert found.schema.equals(value.schema, check_metadata=True)
    if isinstance(value, pa.ChunkedArray) and value.num_chunks:
        assert found.num_chunks == value.num_chunks


def test_an_arrow_value_looks_into_the_frame() -> None:
    kind, content = tensors.encode_arrow(pa.array(np.arange(100_000)))
    received = bytearray(content)
    before = pa.total_allocated_bytes()
    found = tensors.decode_arrow(kind, received, trusted=False)
    assert pa.total_allocated_bytes() - before < 10_000
    start = pa.py_buffer(received).address
    assert start <= found.buffers()[1].address < start + len(received)


def test_an_arrow_stream_out_of_alignment_is_copied() -> None:
    kind, content = tensors.encode_arrow(pa.array(np.arange(1000)))
    found = tensors.decode_arrow(kind, memoryview(b"x" + bytes(content))[1:], trusted=False)
    assert found.buffers()[1].address % 8 == 0
    assert found.to_pylist() == list(range(1000))


def test_other_arrow_values_are_refused() -> None:
    with pytest.raises(NotPicklable, match="Schema"):
        tensors.encode_arrow(TABLE.schema)


@pytest.mark.parametrize("kind", ["batch", "array", "chunked", "frame"])
def test_a_stream_of_another_form_than_its_kind_is_refused(kind: str) -> None:
    _, content = tensors.encode_arrow(pa.concat_tables([TABLE, TABLE]))
    with pytest.raises(ProtocolError, match=r"2 batches and 2 columns"):
        tensors.decode_arrow(kind, content, trusted=False)


def test_offsets_that_point_outside_are_refused() -> None:
    kind, content = tensors.encode_arrow(pa.array(["abcdefgh", "ijklmnop"]))
    damaged = bytes(content).replace(
        np.array([0, 8, 16], "i4").tobytes(), np.array([0, 8, 1 << 30], "i4").tobytes()
    )
    assert damaged != bytes(content)
    with pytest.raises(ProtocolError, match="Arrow stream"):
        tensors.decode_arrow(kind, damaged, trusted=False)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_stream_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        tensors.decode_arrow("table", data, trusted=False)
