"""The mesh's log lines: a static message and its fields, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from omnibus import logs
from omnibus.errors import UsageError

_log = logging.getLogger("omnibus.brokers.shell")


@pytest.fixture(autouse=True)
def _own_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give back the root logger as it was, and begin without settings in the environment."""
    for name in (logs.LEVEL_VARIABLE, logs.FORMAT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(handler: logging.Handler) -> io.StringIO:
    """Have the handler write where the test can read."""
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)
    return stream


def test_a_line_for_people_has_time_level_logger_message_and_fields() -> None:
    stream = lines(logs.install("info"))
    _log.info("link changed", extra={"link": "up", "why": "no answer", "count": 3})
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO omnibus\.brokers\.shell  link changed  (.*)\n"
    found = re.fullmatch(pattern, stream.getvalue())
    assert found is not None, stream.getvalue()
    assert found[1] == 'link=up why="no answer" count=3'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('"', '"\\""'),
        ("a\nb", '"a\\nb"'),
        (None, "None"),
        (b"x", '"b\'x\'"'),
    ],
)
def test_a_field_stays_on_its_line(value: Any, shown: str) -> None:
    stream = lines(logs.install())
    _log.warning("message", extra={"field": value})
    assert stream.getvalue().endswith(f"  message  field={shown}\n")


def test_without_fields_the_message_is_the_end() -> None:
    stream = lines(logs.install())
    _log.warning("plain")
    assert stream.getvalue().endswith("omnibus.brokers.shell  plain\n")


def test_a_json_line_is_an_object_with_the_fields_beside_the_message() -> None:
    stream = lines(logs.install("debug", json=True, node="here"))
    _log.debug("started", extra={"pid": 7, "odd": {1}, "level": "mine", "text": "zwölf"})
    told = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "debug",
        "logger": "omnibus.brokers.shell",
        "message": "started",
        "node": "here",
        "pid": 7,
        "odd": "{1}",
        "_level": "mine",
        "text": "zwölf",
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_an_exception_and_a_stack_are_shown(as_json: bool) -> None:
    stream = lines(logs.install(json=as_json))
    try:
        raise LookupError("gone")
    except LookupError:
        _log.exception("failed", stack_info=True)
    text = stream.getvalue()
    shown = json.loads(text)["exception"] if as_json else text
    assert "LookupError: gone" in shown
    assert "Stack (most recent call last)" in shown
    if as_json:
        assert text.count("\n") == 1


def test_what_is_below_the_level_is_not_shown() -> None:
    stream = lines(logs.install("error"))
    _log.warning("quiet")
    assert stream.getvalue() == ""


def test_a_second_call_replaces_the_first_and_leaves_others_alone() -> None:
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    first, second = logs.install(), logs.install(json=True)
    handlers = logging.getLogger().handlers
    assert first not in handlers
    assert second in handlers
    assert other in handlers


def test_the_environment_decides_what_the_call_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "DEBUG")
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    stream = lines(logs.install())
    _log.debug("shown")
    assert json.loads(stream.getvalue())["message"] == "shown"
    stream = lines(logs.install("warning", json=False))
    _log.info("not shown")
    _log.warning("shown")
    assert stream.getvalue().endswith("  shown\n")
    assert stream.getvalue().count("\n") == 1


def test_an_unknown_level_or_format_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="log level 'loud' is unknown: expected one of debug, info"):
        logs.install("loud")
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "xml")
    with pytest.raises(UsageError, match=r"\$OMNIBUS_LOG_FORMAT 'xml' is unknown: expected one of text, json"):
        logs.install()


def test_a_process_that_installs_it_logs_to_standard_error() -> None:
    script = (
        "import logging; from omnibus import logs; logs.install('info', json=True, role='test')\n"
        "logging.getLogger('omnibus.x').info('here', extra={'n': 1})\n"
        "logging.getLogger('user').warning('formatted %s', 'too')"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = map(json.loads, ran.stderr.splitlines())
    assert (first["message"], first["n"], first["role"]) == ("here", 1, "test")
    assert second["message"] == "formatted too"
    assert not ran.stdout
