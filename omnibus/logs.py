"""How a process of the mesh logs: one handler on standard error, text for people or JSON lines for programs.

A log call is a static message plus fields::

    _log.warning("peer takes nothing and is given up", extra={"route": route.hex()})

The message never varies, so that it can be searched for and counted; what varies stands in the fields. As text that is
``… WARNING omnibus.brokers.shell  peer takes nothing and is given up  route=00ab``, as JSON one object with ``time``,
``level``, ``logger``, ``message``, and each field beside them.

Only the processes that the mesh starts install this. A program that uses the mesh decides for itself what it shows.
"""

from __future__ import annotations

import json as jsons
import logging
import os
import re
import time
from typing import Any, Final

from omnibus.errors import UsageError

__all__ = ["FORMAT_VARIABLE", "LEVELS", "LEVEL_VARIABLE", "JsonFormatter", "TextFormatter", "install"]

LEVEL_VARIABLE: Final = "OMNIBUS_LOG_LEVEL"
FORMAT_VARIABLE: Final = "OMNIBUS_LOG_FORMAT"
"""``text`` or ``json``. Both variables are inherited by all processes of a mesh."""

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_FORMATS: Final = ("text", "json")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}
_RESERVED: Final = frozenset({"time", "level", "logger", "message", "exception"})
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


def install(level: str | None = None, json: bool | None = None, **fields: Any) -> logging.Handler:
    """Have this process log to standard error, from ``level`` on; return the handler.

    What is ``None`` comes from ``$OMNIBUS_LOG_LEVEL`` and ``$OMNIBUS_LOG_FORMAT``, else it is ``warning`` and text.
    ``fields`` say which process it is, and stand on every line. A second call replaces what the first installed.

    Raises :class:`omnibus.UsageError` for a level or a format that there is not.
    """
    chosen = _one_of(level or os.environ.get(LEVEL_VARIABLE) or "warning", LEVELS, "log level")
    if json is None:
        json = _one_of(os.environ.get(FORMAT_VARIABLE) or "text", _FORMATS, f"${FORMAT_VARIABLE}") == "json"
    handler = _Handler()
    handler.setFormatter(JsonFormatter(fields) if json else TextFormatter(fields))
    root = logging.getLogger()
    for other in root.handlers[:]:
        if isinstance(other, _Handler):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(chosen.upper())
    return handler


class _Handler(logging.StreamHandler[Any]):
    """Ours, told apart from what a user's code installed in the same process."""


class TextFormatter(logging.Formatter):
    """A line for people: local time, level, logger, message, then fields as ``name=value``."""

    def __init__(self, fields: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it a traceback where the record has one."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        shown = [f"{name}={_word(value)}" for name, value in (self._fields | _fields(record)).items()]
        head = f"{clock}.{int(record.msecs):03d} {record.levelname} {record.name}"
        parts = [head, record.getMessage(), *([" ".join(shown)] if shown else [])]
        return "\n".join(["  ".join(parts), *filter(None, [_trace(self, record)])])


class JsonFormatter(logging.Formatter):
    """One JSON object a line, its time in UTC. A field with the name of one of its own keys gets a ``_`` in front."""

    def __init__(self, fields: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A value that JSON lacks is shown as Python shows it."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in (self._fields | _fields(record)).items():
            told[f"_{name}" if name in _RESERVED else name] = value
        if trace := _trace(self, record):
            told["exception"] = trace
        return jsons.dumps(told, default=repr, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the call gave as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _word(value: Any) -> str:
    """Return a field's value on one line, in quotes where it would not be read back as one word."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else jsons.dumps(text, ensure_ascii=False)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the exception and the stack of a record, as text."""
    parts = [record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")]
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(filter(None, parts))


def _one_of(word: str, allowed: tuple[str, ...], what: str) -> str:
    if word.lower() not in allowed:
        raise UsageError(f"{what} {word!r} is unknown: expected one of {', '.join(allowed)}")
    return word.lower()
