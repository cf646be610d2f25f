"""Values: they survive with their types, what cannot travel is named, and bad input is an error at worst."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import sys
import threading
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus import lifting, lowering, payload
from omnibus.errors import NotPicklable, ProtocolError, SetupFailed, Unauthorized

UTC = datetime.UTC
BIG = payload.BLOB


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Box:
    content: Any = None
    label: str = ""


class Pair(NamedTuple):
    one: int
    two: int


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


class Hostile:
    """Its every method fails."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __slots__ = ("missing",)


LARGE_CALLS = [
    ((list(range(50_000)),), 0),
    ((b"x" * BIG,), 1),
    (([{"x": [b"x" * BIG]}], "a"), 1),
    ((["a" * BIG], (1,)), 0),
]


def there_and_back(value: Any, *, code: bool = False) -> Any:
    body, blobs = payload.encode(value, code=code)
    assert type(body) is bytes
    return payload.decode(body, [memoryview(blob) for blob in blobs], code=code)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two values and their types are equal, all the way down; NaN is NaN, zeros have signs."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(alike, one.items(), other.items()))
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.text(st.characters(codec=None, categories=["Cs", "Lu"]))
    | st.binary()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(
        timezones=st.just(UTC) | st.sampled_from([datetime.timezone(datetime.timedelta(hours=-3.5))])
    )
    | st.timedeltas()
)
KEYS = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.text(), st.integers())
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.sets(st.integers() | st.text() | st.tuples(st.integers()))
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_plain_values_survive_with_their_types(value: Any, code: bool) -> None:
    assert alike(there_and_back(value, code=code), value)


@given(st.lists(VALUES, max_size=4), st.dictionaries(st.text(), VALUES, max_size=3))
def test_calls_survive(args: list[Any], kwargs: dict[str, Any]) -> None:
    body, blobs = payload.encode_call(tuple(args), kwargs, code=False)
    found = payload.decode_call(body, blobs, code=False)
    assert alike(found, (args, kwargs))


@pytest.mark.parametrize(("args", "count"), LARGE_CALLS, ids=lambda value: str(value)[:20])
def test_large_calls_survive(args: tuple[Any, ...], count: int) -> None:
    for kwargs in ({}, {"key": args[0]}):
        body, blobs = payload.encode_call(args, kwargs, code=False)
        assert len(blobs) == count * (2 if kwargs else 1)
        assert payload.decode_call(body, blobs, code=False) == (list(args), kwargs)


@pytest.mark.parametrize(
    "value",
    [
        *(2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**1000, -(10**1000)),
        *(float("nan"), float("inf"), -0.0, 5e-324, complex(-0.0, float("nan"))),
        *("\ud800", "a\udfffb", {"\ud800": 1}, "é" * 100_000, b"", b"x" * (BIG - 1), b"x" * BIG),
        *((), ((),), [], {}, set(), frozenset(), {frozenset({(1, "a")}): [()]}),
        *(
            [1, None, 2**70],
            (1, 2.5, None),
            ("a", None),
            ("é", "\ud800"),
            ("a", 1),
            [[1] * 70_000, {"a": [b"x"]}],
            [-(2**70), 1],
        ),
        *(
            [{b"y" * BIG: 1}],
            {1: [{"x": [b"", 1, b"z" * BIG]}]},
            [1.5, None, True],
            [2**70],
            {1: {2.5: None}, None: ()},
            {"a" * 70_000: (1,)},
        ),
        list(range(100_000)),
        datetime.timedelta(-1, 5, 7),
        datetime.timedelta.max,
        datetime.datetime.min,
        datetime.time(1, 2, 3, 4, UTC),
        datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=0),
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}" if not isinstance(value, int) else "int",
)
def test_awkward_values_survive(value: Any) -> None:
    found = there_and_back(value)
    assert alike(found, value)
    if isinstance(value, datetime.datetime) and value.tzinfo:
        assert (found.tzinfo, found.fold) == (value.tzinfo, value.fold)
        assert found.utcoffset() == value.utcoffset()


def test_a_zone_that_is_unknown_here_becomes_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    body, _ = payload.encode(moment, code=False)
    body = body.replace(b"Berlin", b"Utopia")
    found = payload.decode(body, (), code=False)
    assert found == moment
    assert found.tzinfo == datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize(
    "value", [bytearray(b"abc"), memoryview(b"abc"), bytearray(BIG), memoryview(bytes(BIG))]
)
def test_buffers_arrive_as_bytes(value: Any) -> None:
    assert alike(there_and_back([value]), [bytes(value)])


def test_big_bytes_are_blobs_and_not_copied() -> None:
    data = bytes(BIG)
    body, blobs = payload.encode({"a": [data]}, code=False)
    assert len(body) < 100
    assert blobs[0] is data
    changing = bytearray(BIG)
    payload.encode([changing], code=False)
    changing.append(1)  # a view of it would make this a BufferError
    for table in (memoryview(np.ones((BIG, 3))), memoryview(np.ones(BIG, complex))):
        body, blobs = payload.encode([table], code=False)
        assert len(blobs[0]) == table.nbytes
        assert payload.decode(body, blobs, code=False) == [table.tobytes()]
    gaps = memoryview(bytes(2 * BIG))[::2]
    assert there_and_back((gaps,)) == (bytes(BIG),)


@pytest.mark.parametrize(
    "value",
    [
        *(
            np.float32(1.5),
            np.float64("nan"),
            np.int64(-1),
            np.uint8(255),
            np.bool(True),
            np.complex64(1j),
            np.float16(2),
        ),
        *(np.datetime64("2024-01-01"), np.timedelta64(3, "ns"), np.datetime64("NaT", "s"), np.void(b"abc")),
        *(np.str_("h\0é\0"), np.str_(""), np.bytes_(b"a\0"), np.str_("\ud800")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numpy_scalars_survive(value: Any) -> None:
    found = there_and_back([value])[0]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize("size", [0, 1, 3, payload.INLINE, payload.INLINE + 1, 300_000])
def test_tensors_survive_inside_the_body_or_beside_it(size: int) -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(size).astype("u1")
    value = {
        "a": array,
        "b": [torch.from_numpy(array), torch.nn.Parameter(torch.ones(2))],
        "c": (np.asfortranarray([[1, 2]]),),
    }
    body, blobs = payload.encode(value, code=False)
    assert len(blobs) == (4 if size > payload.INLINE else 0)
    found = payload.decode(body, blobs, code=False)
    assert alike(found["a"], array)
    assert torch.equal(found["b"][0], value["b"][0])
    assert type(found["b"][1]) is torch.nn.Parameter
    assert alike(found["c"], value["c"])
    if blobs:
        assert blobs[1].obj.base is array or np.shares_memory(np.frombuffer(blobs[1], "u1"), array)
        assert np.shares_memory(found["a"], array) == (size > 100_000)


def test_an_inline_tensor_is_an_arrow_stream() -> None:
    array = np.arange(3, dtype="u1")
    body, _ = payload.encode(array, code=False)
    data = msgpack.unpackb(body).data
    assert pa.ipc.open_stream(data[8:]).read_all().column(0).to_pylist() == [0, 1, 2]
    foreign = pa.BufferOutputStream()
    with pa.ipc.new_stream(foreign, pa.schema({"x": pa.int64()})) as writer:
        writer.write(pa.record_batch({"x": [7, 8]}))
    stream = foreign.getvalue().to_pybytes()
    body = msgpack.packb(msgpack.ExtType(lowering.TENSOR, len(stream).to_bytes(4, "big") + bytes(4) + stream))
    assert payload.decode(body, (), code=False).tolist() == [7, 8]


def test_tensors_whose_encodings_are_of_one_length_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifting, "_SEEN", 3)
    values = [np.arange(size, dtype=dtype) for size in (6, 6, 60, 600, 6000) for dtype in ("i4", "f4", "u4")]
    for _ in range(2):
        for value in values:
            assert alike(there_and_back(value), value)
            assert len(lifting._seen) <= 3


def test_a_memmap_is_an_array(tmp_path: pathlib.Path) -> None:
    array = np.memmap(tmp_path / "array", "f4", "w+", shape=(3, 4))
    array[:] = 5
    for value in (array, array[:, ::2], array.T):
        assert alike(there_and_back(value), np.array(value))


def test_arrow_values_survive() -> None:
    small, large = pa.table({"a": ["x", None]}), pa.array(np.arange(100_000))
    body, blobs = payload.encode([small, large, small.to_batches()[0]], code=False)
    assert len(blobs) == 1
    found = payload.decode(body, blobs, code=False)
    assert found[0].equals(small)
    assert found[1].equals(large)
    assert found[2].equals(small.to_batches()[0])


# --- pickles ---


@pytest.mark.parametrize(
    "value",
    [
        *(
            Colour.RED,
            Level.LOW,
            Box([1, (2,)]),
            Pair(1, 2),
            ValueError("x", 1),
            pathlib.Path("/a"),
            uuid.UUID(int=7),
        ),
        *(
            decimal.Decimal("1.5"),
            range(3),
            slice(1, 2),
            ...,
            collections.OrderedDict(a=1),
            collections.deque([1]),
        ),
        *(
            np.array([1, "a"], object),
            np.zeros(2, "f4,i8"),
            np.longdouble(1),
            np.ma.array([1, 2]),
            pa.schema({"a": pa.int8()}),
        ),
        *({Colour.RED: 1}, {Colour.RED}, [1, {"x": (Pair(1, 2),)}]),
        datetime.datetime(
            2024, 1, 1, tzinfo=type("Zone", (datetime.tzinfo,), {"utcoffset": lambda *_: None})()
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_travel_as_pickles_between_those_who_may(value: Any) -> None:
    found = there_and_back(value, code=True)
    assert type(found) is type(value)
    assert str(found) == str(value)
    with pytest.raises(NotPicklable, match="value"):
        payload.encode(value, code=False)
    body, blobs = payload.encode((value,), code=True)
    with pytest.raises(Unauthorized, match="may not carry code"):
        payload.decode(body, blobs, code=False)


def test_what_is_shared_inside_an_argument_stays_shared() -> None:
    inner = Box(label="inner")
    body, blobs = payload.encode_call(([inner, inner], 1), {"key": inner}, code=True)
    args, kwargs = payload.decode_call(body, blobs, code=True)
    assert args[0][0] is args[0][1]
    assert args[1] == 1
    assert kwargs == {"key": inner}


def test_a_pickle_has_its_big_buffers_beside_it() -> None:
    torch = pytest.importorskip("torch")
    large, small = np.arange(100_000), torch.arange(5.0)
    before = Box(
        [large, small, torch.arange(100_000), torch.ones(4, 6)[:, ::2], torch.ones(2, requires_grad=True)]
    )
    body, blobs = payload.encode(before, code=True)
    assert len(body) < 10_000
    assert len(blobs) == 2
    assert np.shares_memory(np.frombuffer(blobs[0], "u1"), large)
    found = payload.decode(body, blobs, code=True).content
    assert np.shares_memory(found[0], large)
    assert all(torch.equal(one, other) for one, other in zip(found[1:], before.content[1:], strict=True))
    assert found[4].requires_grad
    tail = np.arange(20_000)
    args, _ = payload.decode_call(*payload.encode_call((large, Box(tail)), {}, code=True), code=True)
    assert alike(args[1].content, tail)


def test_a_large_pickle_is_a_blob_itself() -> None:
    body, blobs = payload.encode(Box("x" * 100_000), code=True)
    assert len(blobs) == 1
    assert payload.decode(body, blobs, code=True) == Box("x" * 100_000)


def test_a_module_with_tied_weights_survives() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    found = there_and_back(model, code=True)
    assert found[1].weight is found[0].weight
    assert torch.equal(found(torch.ones(8)), model(torch.ones(8)))


def test_a_pickle_that_cannot_be_loaded_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("passing_module")
    module.Thing = type("Thing", (), {"__module__": "passing_module"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "passing_module", module)
    body, blobs = payload.encode(module.Thing(), code=True)
    monkeypatch.delitem(sys.modules, "passing_module")
    with pytest.raises(SetupFailed, match=r"passing_module.*sys\.path.*register_pickle_by_value"):
        payload.decode(body, blobs, code=True)


# --- what cannot travel ---


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ((1, Box()), {}, r"args\[1\] "),
        (([0, {"x": (1, Box())}],), {}, r"args\[0\]\[1\]\['x'\]\[1\] "),
        ((), {"model": {"layers": [1, 2, {Box}]}}, r"kwargs\['model'\]\['layers'\]\[2\]\[0\] "),
        (({Colour.RED: 1},), {}, r"args\[0\]\[<Colour.RED: 1>\] "),
    ],
)
def test_a_value_that_needs_a_pickle_is_named(args: Any, kwargs: Any, where: str) -> None:
    with pytest.raises(NotPicklable, match=where + "cannot be sent.*is not plain data.*mesh's key"):
        payload.encode_call(args, kwargs, code=False)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Box([1, threading.Lock()]), r"because of value\.content\[1\], which is a _thread\.lock"),
        (
            [Slotted({"a": threading.Lock()})],
            r"because of value\[0\]\.content\['a'\], which is a _thread\.lock",
        ),
        ({"key": {threading.Lock()}}, r"because of value\['key'\]\[0\]"),
        ({Hostile(): 1}, r"because of value key <Hostile>"),
        ({threading.Lock(): 1}, r"because of value key <unlocked _thread.lock"),
        (threading.Lock(), r"value cannot be sent, which is a _thread\.lock"),
        (Box(Hostile()), r"because of value\.content, which is a .*Hostile"),
    ],
)
def test_what_cannot_be_pickled_is_named(value: Any, where: str) -> None:
    with pytest.raises(NotPicklable, match=where):
        payload.encode(value, code=True)


@pytest.mark.parametrize("code", [True, False])
def test_recursive_values_are_refused(code: bool) -> None:
    loop: list[Any] = []
    loop.append(loop)
    tangle: dict[str, Any] = {}
    tangle["self"] = (tangle,)
    deep: Any = 1
    for _ in range(200):
        deep = (deep,)
    for value in (loop, tangle, deep, [tangle, {1}]):
        with pytest.raises(NotPicklable, match="levels deep, or contains itself"):
            payload.encode(value, code=code)
    payload.encode([1], code=code)  # and the packers are fit for use


def test_text_of_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        """A packer with msgpack's limit of 4 GiB, made smaller."""

        def pack(self, tree: Any) -> bytes:
            raise ValueError("unicode string is too large")

    monkeypatch.setattr(lowering.msgpack, "Packer", lambda **_: Small())
    lowering.IDLE.clear()
    with pytest.raises(NotPicklable, match="too large for one message"):
        payload.encode("x", code=False)


def test_a_time_in_another_zone_says_what_to_do() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    with pytest.raises(NotPicklable, match="send it in UTC"):
        payload.encode(datetime.time(1, tzinfo=zone), code=False)


def test_tensors_that_cannot_travel_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    for value in (torch.eye(2).to_sparse(), np.array([{}]), np.zeros((9, 9), "f4,i4"), np.zeros(99_999, "g")):
        with pytest.raises(NotPicklable, match=r"value\['x'\] cannot be sent: .*send|convert"):
            payload.encode({"x": value}, code=False)
    assert torch.equal(there_and_back(torch.eye(2).to_sparse(), code=True).to_dense(), torch.eye(2))


@pytest.mark.parametrize("root", ["numpy", "torch", "pyarrow"])
def test_a_class_that_only_claims_a_library_is_none_of_its_own(root: str) -> None:
    fake = type("ndarray", (), {"__module__": f"{root}.fake", "dtype": None})
    if root == "pyarrow":
        fake.__module__ = "pyarrowed"
    with pytest.raises(NotPicklable, match="is not plain data"):
        payload.encode(fake(), code=False)


def test_many_threads_may_encode_at_once() -> None:
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        value = [number] * 500
        start.wait(10)
        for _ in range(300):
            if there_and_back(value) != value or there_and_back((value,)) != (value,):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


# --- what comes off the wire ---


def ext(code: int, data: bytes) -> bytes:
    return msgpack.packb(msgpack.ExtType(code, data))  # type: ignore[no-any-return]


def nest(levels: int) -> bytes:
    body = b"\x90"
    for _ in range(levels):
        body = ext(lowering.TUPLE, b"\x91" + body)
    return body


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"\xc1",
            b"\x92\x01",
            b"\x01\x02",
            b"\xdd\xff\xff\xff\xff",
            b"\xa1\xff",
            b"\x91" * 5000,
            b"\x81\x90\x01",
        ),
        *(ext(99, b""), ext(0, b""), b"\xc7\x03\xff123", b"\xc7\x0c\xff" + b"\xff" * 12),
        *(ext(lowering.TUPLE, b"\x01"), ext(lowering.TUPLE, b""), ext(lowering.SET, b"\x91\x90"), nest(101)),
        *(ext(lowering.COMPLEX, b"123"), ext(lowering.BYTES, b"\0\0\0\0"), ext(lowering.TEXT, b"\xff")),
        *(ext(lowering.TENSOR, b"123"), ext(lowering.TENSOR, bytes(8)), ext(lowering.TENSOR, b"\xff" * 20)),
        *(
            ext(lowering.TIME, b"delta 1 2"),
            ext(lowering.TIME, b"delta x y z"),
            ext(lowering.TIME, b"datetime 12"),
        ),
        *(
            ext(lowering.TIME, b"tzinfo x"),
            ext(lowering.TIME, b"\xff"),
            ext(lowering.TIME, b"delta 9999999999 0 0"),
        ),
        *(
            ext(lowering.SCALAR, b"object 12345678"),
            ext(lowering.SCALAR, b"float32 12345678"),
            ext(lowering.SCALAR, b"U \xff"),
        ),
        *(
            ext(lowering.ARROW, b"\x90"),
            ext(lowering.ARROW, b"\x92\x01\xc4\x00"),
            ext(lowering.ARROW, b"\x92\xa1x\xc4\x00"),
        ),
        ext(lowering.ARROW, b"\x92\xa5table\x05"),
        ext(lowering.ARROW, b"\x92\xa5table\xc3"),
    ],
    ids=lambda body: body[:12].hex(),
)
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    for code in (False, True):
        with pytest.raises(ProtocolError):
            payload.decode(body, (), code=code)


@pytest.mark.parametrize("size", [0, 8, 31, 33, 40, 65])
def test_an_inline_tensor_of_another_size_is_refused(size: int) -> None:
    data = msgpack.unpackb(payload.encode(np.arange(4), code=False)[0]).data
    with pytest.raises(ProtocolError, match=f"body of {size} bytes; its head says 32"):
        payload.decode(ext(lowering.TENSOR, data[:-32] + bytes(size)), (), code=False)


def test_an_unhashable_key_inside_a_tuple_is_refused() -> None:
    with pytest.raises(ProtocolError, match="TypeError"):
        payload.decode(b"\x81" + ext(lowering.TUPLE, b"\x91\x90") + b"\x01", (), code=False)


@pytest.mark.parametrize("index", [b"\0\0\0\1", b"\xff\xff\xff\xff"])
def test_a_blob_that_is_not_there_is_refused(index: bytes) -> None:
    with pytest.raises(ProtocolError, match="its record has 1"):
        payload.decode(ext(lowering.BYTES, index), [b"x"], code=False)
    with pytest.raises(ProtocolError, match="its record has 1"):
        payload.decode(ext(lowering.TENSOR, bytes(8)), [b"x"], code=False)
    with pytest.raises(ProtocolError, match="its record has 1"):
        payload.decode(ext(lowering.PICKLE, msgpack.packb([b"", 0, 2])), [b"x"], code=True)


def test_a_pickle_that_is_damaged_is_no_crash() -> None:
    with pytest.raises(SetupFailed, match="could not be unpickled"):
        payload.decode(ext(lowering.PICKLE, msgpack.packb([b"garbage", 0, 0])), (), code=True)
    with pytest.raises(ProtocolError):
        payload.decode(ext(lowering.PICKLE, msgpack.packb([b"garbage"])), (), code=True)


def test_the_timestamp_of_another_language_is_a_datetime() -> None:
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert payload.decode(msgpack.packb(moment, datetime=True), (), code=False) == moment


def test_nesting_up_to_the_limit_is_read() -> None:
    found = payload.decode(nest(100), (), code=False)
    for _ in range(100):
        (found,) = found
    assert found == []


@pytest.mark.parametrize("body", [{"args": 1}, {"kwargs": []}, {"kwargs": {1: 2}}, 5, None, "args"])
def test_a_body_that_is_no_call_is_refused(body: Any) -> None:
    with pytest.raises(ProtocolError, match="body of a call"):
        payload.decode_call(msgpack.packb(body), (), code=False)


def test_a_call_may_leave_out_what_is_empty_and_say_more() -> None:
    assert payload.decode_call(b"\x80", (), code=False) == ([], {})
    assert payload.decode_call(msgpack.packb({"args": [1], "later": 2}), (), code=False) == ([1], {})
    assert payload.decode_call(memoryview(b"\x91\x01"), (), code=False) == ([1], {})


@given(st.binary(max_size=300), st.lists(st.binary(max_size=50), max_size=3))
def test_random_bytes_do_no_worse_than_an_error(body: bytes, blobs: list[bytes]) -> None:
    try:
        payload.decode(body, blobs, code=False)
    except (ProtocolError, Unauthorized):
        return


MIXED = [
    1,
    ("a", 2.5),
    {2**70, None},
    np.arange(4),
    np.float32(1),
    datetime.timedelta(1),
    {"t": pa.array([1])},
    1j,
    bytes(BIG),
]


@given(st.data())
def test_damaged_bodies_do_no_worse_than_an_error(data: st.DataObject) -> None:
    body, blobs = payload.encode(MIXED, code=False)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        payload.decode(bytes(damaged if cut % 2 else damaged[:cut]), blobs, code=False)
    except (ProtocolError, Unauthorized):
        return
