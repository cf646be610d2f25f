"""Values on a command line: arguments written as JSON, results shown to people and to scripts."""

from __future__ import annotations

import base64
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.errors import UsageError

__all__ = ["close_to", "for_people", "keywords", "parse_all", "parse_json", "plain"]


def parse_json(text: str, what: str) -> Any:
    """Return the value that ``text`` is in JSON; raises :class:`UsageError` that says how to write it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.startswith("-"):
        raise UsageError(f"no such option: {text} (and as an argument it would have to be JSON)")
    meant = json.dumps(text[:80])
    raise UsageError(
        f"{what} is not JSON: {text[:80]!r}; if it is a text, write '{meant}', with both kinds of quotes"
    )


def parse_all(arguments: Sequence[str] | None) -> list[Any]:
    """Return the values of positional arguments."""
    return [parse_json(text, f"argument {number}") for number, text in enumerate(arguments or (), 1)]


def keywords(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of ``NAME=JSON`` arguments."""
    values = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise UsageError(f"keyword {pair!r} is not of the form NAME=JSON, as in --kw size=3")
        values[name] = parse_json(text, f"keyword {name}")
    return values


def plain(value: Any) -> Any:
    """Return a value as JSON can carry it.

    Tuples and sets become lists, arrays and tensors nested lists, bytes an object with ``base64``, numbers that JSON
    lacks their names; of anything else its ``repr`` is left.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    listed = getattr(value, "tolist", None) or getattr(value, "to_pylist", None)
    try:
        return plain(listed()) if callable(listed) else repr(value)
    except Exception:  # a dtype that cannot be listed, a table of another library
        return repr(value)


def for_people(value: Any) -> str:
    """Return a value as a terminal shows it: a text as it is, all else as Python shows it."""
    return value if isinstance(value, str) else repr(value)


def close_to(word: str, known: Sequence[str]) -> str:
    """Return a clause with what may have been meant, or nothing."""
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
