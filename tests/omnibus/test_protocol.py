"""The codec: what goes in comes out; what is not OMB/1 is refused in words, at once, by one kind of error."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import ProtocolError
from omnibus.protocol import (
    BATCH,
    DEPTH,
    INLINE,
    SIGNATURE,
    Limits,
    Record,
    Verb,
    decode,
    encode,
    fit,
    messages,
    split_delimiter,
)

SMALL = Limits(batch_bytes=200, body=40, records=3, blobs=2)


def batch(*records: Any) -> list[bytes]:
    return [SIGNATURE, msgpack.packb(list(records))]


# --- what may be sent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_goes_through(verb: Verb) -> None:
    record = [int(verb), 7, {"a": [1, 2.5, None, b"x"]}, b"body", 0]
    assert decode(encode([record])) == [record]


def test_a_verb_that_nobody_knows_goes_through_for_its_receiver_to_judge() -> None:
    assert decode(batch([999, 0, None, None, 0])) == [[999, 0, None, None, 0]]


def test_verbs_have_distinct_numbers() -> None:
    assert len({int(verb) for verb in Verb}) == len(Verb.__members__)


def test_an_empty_batch_is_a_message() -> None:
    assert decode(encode([])) == []


def test_blobs_follow_in_order_and_are_not_copied() -> None:
    first, second, third = b"1", bytearray(b"2"), memoryview(b"3")
    frames = encode([[12, 1, 1, None, 2], [12, 2, 1, b"", 1]], [first, second, third])
    assert frames[0] == SIGNATURE
    assert [id(frame) for frame in frames[2:]] == [id(first), id(second), id(third)]
    assert [record[4] for record in decode(frames)] == [2, 1]


@pytest.mark.parametrize("head", [None, 5, -5, 2.5, "text", b"bytes", [1, 2, 3], {"a": {"b": [1]}}, True])
def test_a_head_may_be_any_plain_value(head: Any) -> None:
    assert decode(batch([12, 1, head, None, 0]))[0][2] == head


def test_a_number_need_not_be_packed_in_the_shortest_form() -> None:
    long_form = b"\x91\xdc\x00\x05\xcd\x00\x0c\xcf" + bytes(7) + b"\x01\xc0\xc5\x00\x01\x90\xd2" + bytes(4)
    assert decode([SIGNATURE, long_form]) == [[12, 1, None, b"\x90", 0]]


def test_an_id_has_up_to_64_bits() -> None:
    assert decode(batch([50, 2**64 - 1, None, None, 0]))[0][1] == 2**64 - 1


# --- what may not --------------------------------------------------------------------------------------------------

MALFORMED: dict[str, tuple[list[Any], str]] = {
    "no frames": ([], "message of 0 frames starts with b''; expected the signature b'OMB1'"),
    "no batch": ([SIGNATURE], "message of 1 frames starts with b'OMB1'; expected the signature b'OMB1', then"),
    "another version": ([b"OMB2", b"\x90"], "starts with b'OMB2'; expected the signature b'OMB1'"),
    "a long first frame": ([b"x" * 1000, b"\x90"], "starts with b'xxxxxxxxxxxxxxxx'; expected"),
    "nothing in the batch": ([SIGNATURE, b""], "batch is not valid msgpack"),
    "half a batch": ([SIGNATURE, b"\x91\x95\x0c"], "batch is not valid msgpack"),
    "more than a batch": ([SIGNATURE, b"\x90\x90"], "batch is not valid msgpack"),
    "a reserved byte": ([SIGNATURE, b"\xc1"], "batch is not valid msgpack"),
    "text that is not UTF-8": ([SIGNATURE, b"\x91\x95\x0c\x01\xa1\xff\xc0\x00"], "batch is not valid msgpack"),
    "a map key that is no text": (batch([12, 1, {1: 2}, None, 0]), "batch is not valid msgpack"),
    "a count without its items": ([SIGNATURE, b"\xdd\xff\xff\xff\xff"], "batch is not valid msgpack"),
    "a map's count without its items": ([SIGNATURE, b"\xdf\xff\xff\xff\xff"], "batch is not valid msgpack"),
    "a text's length without the text": ([SIGNATURE, b"\xdb\xff\xff\xff\xff"], "batch is not valid msgpack"),
    "nesting without end": ([SIGNATURE, b"\x91" * 100_000], "batch is not valid msgpack"),
    "a map": ([SIGNATURE, b"\x80"], "batch must be a msgpack array"),
    "a number": ([SIGNATURE, b"\x05"], "batch must be a msgpack array"),
    "a record that is a map": (batch({}), "is not an array of five fields"),
    "a record that is a number": (batch(12), "record 12 is not an array of five fields"),
    "four fields": (batch([12, 1, None, None]), "is not an array of five fields"),
    "six fields": (batch([12, 1, None, None, 0, 0]), "is not an array of five fields"),
    "a verb that is text": (batch(["SUBMIT", 1, None, None, 0]), "verb, id and blobs must be non-negative integers"),
    "a verb that is true": (batch([True, 1, None, None, 0]), "verb, id and blobs must be non-negative integers"),
    "an id that is a float": (batch([12, 1.0, None, None, 0]), "verb, id and blobs must be non-negative integers"),
    "an id below zero": (batch([12, -1, None, None, 0]), "verb, id and blobs must be non-negative integers"),
    "no count of blobs": (batch([12, 1, None, None, None]), "verb, id and blobs must be non-negative integers"),
    "blobs below zero": (batch([12, 1, None, None, 1], [12, 2, None, None, -1]), "must be non-negative integers"),
    "a body that is text": (batch([12, 1, None, "body", 0]), "the body must be a msgpack bin or nil"),
    "a body that is an array": (batch([12, 1, None, [], 0]), "the body must be a msgpack bin or nil"),
    "blobs that did not come": (batch([12, 1, None, None, 2]), "records own 2 blobs, but 0 blob frames came"),
    "blobs that nobody owns": ([*batch([12, 1, None, None, 0]), b"x"], "records own 0 blobs, but 1 blob frames came"),
    "blobs beyond counting": (batch(*[[12, 1, None, None, 2**64 - 1]] * 3), "blobs, but 0 blob frames came"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_refused_in_words(name: str) -> None:
    frames, words = MALFORMED[name]
    with pytest.raises(ProtocolError) as caught:
        decode(frames)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_limits_are_stated_in_the_refusal() -> None:
    with pytest.raises(ProtocolError, match="batch of 201 bytes; at most 200 may be sent at a time"):
        decode([SIGNATURE, bytes(201)], SMALL)
    with pytest.raises(ProtocolError, match="array of at most 3 records"):
        decode(batch(*[[12, 1, None, None, 0]] * 4), SMALL)
    with pytest.raises(ProtocolError, match="message of 3 blobs; at most 2 are allowed"):
        decode([*batch([12, 1, None, None, 3]), b"", b"", b""], SMALL)
    with pytest.raises(ProtocolError, match="a body of 41 bytes inside the batch, where 40 are allowed"):
        decode(batch([12, 1, None, bytes(41), 0]), SMALL)


def test_what_just_fits_is_taken() -> None:
    assert len(decode(batch(*[[12, 1, None, None, 0]] * 3), SMALL)) == 3
    assert decode([*batch([12, 1, None, None, 2]), b"", b""], SMALL)[0][4] == 2
    assert len(decode(batch([12, 1, None, bytes(40), 0]), SMALL)[0][3]) == 40
    record = [12, 1, "x" * 180, None, 0]
    filled = batch(record)[1]
    assert len(filled) <= SMALL.batch_bytes
    assert decode([SIGNATURE, filled], SMALL) == [record]


def nested(depth: int, kind: type) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_a_head_nests_so_deep_and_no_deeper(kind: type) -> None:
    assert decode(batch([12, 1, nested(DEPTH, kind), None, 0]))
    with pytest.raises(ProtocolError, match=f"nests arrays and maps more than {DEPTH} deep"):
        decode(batch([12, 1, nested(DEPTH + 1, kind), None, 0]))


@pytest.mark.parametrize("depth", [100, 500, 900, 1000, 1020, 1100, 5000])
@pytest.mark.parametrize("before", [b"", b"\x91", b"\x91\x95\x01\x00", b"\x91\x95\x01\xa0"])
def test_nesting_at_which_python_itself_gives_up_is_a_protocol_error(depth: int, before: bytes) -> None:
    for layer in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(ProtocolError):
            decode([SIGNATURE, before + layer * depth + b"\xc0" + b"\xc0\x00" * (len(before) > 1)])


def test_a_head_cannot_hold_a_flood_of_arrays() -> None:
    flood = b"\x91\x95\x0c\x01\xdc\x00\x10" + (b"\xdc\xff\xff" + b"\x90" * 65_535) * 16 + b"\xc0\x00"
    started = time.monotonic()
    with pytest.raises(ProtocolError, match="heads hold more than 65536 arrays and maps"):
        decode([SIGNATURE, flood])
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "item",
    [
        b"\xdd" + (400_000).to_bytes(4, "big") + b"\x05" * 400_000,
        b"\xdb" + (4_000_000).to_bytes(4, "big") + b"x" * 4_000_000,
        b"\xc6" + (4_000_000).to_bytes(4, "big") + b"x" * 4_000_000,
        b"\xc9" + (4_000_000).to_bytes(4, "big") + b"\x07" + b"x" * 4_000_000,
        b"\xdf" + (100_000).to_bytes(4, "big") + b"".join(b"\xa6%06d\x05" % number for number in range(100_000)),
    ],
    ids=["array", "text", "bytes", "ext", "map"],
)
def test_a_large_wrong_record_is_shown_in_few_words_and_little_time(item: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(ProtocolError, match="is not an array of five fields") as caught:
        decode([SIGNATURE, b"\x91" + item])
    assert len(str(caught.value)) < 200
    assert time.monotonic() - started < 2


# --- anything at all -----------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
natural = st.integers(0, 2**64 - 1)


@st.composite
def sendable(draw: st.DrawFn) -> tuple[list[Record], list[bytes]]:
    records, blobs = [], []
    for _ in range(draw(st.integers(0, 6))):
        owned = draw(st.lists(st.binary(max_size=20), max_size=3))
        records.append([draw(natural), draw(natural), draw(plain), draw(st.none() | st.binary()), len(owned)])
        blobs += owned
    return records, blobs


@given(sendable())
def test_what_is_encoded_is_decoded(message: tuple[list[Record], list[bytes]]) -> None:
    records, blobs = message
    frames = encode(records, blobs)
    assert decode(frames) == records
    assert frames[2:] == blobs


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames_are_refused_and_nothing_else_happens(frames: list[bytes]) -> None:
    for candidate in (frames, [SIGNATURE, *frames]):
        refused_or_records(candidate)


@given(st.recursive(plain, lambda inner: st.lists(inner, max_size=6), max_leaves=30), st.lists(st.binary(), max_size=3))
def test_random_structures_are_refused_or_are_records(tree: Any, blobs: list[bytes]) -> None:
    refused_or_records([SIGNATURE, msgpack.packb(tree), *blobs])


@given(sendable(), st.data())
def test_damaged_messages_are_refused_or_are_records(
    message: tuple[list[Record], list[bytes]], data: st.DataObject
) -> None:
    frames = encode(*message)
    damaged = bytearray(frames[1])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    refused_or_records([SIGNATURE, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), *frames[2:]])
    refused_or_records([SIGNATURE, bytes(damaged), *frames[2:]])


def refused_or_records(frames: list[bytes]) -> None:
    try:
        records = decode(frames)
    except ProtocolError as error:
        words = str(error)
    else:
        words = ""
        check_records(records, frames)
    assert len(words) < 600


def check_records(records: list[Record], frames: list[bytes]) -> None:
    assert sum(record[4] for record in records) == len(frames) - 2
    for verb, about, _, body, count in records:
        assert type(verb) is int and verb >= 0
        assert type(about) is int and about >= 0
        assert body is None or type(body) is bytes
        assert count >= 0
    # What was let in can be sent on as it is, and shown.
    assert decode(encode(records, frames[2:])) == records or "nan" in repr(records)


# --- bodies, splitting, delimiters ---------------------------------------------------------------------------------


def test_a_large_body_becomes_the_first_blob() -> None:
    assert fit(None, ()) == (None, ())
    assert fit(bytes(INLINE - 1), [b"x"]) == (bytes(INLINE - 1), [b"x"])
    assert fit(bytes(INLINE), [b"x"]) == (None, [bytes(INLINE), b"x"])


@pytest.mark.parametrize("count", [1, BATCH, BATCH + 1, 5 * BATCH + 3])
def test_records_are_split_into_batches_with_their_blobs(count: int) -> None:
    records = [[12, number, None, b"", number % 3] for number in range(count)]
    blobs = [b"%d" % number for number in range(count) for _ in range(number % 3)]
    made = messages(records, blobs)
    assert [record for frames in made for record in decode(frames)] == records
    assert [blob for frames in made for blob in frames[2:]] == blobs
    assert len(made) == -(-count // BATCH)
    assert all(len(decode(frames)) <= BATCH for frames in made)


def test_a_batch_that_would_be_refused_for_its_size_is_split() -> None:
    records = [[51, number, {"traceback": "x" * 1_000_000}, None, 1] for number in range(40)]
    made = messages(records, [b"%d" % number for number in range(40)])
    assert len(made) > 1
    assert [record[1] for frames in made for record in decode(frames)] == list(range(40))
    assert [blob for frames in made for blob in frames[2:]] == [b"%d" % number for number in range(40)]


def test_a_message_of_too_many_blobs_is_split() -> None:
    records = [[12, number, None, b"", 9_000] for number in range(3)]
    made = messages(records, [b""] * 27_000)
    assert [len(frames) - 2 for frames in made] == [9_000] * 3
    assert [decode(frames)[0][1] for frames in made] == [0, 1, 2]


def test_a_single_record_is_never_split() -> None:
    assert len(messages([[51, 1, {"traceback": "x" * 20_000_000}, None, 0]])) == 1
    assert len(messages([[51, 1, None, b"", 20_000]], [b""] * 20_000)) == 1


def test_no_records_make_one_empty_message() -> None:
    assert messages([]) == [[SIGNATURE, b"\x90"]]


def test_a_delimiter_is_told_apart() -> None:
    assert split_delimiter([b"", SIGNATURE, b"\x90"]) == (True, [SIGNATURE, b"\x90"])
    assert split_delimiter([SIGNATURE, b"\x90"]) == (False, [SIGNATURE, b"\x90"])
    assert split_delimiter([b"", b"", SIGNATURE]) == (True, [b"", SIGNATURE])
    assert split_delimiter([]) == (False, [])
