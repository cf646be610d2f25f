"""How an attempt ends where it does not end in a value: what its FAIL record says. No I/O.

What the user's code raised arrives as :class:`omnibus.RemoteError`, of whatever class it was: also an error of
Omnibus's own, such as the ``WorkerDied`` of a task that this one waited for, which says nothing about *this* worker.
Only a ``RemoteError`` goes on as the one that it is, so that the first cause shows through any number of tasks that
wait for each other. What the mesh's own code found wrong (an argument that cannot be decoded, a method that is not
there, a result that cannot be sent) arrives as its own class.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import AsyncGeneratorType
from typing import Any, Final

from omnibus.errors import (
    Cancelled,
    CapacityExceeded,
    NotPicklable,
    OmnibusError,
    RemoteError,
    SetupFailed,
    TaskTimeout,
    UsageError,
    WorkerDied,
)
from omnibus.payload import encode_error
from omnibus.protocol import Limits

__all__ = [
    "REVOKED",
    "Abort",
    "Ending",
    "Fault",
    "aborted",
    "check_size",
    "is_surrender",
    "not_a_stream",
    "not_a_value",
    "of_mesh",
    "of_user",
    "revoked",
]

Ending = tuple[dict[str, Any], bytes | None]
"""The head and the body of a FAIL record."""

REVOKED: Final = "Revoked"
"""Names an attempt that never began: the broker hands it out again, and it costs nothing."""

_MESSAGE: Final = 16 * 1024
_LIMITS: Final = Limits()
_OURS: Final = (os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + "/asyncio/")
_SILENT: Final = "<no text: the exception's own methods raised {}>"


class Abort(BaseException):
    """Raised inside a running attempt to end it.

    ``reason`` is ``cancel``, ``timeout``, or ``stop`` where its actor ends.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fault(Exception):
    """Carries an error of the mesh's own through code that may also meet the user's."""

    def __init__(self, error: OmnibusError) -> None:
        super().__init__(error)
        self.error = error


def revoked(why: str) -> Ending:
    """Return how an attempt ends that did not begin."""
    return {"error": REVOKED, "message": why}, None


def aborted(reason: str, timeout: float | None) -> Ending:
    """Return how an attempt ends that was ended from outside; ``timeout`` is what it was allowed."""
    if reason == "timeout":
        allowed = "its timeout" if timeout is None else f"its timeout of {timeout:g} s"
        return {"error": TaskTimeout.__name__, "message": f"it ran longer than {allowed} and was stopped"}, None
    if reason == "stop":
        return {"error": WorkerDied.__name__, "message": "its actor was stopped while it ran"}, None
    return {"error": Cancelled.__name__, "message": "it was cancelled while it ran"}, None


def is_surrender(error: BaseException) -> bool:
    """Say whether code that was asked to end says by ``error`` that it did."""
    # By its name, because importing asyncio for a class would cost each worker some megabytes.
    return isinstance(error, Cancelled) or type(error).__name__ == "CancelledError"


def of_mesh(error: OmnibusError, where: str = "") -> Ending:
    """Return how an attempt ends in an error of the mesh's own; ``where`` is put before its message."""
    message = f"{where}: {error}" if where else str(error)
    return {"error": type(error).__name__, "message": message[:_MESSAGE]}, None


def of_user(error: BaseException, *, code: bool, setup: str = "") -> Ending:
    """Return how an attempt ends in an exception of the user's code, whatever the exception's own methods do.

    ``setup`` names the actor whose making raised it: that is its :class:`SetupFailed`.
    """
    try:
        return _describe(_from_user(error), code, setup)
    except Exception as fault:
        return _bare(error, setup, type(fault).__name__)
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as fault:  # raised by a user's __str__, and no more than that
        return _bare(error, setup, type(fault).__name__)


def _describe(error: BaseException, code: bool, setup: str) -> Ending:
    facts, body = encode_error(error, code=code)
    kind, message = facts["type"], facts["message"]
    if setup:
        text = f"{setup} could not be set up: {_short(kind)}: {message}\n\nRemote traceback:\n{facts['traceback']}"
        return {**facts, "error": SetupFailed.__name__, "message": text}, body
    if type(error) is RemoteError and error.type_name:
        cause = error.__cause__
        body = encode_error(cause, code=code)[1] if cause is not None else None
        return _remote(error.type_name, str(error.args[0]), facts["traceback"]), body
    return _remote(kind, f"{_short(kind)}: {message}" if message else _short(kind), facts["traceback"]), body


def _from_user(error: BaseException) -> BaseException:
    """Leave out of a traceback what called the user's code: the mesh's own, and the loop."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _remote(kind: str, message: str, traceback: str) -> dict[str, Any]:
    return {"error": RemoteError.__name__, "message": message, "type": kind, "traceback": traceback}


def _short(kind: str) -> str:
    return kind.removeprefix("builtins.")


def _bare(error: BaseException, setup: str, fault: str) -> Ending:
    """Return what can be said of an exception whose own methods raise."""
    kind = type.__getattribute__(type(error), "__name__")
    message = f"{kind}: {_SILENT.format(fault)}"
    if setup:
        return {"error": SetupFailed.__name__, "message": f"{setup} could not be set up: {message}"}, None
    return _remote(kind, message, ""), None


# ---------------------------------------------------------------------- values that cannot be sent


def not_a_value(title: str, value: Any) -> NotPicklable:
    """Return the error for a generator that came where a value was expected; close it. ``title`` names the call."""
    if type(value) is not AsyncGeneratorType:
        value.close()
    return NotPicklable(
        f"{title} returned a {type(value).__name__}, which cannot be sent as a value: return a list, or make it an "
        "actor's message and read that by ref.stream(...)"
    )


def not_a_stream(title: str, value: Any) -> UsageError:
    """Return the error for a value that came where a stream was expected."""
    return UsageError(
        f"{title} returned a {type(value).__qualname__}, which cannot be streamed: yield the parts, or return an "
        "iterable; ask() is for a single answer"
    )


def check_size(buffers: Sequence[Any], welcome: Mapping[str, Any]) -> None:
    """Raise :class:`CapacityExceeded` for what no message can hold, by the limits in the broker's ``welcome``."""
    limits = welcome.get("limits") or {}
    most, size = limits.get("blobs", _LIMITS.blobs), limits.get("message_bytes", _LIMITS.message_bytes)
    if len(buffers) >= most:
        raise CapacityExceeded(f"{len(buffers)} large parts, and a message holds {most}: send fewer, or a stream")
    largest = max(memoryview(buffer).nbytes for buffer in buffers)
    if largest > size:
        raise CapacityExceeded(f"a part of {largest} bytes, and a message holds {size}: send it in parts")
