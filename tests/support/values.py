"""Reads the values in ``tests/vectors/values.json``; their notation is described in ``tests/vectors/README.md``."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.transcripts import plain

__all__ = ["same", "value_of"]


def value_of(written: Any) -> Any:
    """Return the Python value that is written as JSON."""
    if isinstance(written, list):
        return [value_of(item) for item in written]
    if not isinstance(written, dict):
        return plain(written)
    if len(written) == 1 and next(iter(written)) in _TYPES:
        ((name, detail),) = written.items()
        return _TYPES[name](detail)
    return {key: value_of(item) for key, item in written.items()}


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal in type too, a NaN to itself and an array to one of equal bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike) and one.tobytes() == other.tobytes()
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def _moment(text: str) -> datetime.datetime:
    moment, _, zone = text.removesuffix("]").partition("[")
    found = datetime.datetime.fromisoformat(moment)
    return found.replace(tzinfo=zoneinfo.ZoneInfo(zone)) if zone else found


def _tensor(facts: dict[str, Any]) -> Any:
    if facts["values"] == {"$zeros": True}:
        return np.zeros(facts["shape"], facts["dtype"])
    return np.array(facts["values"], facts["dtype"]).reshape(facts["shape"])


_TYPES: dict[str, Callable[[Any], Any]] = {
    "$integer": int,
    "$float": float,
    "$bytes": plain,
    "$text": lambda detail: plain(detail).decode("utf-8", "surrogatepass"),
    "$map": lambda detail: {value_of(key): value_of(item) for key, item in detail},
    "$tuple": lambda detail: tuple(value_of(detail)),
    "$set": lambda detail: set(value_of(detail)),
    "$frozenset": lambda detail: frozenset(value_of(detail)),
    "$complex": lambda detail: complex(*detail),
    "$date": datetime.date.fromisoformat,
    "$time": datetime.time.fromisoformat,
    "$datetime": _moment,
    "$delta": lambda detail: datetime.timedelta(*detail),
    "$scalar": lambda detail: getattr(np, f"{detail[0]}_" if detail[0] == "str" else detail[0])(detail[1]),
    "$tensor": _tensor,
}
