"""The records that a broker sends to a node, read and checked. Keys that this version does not know are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from omnibus.errors import ProtocolError
from omnibus.sharedmem import Reason

from .restart import RestartPolicy

__all__ = ["Abort", "Halt", "Start", "Watch", "read_abort", "read_halt", "read_recall", "read_start", "read_watch"]

_NAME: Final = 256
_LONG: Final = 1e9
GRACE: Final = 1.0
"""Seconds between the steps of a ladder where the record does not say."""


@dataclass(frozen=True, slots=True)
class Start:
    """START: a child that is wanted."""

    name: str
    role: str
    cpus: float = 1.0
    devices: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    credits: int = 1
    restart: RestartPolicy | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """HALT: the end of a child for good, by its name or its session; killed after ``grace`` seconds."""

    name: str | None
    session: bytes | None
    grace: float


@dataclass(frozen=True, slots=True)
class Watch:
    """WATCH: an attempt that may run for ``timeout`` seconds."""

    session: bytes
    timeout: float
    grace: float


@dataclass(frozen=True, slots=True)
class Abort:
    """ABORT: an attempt that should end."""

    session: bytes
    reason: Reason
    grace: float


def read_start(head: Any) -> Start:
    """Return what a START asks for; raises :class:`ProtocolError` naming the key, its value and what was expected."""
    fields = _map(head, "START")
    role = fields.get("role")
    if role not in ("worker", "actor"):
        raise ProtocolError(f"START 'role' must be worker or actor, not {role!r:.80}")
    devices = fields.get("devices") or ()
    if not isinstance(devices, (list, tuple)) or not all(isinstance(device, str) for device in devices):
        raise ProtocolError(f"START 'devices' must be a list of strings, not {devices!r:.80}")
    env = fields.get("env") or {}
    if not isinstance(env, Mapping) or not all(_is_variable(key, value) for key, value in env.items()):
        raise ProtocolError("START 'env' must map names to strings, neither with a zero byte")
    credits = fields.get("credits", 1)
    if type(credits) is not int or not 0 <= credits <= 1 << 31:
        raise ProtocolError(f"START 'credits' must be a count, not {credits!r:.80}")
    return Start(
        name=_name(fields),
        role=str(role),
        cpus=_number(fields, "START", "cpus", 1.0),
        devices=tuple(devices),
        env=dict(env),
        fresh=bool(fields.get("fresh")),
        credits=credits,
        restart=RestartPolicy.parse(fields.get("restart")),
    )


def read_halt(head: Any) -> Halt:
    """Return what a HALT asks for; raises :class:`ProtocolError` as :func:`read_start` does."""
    fields = _map(head, "HALT")
    name = _name(fields) if fields.get("name") is not None else None
    session = _session(fields, "HALT") if fields.get("session") is not None else None
    if name is None and session is None:
        raise ProtocolError("HALT names a child by 'name' or 'session'; this one does neither")
    return Halt(name, session, _number(fields, "HALT", "grace", GRACE))


def read_watch(head: Any) -> Watch:
    """Return what a WATCH asks for; raises :class:`ProtocolError` as :func:`read_start` does."""
    fields = _map(head, "WATCH")
    if "timeout" not in fields:
        raise ProtocolError("WATCH says its 'timeout' in seconds; this one does not")
    timeout = _number(fields, "WATCH", "timeout", 0.0)
    return Watch(_session(fields, "WATCH"), timeout, _number(fields, "WATCH", "grace", GRACE))


def read_abort(head: Any) -> Abort:
    """Return what an ABORT asks for; raises :class:`ProtocolError` as :func:`read_start` does."""
    fields = _map(head, "ABORT")
    reason = fields.get("reason", "cancel")
    if reason not in _REASONS:
        raise ProtocolError(f"ABORT 'reason' must be one of {', '.join(_REASONS)}, not {reason!r:.80}")
    return Abort(_session(fields, "ABORT"), _REASONS[reason], _number(fields, "ABORT", "grace", GRACE))


def read_recall(head: Any) -> bytes:
    """Return the session that a RECALL is about; raises :class:`ProtocolError` as :func:`read_start` does."""
    return _session(_map(head, "RECALL"), "RECALL")


_REASONS: Final = {"cancel": Reason.CANCEL, "timeout": Reason.TIMEOUT}


def _map(head: Any, verb: str) -> Mapping[Any, Any]:
    if not isinstance(head, Mapping):
        raise ProtocolError(f"{verb} carries a map, not {head!r:.80}")
    return head


def _name(fields: Mapping[Any, Any]) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME or "\0" in name:
        raise ProtocolError(f"a child's 'name' must be a string of 1 to {_NAME} characters, not {name!r:.80}")
    return name


def _session(fields: Mapping[Any, Any], verb: str) -> bytes:
    session = fields.get("session")
    if not isinstance(session, bytes):
        raise ProtocolError(f"{verb} names its child by 'session', as bytes, not {session!r:.80}")
    return session


def _number(fields: Mapping[Any, Any], verb: str, key: str, default: float) -> float:
    value = fields.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONG:
        raise ProtocolError(f"{verb} {key!r} must be a number from 0 to {_LONG:g}, not {value!r:.80}")
    return float(value)


def _is_variable(key: object, value: object) -> bool:
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and bool(key)
        and "=" not in key
        and "\0" not in key + value
    )
