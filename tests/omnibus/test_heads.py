"""Heads: what they say survives, what they claim is checked, and Arrow reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from omnibus import heads
from omnibus.errors import NotPicklable, ProtocolError, UsageError

torch = pytest.importorskip("torch")


def forged(**facts: str) -> bytes:
    """Return a head that says what it is told to."""
    metadata = {f"omnibus.{name}": text for name, text in facts.items()}
    schema: bytes = pa.schema([pa.field("tensor", pa.float32(), metadata=metadata)]).serialize().to_pybytes()
    return schema


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 4), (0,), (1,) * 9])
@pytest.mark.parametrize("dtype", ["f4", "u1", "c16", "S3"])
def test_head_and_body_are_an_arrow_stream(dtype: str, shape: tuple[int, ...]) -> None:
    frame = heads.head(np.dtype(dtype), shape)
    assert len(frame) % 8 == 0
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    table = pa.ipc.open_stream(frame + bytes(-(-size // 8) * 8)).read_all()
    table.validate(full=True)
    assert table.nbytes == size
    with pytest.raises((OSError, pa.ArrowInvalid)):
        pa.ipc.open_stream(frame[:-8]).read_all()


def test_the_same_head_is_made_once() -> None:
    assert heads.head(np.dtype("f4"), (5, 7)) is heads.head(np.dtype("<f4"), (5, 7))
    assert heads.layout(heads.head(np.dtype("f4"), (5, 7))) is heads.layout(
        heads.head(np.dtype("f4"), (5, 7))
    )


def test_a_huge_tensor_is_a_column_of_its_values() -> None:
    shape = (2**16, 2**16)
    frame = heads.head(np.dtype("i1"), shape)
    assert pa.ipc.read_schema(pa.py_buffer(frame)).field(0).type == pa.int8()
    found = heads.layout(frame)
    assert found is not None
    assert (found.shape, found.nbytes) == (shape, 2**32)
    assert np.int64(2**32).tobytes() in frame  # its rows, which pass 32 bits


def test_the_metadata_says_what_arrow_cannot() -> None:
    frame = heads.head(torch.bfloat16, (2, 3), (1, 0), "torch.nn.Parameter", "cuda:1", "1")
    field = pa.ipc.read_schema(pa.py_buffer(frame)).field(0)
    assert {key.decode(): text.decode() for key, text in field.metadata.items()} == {
        "omnibus.dtype": "bfloat16",
        "omnibus.shape": "[2, 3]",
        "omnibus.order": "[1, 0]",
        "omnibus.kind": "torch.nn.Parameter",
        "omnibus.device": "cuda:1",
        "omnibus.grad": "1",
    }
    assert field.type == pa.fixed_shape_tensor(pa.uint16(), (3, 2), permutation=[1, 0])


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [("O", "tolist"), ("f4,i8", "separate arrays"), ("f16", "astype"), (">f16", "astype")],
)
def test_a_numpy_dtype_that_does_not_travel_says_what_to_do(dtype: str, advice: str) -> None:
    with pytest.raises(NotPicklable, match=advice):
        heads.head(np.dtype(dtype), (1,))


def test_a_torch_dtype_that_does_not_travel_says_what_to_do() -> None:
    with pytest.raises(NotPicklable, match=r"complex32.*\.to\(torch.float32\)"):
        heads.head(torch.complex32, (1,))


@pytest.mark.parametrize(
    "facts",
    [
        {"shape": "[-1]"},
        {"shape": "[true]"},
        {"shape": "[1.0]"},
        {"shape": '["1"]'},
        {"shape": "{}[]"},
        {"shape": "7"},
        {"shape": "[" * 5000},
        {"shape": json.dumps([1] * 65)},
        {"shape": "[4294967296, 4294967296]"},
        {"shape": f"[0, {2**63}]"},
        {"shape": "[1" + "0" * 5000 + "]"},
        {"shape": "[2, 3]", "order": "[0, 0]"},
        {"shape": "[2, 3]", "order": "[0]"},
        {"shape": "[2, 3]", "order": "[0, [1]]"},
        {"shape": "[2, 3]", "order": "null"},
        {"shape": "[1]", "dtype": "O"},
        {"shape": "[1]", "dtype": "object"},
        {"shape": "[1]", "dtype": "f4,i8"},
        {"shape": "[1]", "dtype": "S0"},
        {"shape": "[1]", "dtype": "V9999999999"},
        {"shape": "[1]", "dtype": "U999999999"},
        {"shape": "[1]", "dtype": "datetime64[xy]"},
        {"shape": "[1]", "dtype": "float32", "kind": "jax"},
        {"shape": "[1]", "dtype": "S3", "kind": "torch"},
        {"shape": "[1]", "dtype": ""},
        {},
    ],
    ids=lambda facts: str(facts)[:40],
)
def test_a_head_that_lies_is_refused(facts: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match=r"tensor|numpy dtype"):
        heads.layout(forged(**{"dtype": "float32", **facts}))


@pytest.mark.parametrize("frame", [b"", b"\x00" * 64, b"ARROW1", b"\xff" * 400])
def test_a_head_that_is_none_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an Arrow schema"):
        heads.layout(frame)


def test_metadata_that_is_not_text_is_refused() -> None:
    schema = pa.schema([pa.field("tensor", pa.float32(), metadata={b"omnibus.dtype": b"\xff"})])
    with pytest.raises(ProtocolError, match="not an Arrow schema"):
        heads.layout(schema.serialize().to_pybytes())


def test_the_head_of_another_library_has_no_layout() -> None:
    plain = pa.schema([pa.field("tensor", pa.float32())]).serialize().to_pybytes()
    two = pa.schema([pa.field("a", pa.float32()), pa.field("b", pa.float32())]).serialize().to_pybytes()
    assert heads.layout(plain) is None
    assert heads.layout(two) is None
    assert heads.layout(bytes(20_000)) is None  # too long to be one of ours, and to be kept in a cache


def test_a_torch_tensor_where_torch_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = heads.head(torch.float32, (11, 13))
    heads.layout.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"omnibus\[torch\]"):
        heads.layout(frame)


def test_a_dtype_that_this_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = heads.head(torch.float8_e5m2, (11, 17))
    heads.layout.cache_clear()
    monkeypatch.delattr(torch, "float8_e5m2")
    with pytest.raises(ProtocolError, match="AttributeError"):
        heads.layout(frame)


@pytest.mark.parametrize(
    "name", ["float32", ">float32", "datetime64[25s]", ">timedelta64", "S8", ">U3", "V16", "bool"]
)
def test_a_dtype_survives_as_its_name(name: str) -> None:
    assert heads.numpy_name(heads.numpy_dtype(name)) == name


def test_importing_it_loads_no_library() -> None:
    script = (
        "import sys, omnibus.payload, omnibus.functions\n"
        "omnibus.payload.decode(*omnibus.payload.encode([1, 'a', (2.5, {3})], code=False), code=False)\n"
        "assert not {'numpy', 'torch', 'pyarrow', 'cloudpickle'} & set(sys.modules)\n"
        "import numpy\n"
        "value = omnibus.payload.decode(*omnibus.payload.encode(numpy.ones(3), code=False), code=False)\n"
        "assert 'torch' not in sys.modules and value.sum() == 3\n"
    )
    ran: Any = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
