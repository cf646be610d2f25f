"""A user's exception as plain data, and back: what travels of one that was raised in another process.

Of the exception travel its class's name, its message, its traceback as text, and its arguments where they are
plain values. It is rebuilt without a pickle, and only from a class that is imported already: nothing is
loaded by a name off the wire.
"""

from __future__ import annotations

import sys
import traceback
import types
from typing import Any, Final

import msgpack

from omnibus.errors import ProtocolError, RemoteError, by_name
from omnibus.lifting import READERS
from omnibus.lowering import Writer, pack

__all__ = ["encode_error", "error_from", "rebuild_cause"]

_MESSAGE: Final = 16 * 1024
_TRACEBACK: Final = 64 * 1024
_ARGUMENTS: Final = 16 * 1024
"""Characters of a message and of a traceback that travel, and bytes of the arguments."""


def encode_error(error: BaseException, *, code: bool) -> tuple[dict[str, str], bytes | None]:
    """Return ``type`` (``module.qualname``), ``message`` and ``traceback``, and the body of plain arguments.

    Never raises, whatever the exception's own methods do. ``code`` changes nothing: an exception is never
    pickled.
    """
    kind = type(error)
    facts = {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "message": _text(lambda: str(error), _MESSAGE),
        "traceback": _text(lambda: "".join(traceback.format_exception(error)), _TRACEBACK),
    }
    return facts, _arguments(error)


def _text(make: Any, limit: int) -> str:
    """Return a text that msgpack can carry, its middle cut out where it is long."""
    try:
        text: str = make()
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # a user's __str__ may raise anything
        return f"<no text: {type(error).__name__} was raised by the exception's own methods>"
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[… {len(text) - limit} characters left out …]\n{text[-limit // 2 :]}"
    return text


def _arguments(error: BaseException) -> bytes | None:
    args: Any = error.args
    if isinstance(error, OSError) and error.filename is not None:
        args = (error.errno, error.strerror, error.filename, None, error.filename2)[
            : 5 if error.filename2 else 3
        ]
    try:
        writer = Writer(code=False)
        body = pack(writer.top(list(args), "args"))
    except Exception:  # values that are not plain, or whose own methods fail
        return None
    return body if not writer.blobs and len(body) <= _ARGUMENTS else None


def rebuild_cause(type_name: str, body: bytes | None) -> BaseException | None:
    """Return the exception that :func:`encode_error` described, or ``None`` where that cannot be done safely.

    The class must be a subclass of :class:`Exception` that this process imported by itself. Never raises.
    """
    kind = _imported(type_name)
    if kind is None or body is None:
        return None
    try:
        args = msgpack.unpackb(body, strict_map_key=False, ext_hook=READERS[False], timestamp=3)
        return _make(kind, args) if type(args) is list else None
    except Exception:  # a damaged body, or a constructor that raises
        return None


def _make(kind: type[Exception], args: list[Any]) -> BaseException | None:
    try:
        made = kind(*args)
    except TypeError:  # its __init__ takes others than it hands on to Exception
        if not isinstance(
            kind.__init__, types.FunctionType
        ):  # one of the interpreter's own, whose state would be missing
            return None
        made = kind.__new__(kind, *args)
        made.args = tuple(args)
    return made if isinstance(made, Exception) else None


def _imported(type_name: str) -> type[Exception] | None:
    """Return the class of that name if it is there; looks into namespaces alone, so that no hook runs."""
    parts = type_name.split(".") if type(type_name) is str else []
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if module is None:
            continue
        found: Any = module
        for name in parts[split:]:
            space = getattr(found, "__dict__", None)
            found = space.get(name) if space is not None else None
        return found if isinstance(found, type) and issubclass(found, Exception) else None
    return None


def error_from(head: Any, body: bytes | None) -> Exception:
    """Return the exception that an error head describes; a remote one with its cause, where no pickle is needed."""
    if not isinstance(head, dict):
        return ProtocolError(f"an error head must be a map, not {head!r:.80}")
    cls = by_name(str(head.get("error")))
    message = str(head.get("message") or head.get("error"))
    if not issubclass(cls, RemoteError):
        return cls(message)
    type_name = str(head.get("type", ""))
    error = cls(message, type_name=type_name, traceback=str(head.get("traceback", "")))
    error.__cause__ = rebuild_cause(type_name, body)
    return error
