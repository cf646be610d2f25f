"""Exceptions: described whatever they do, and rebuilt only from classes that are here."""

from __future__ import annotations

import sys
import types
from typing import Any

import msgpack
import pytest

from omnibus.errors import RemoteError
from omnibus.payload import encode_error, rebuild_cause

sys.modules.setdefault(__name__, types.ModuleType(__name__)).__dict__.update(globals())


class Other(Exception):
    """Its arguments are others than those it hands on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


class Wild(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(Exception):
    def __new__(cls, *args: Any) -> Any:
        return 5


class Failing(Exception):
    def __init__(self, *args: Any) -> None:
        raise RuntimeError("not again")


class Outer:
    class Inner(ValueError):
        pass


sys.modules[__name__].__dict__.update(globals())


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:
        return found


def there_and_back(error: BaseException) -> BaseException | None:
    facts, body = encode_error(caught(error), code=True)
    msgpack.packb(facts)
    return rebuild_cause(facts["type"], body)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 1, (2, None)),
        KeyError("x"),
        ZeroDivisionError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
        StopIteration(7),
        RemoteError("text"),
        Outer.Inner("nested"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_rebuilt(error: Exception) -> None:
    found = there_and_back(error)
    assert type(found) is type(error)
    assert found.args == error.args


def test_an_os_error_keeps_its_file() -> None:
    found = there_and_back(FileNotFoundError(2, "No such file", "/x"))
    assert isinstance(found, FileNotFoundError)
    assert (found.errno, found.filename) == (2, "/x")
    moved = there_and_back(OSError(18, "Cross-device", "/x", None, "/y"))
    assert isinstance(moved, OSError)
    assert (moved.filename, moved.filename2) == ("/x", "/y")
    assert there_and_back(OSError("plain")).args == ("plain",)  # type: ignore[union-attr]


def test_the_description_has_type_message_and_traceback() -> None:
    facts, _ = encode_error(caught(ValueError("bad \ud800")), code=False)
    assert facts["type"] == "builtins.ValueError"
    assert facts["message"] == "bad \\ud800"
    assert "test_faults.py" in facts["traceback"]
    assert "in caught" in facts["traceback"]


def test_a_chain_is_in_the_traceback() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    assert "KeyError: 'inner'" in encode_error(error, code=False)[0]["traceback"]


def test_long_texts_lose_their_middle() -> None:
    facts, body = encode_error(ValueError("a" * 50_000 + "z" * 50_000), code=False)
    assert len(facts["message"]) < 17_000
    assert facts["message"][0] + facts["message"][-1] == "az"
    assert "characters left out" in facts["message"]
    assert body is None


def test_an_exception_whose_methods_fail_is_described() -> None:
    facts, body = encode_error(caught(Wild(1)), code=False)
    assert facts["type"].endswith("Wild")
    assert "RuntimeError" in facts["message"]
    assert rebuild_cause(facts["type"], body) is not None


@pytest.mark.parametrize("argument", [object(), bytes(100_000), [[]] * 20_000, ValueError])
def test_arguments_that_are_not_plain_and_small_stay_behind(argument: Any) -> None:
    assert encode_error(ValueError(argument), code=True)[1] is None


def test_a_constructor_with_other_arguments_is_passed_by() -> None:
    found = there_and_back(Other(5, "x"))
    assert isinstance(found, Other)
    assert str(found) == "5 x"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "os.system",
            "builtins.int",
            "builtins.SystemExit",
            "builtins.KeyboardInterrupt",
            "builtins.BaseException",
        ),
        *(
            "no.such.Error",
            "builtins",
            "",
            "...",
            "builtins.ValueError.args",
            "builtins.ValueError.<locals>.x",
        ),
        *(
            f"{__name__}.Odd",
            f"{__name__}.Failing",
            f"{__name__}.Outer",
            f"{__name__}.Outer.Missing",
            f"{__name__}.sys.exit",
        ),
    ],
)
def test_nothing_else_is_made(name: str) -> None:
    assert rebuild_cause(name, b"\x91\x01") is None


def test_a_module_that_is_not_loaded_is_not_loaded() -> None:
    sys.modules.pop("this", None)
    assert rebuild_cause("this.Error", b"\x90") is None
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "body", [None, b"", b"\x01", b"\xc1", b"\x80", msgpack.packb([msgpack.ExtType(8, b"\x93\xc4\0\0\0")])]
)
def test_a_body_that_is_no_list_of_arguments_makes_nothing(body: bytes | None) -> None:
    assert rebuild_cause("builtins.ValueError", body) is None


def test_names_of_the_wrong_type_make_nothing() -> None:
    assert rebuild_cause(5, b"\x90") is None  # type: ignore[arg-type]
    assert rebuild_cause("builtins.UnicodeDecodeError", b"\x90") is None
