"""Reading fields: what is right comes through, and an error names the field, its value and what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.reading import Reader, short
from omnibus.errors import ProtocolError
from omnibus.protocol import Limits

LIMITS = Limits(name=8)


def read(value: Any) -> Reader:
    return Reader({"key": value}, "the thing", LIMITS)


@pytest.mark.parametrize("head", [None, 1, "x", [], b""])
def test_a_head_must_be_a_map(head: Any) -> None:
    with pytest.raises(ProtocolError, match="the thing carries a map, not "):
        Reader(head, "the thing", LIMITS)


def test_missing_and_nil_read_as_the_default() -> None:
    for reader in (Reader({}, "it", LIMITS), read(None)):
        assert "key" not in reader
        assert reader.text("key") is None
        assert reader.text("key", "x") == "x"
        assert reader.remark("key", "none") == "none"
        assert reader.binary("key") is None
        assert reader.number("key", 2.5, 0, 1) == 2.5
        assert reader.integer("key", 7, 0, 1) == 7
        assert reader.seconds("key") is None
        assert reader.flag("key") is False
        assert reader.names("key") == ()
        assert reader.labels("key") == {}
        assert reader.numbers("key") == []


@pytest.mark.parametrize(
    ("method", "value", "arguments", "result"),
    [
        ("text", "12345678", (), "12345678"),
        ("remark", "long enough to be cut" * 9, ("",), ("long enough to be cut" * 9)[:64]),
        ("remark", 5, ("else",), "else"),
        ("binary", b"x", (), b"x"),
        ("number", 1, (0, 0, 1), 1),
        ("number", 0.5, (0, 0, 1), 0.5),
        ("integer", 1, (0, 0, 1), 1),
        ("seconds", 2, (), 2.0),
        ("flag", True, (), True),
        ("names", ["a", "b"], (), ("a", "b")),
        ("labels", {"a": "b"}, (), {"a": "b"}),
        ("numbers", [0, 5], (), [0, 5]),
    ],
)
def test_a_right_value_comes_through(method: str, value: Any, arguments: tuple[Any, ...], result: Any) -> None:
    assert getattr(read(value), method)("key", *arguments) == result


@pytest.mark.parametrize(
    ("method", "value", "arguments", "expected"),
    [
        ("text", "", (), "a string of 1 to 8 characters"),
        ("text", "123456789", (), "a string of 1 to 8 characters"),
        ("text", b"x", (), "a string of 1 to 8 characters"),
        ("binary", b"", (), "1 to 64 bytes"),
        ("binary", bytes(65), (), "1 to 64 bytes"),
        ("binary", "x", (), "1 to 64 bytes"),
        ("number", "1", (0, 0, 1), "a number from 0 to 1"),
        ("number", True, (0, 0, 1), "a number from 0 to 1"),
        ("number", float("nan"), (0, 0, 1), "a number from 0 to 1"),
        ("number", float("inf"), (0, 0, 1), "a number from 0 to 1"),
        ("number", 1.5, (0, 0, 1), "a number from 0 to 1"),
        ("integer", 1.0, (0, 0, 1), "an integer from 0 to 1"),
        ("integer", False, (0, 0, 1), "an integer from 0 to 1"),
        ("integer", -1, (0, 0, 1), "an integer from 0 to 1"),
        ("seconds", -1, (), "a number from 0"),
        ("flag", 1, (), "true or false"),
        ("names", "abc", (), "a list of at most 64 strings"),
        ("names", ["a", 1], (), "a list of at most 64 strings"),
        ("names", ["a"] * 65, (), "a list of at most 64 strings"),
        ("names", [""], (), "a list of at most 64 strings"),
        ("numbers", 5, (), "a list of whole numbers"),
        ("numbers", [1, -1], (), "a list of whole numbers"),
        ("numbers", [1, True], (), "a list of whole numbers"),
        ("labels", ["a"], (), "a map of at most 64 strings"),
        ("labels", {"a": 1}, (), "a map of at most 64 strings"),
        ("labels", {b"a": "b"}, (), "a map of at most 64 strings"),
        ("labels", {"a": "123456789"}, (), "strings of 1 to 8 characters"),
        ("labels", {str(index): "x" for index in range(65)}, (), "a map of at most 64 strings"),
    ],
)
def test_a_wrong_value_is_named(method: str, value: Any, arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        getattr(read(value), method)("key", *arguments)
    text = str(caught.value)
    assert text.startswith("the thing: 'key' must be ")
    assert expected in text
    assert len(text) < 350


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (12, "12"),
        (1.5, "1.5"),
        ("abc", "'abc'"),
        (b"abc", "b'abc'"),
        ("x" * 1000, "'" + "x" * 60 + "'..."),
        ([1] * 1000, "a list of 1000"),
        ({"a": 1}, "a dict of 1"),
        (Limits(), "a Limits"),
    ],
)
def test_a_value_is_shown_in_a_few_words(value: Any, text: str) -> None:
    assert short(value) == text
