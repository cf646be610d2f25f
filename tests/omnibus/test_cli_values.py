"""Arguments as JSON, results as people and scripts read them."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.commands.values import close_to, for_people, keywords, parse_all, parse_json, plain
from omnibus.errors import UsageError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_json_is_read_and_shown_as_it_was(value: object) -> None:
    assert parse_json(json.dumps(value), "argument 1") == value
    assert plain(value) == value


def test_arguments_are_numbered_in_errors() -> None:
    assert parse_all(['"a"', "1", "null"]) == ["a", 1, None]
    assert parse_all(None) == []
    with pytest.raises(UsageError, match=r"argument 2 is not JSON: 'b'; if it is a text, write '\"b\"'"):
        parse_all(["1", "b"])
    with pytest.raises(UsageError, match="argument 1 is not JSON"):
        parse_all(["[" * 100_000])


def test_keywords_have_names() -> None:
    assert keywords(["a=1", "b={}"]) == {"a": 1, "b": {}}
    assert keywords(["text=\"x=y\""]) == {"text": "x=y"}
    for wrong in ("a", "=1", "1a=1", "a-b=1"):
        with pytest.raises(UsageError, match="is not of the form NAME=JSON"):
            keywords([wrong])


class Strange:
    def tolist(self) -> object:
        raise TypeError("no")

    def __repr__(self) -> str:
        return "<strange>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, "a"), [1, "a"]),
        ({3}, [3]),
        ({1: None}, {"1": None}),
        (b"\xff", {"base64": "/w=="}),
        (bytearray(b"a"), {"base64": "YQ=="}),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (np.float32(0.5), 0.5),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array([np.nan, 1.0]), ["nan", 1.0]),
        (pa.array([1, None]), [1, None]),
        (1 + 2j, "(1+2j)"),
        (Strange(), "<strange>"),
    ],
)
def test_what_json_lacks_is_shown_plainly(value: object, shown: object) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False)


def test_people_see_a_text_as_it_is() -> None:
    assert for_people("a\nb") == "a\nb"
    assert for_people(["a"]) == "['a']"
    assert for_people(None) == "None"


def test_a_close_name_is_offered() -> None:
    assert close_to("conter", ["counter", "model"]) == "; did you mean 'counter'?"
    assert close_to("x", ["counter"]) == ""
