"""Reading what a peer sent: typed fields of a map, with errors that name the field, its value and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Limits

__all__ = ["LABELS", "Reader", "short"]

LABELS = 64
"""Entries that a map or a list of names may have."""
_DIGEST = 64
_SHOWN = 60


def short(value: object) -> str:
    """Return a few words on ``value`` for an error's message, however large it is."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    size = f" of {len(value)}" if isinstance(value, (list, dict)) else ""
    return f"a {type(value).__name__}{size}"


class Reader:
    """Reads the fields of ``head``, which ``what`` names; every method raises :class:`ProtocolError` for a wrong value.

    A key that is missing, or nil, reads as its default. Keys that nobody asks for are ignored: a newer peer sends
    them.
    """

    __slots__ = ("_head", "_most", "_what")

    def __init__(self, head: Any, what: str, limits: Limits) -> None:
        if not isinstance(head, dict):
            raise ProtocolError(f"{what} carries a map, not {short(head)}")
        self._head: dict[Any, Any] = head
        self._what = what
        self._most = limits.name

    def __contains__(self, key: str) -> bool:
        return self._head.get(key) is not None

    def get(self, key: str) -> Any:
        """Return the field as it came."""
        return self._head.get(key)

    def wrong(self, key: str, expected: str) -> ProtocolError:
        """Return the error that says what was expected of the field."""
        return ProtocolError(f"{self._what}: {key!r} must be {expected}, not {short(self._head.get(key))}")

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a name: a string that is not empty and not longer than the limit."""
        value = self._head.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not 0 < len(value) <= self._most:
            raise self.wrong(key, f"a string of 1 to {self._most} characters")
        return value

    def remark(self, key: str, default: str) -> str:
        """Return a text for people, cut where it is too long for a line."""
        value = self._head.get(key)
        return value[: 8 * self._most] if isinstance(value, str) and value else default

    def binary(self, key: str, least: int = 1, most: int = _DIGEST) -> bytes | None:
        """Return some bytes: a digest, a session."""
        value = self._head.get(key)
        if value is not None and (not isinstance(value, bytes) or not least <= len(value) <= most):
            raise self.wrong(key, f"{least} to {most} bytes")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        """Return a number; ``nan`` is none."""
        value = self._head.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least} to {most}")
        return value

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """Return a whole number that came as an integer."""
        value = self._head.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most}")
        return value

    def seconds(self, key: str) -> float | None:
        """Return a span of time, ``None`` where there is none."""
        return float(self.number(key, 0, 0, 1e9)) if key in self else None

    def flag(self, key: str) -> bool:
        """Return a boolean, false where it is missing."""
        value = self._head.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return bool(value)

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names."""
        value = self._head.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not self._all_names(value, LABELS):
            raise self.wrong(key, f"a list of at most {LABELS} strings of 1 to {self._most} characters")
        return tuple(value)

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers; its length is for the batch's own bound to limit."""
        value = self._head.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(number) is int and number >= 0 for number in value):
            raise self.wrong(key, "a list of whole numbers")
        return value

    def labels(self, key: str) -> dict[str, str]:
        """Return a map from names to names."""
        value = self._head.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not self._all_names([*value, *value.values()], 2 * LABELS):
            raise self.wrong(key, f"a map of at most {LABELS} strings to strings of 1 to {self._most} characters")
        return dict(value)

    def _all_names(self, values: Sequence[object], most: int) -> bool:
        return len(values) <= most and all(isinstance(value, str) and 0 < len(value) <= self._most for value in values)
