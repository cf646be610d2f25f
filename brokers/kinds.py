"""Kinds: what many tasks of one session have in common, parsed once.

A client declares a kind with DEFINE (its function or its actor and method, priority, budgets, resources) and then names
it by an int in every record. Here the declared map becomes a :class:`Kind`, with every field checked, so that the hot
path reads attributes and never a map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from omnibus.errors import ProtocolError
from omnibus.protocol import Limits

if TYPE_CHECKING:
    from .lanes import Line
    from .ledger import LaneStats, Ledger
    from .peers import Client, Window
    from .pools import Pool
    from .tasks import Task

__all__ = ["DEFAULT_RETRIES", "PRIORITY_RANGE", "Kind", "Shape", "parse_kind", "parse_shape"]

DEFAULT_RETRIES = 3
PRIORITY_RANGE = 1 << 31


class Shape(NamedTuple):
    """The resources that one attempt holds: CPUs, GPUs (a fraction shares one), memory in bytes, labels of its node."""

    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    labels: tuple[tuple[str, str], ...] = ()


class Kind:
    """One declared kind. ``number`` is the broker's, unique in an epoch; the client's own number keys its table.

    ``cost`` is the nanoseconds that a call takes, as workers report it; ``None`` until one has. ``wire`` is what a worker
    is told. ``line`` and ``pool`` say where its tasks wait; ``window`` counts the client's unfinished work in that lane;
    ``books`` and ``stats`` are where it is counted. ``silent``: nobody waits for its end (a tell).
    """

    __slots__ = (
        "actor",
        "books",
        "client",
        "code",
        "cost",
        "detached",
        "digest",
        "line",
        "message",
        "number",
        "pool",
        "priority",
        "retries",
        "shape",
        "silent",
        "stats",
        "stream",
        "timeout",
        "ttl",
        "window",
        "wire",
    )

    line: Line[Task]
    pool: Pool
    window: Window
    books: Ledger
    stats: LaneStats

    def __init__(self, number: int, client: Client, head: Mapping[str, Any], code: bytes | None, limits: Limits) -> None:
        read = _Reader(head, limits)
        self.number = number
        self.client = client
        self.code = code
        self.digest: bytes | None = read.binary("code")
        self.cost: int | None = None
        self.actor: str | None = read.text("actor")
        self.message = self.actor is not None
        self.priority = read.integer("priority", 0, -PRIORITY_RANGE, PRIORITY_RANGE)
        self.retries = read.integer("retries", 0 if self.message else DEFAULT_RETRIES, 0, 1_000_000)
        self.timeout = read.seconds("timeout")
        self.ttl = read.seconds("ttl")
        self.detached = read.flag("detached")
        self.stream = read.flag("stream")
        self.shape = parse_shape(head, limits)
        self.silent = read.flag("tell")
        self.wire = _wire(head, client)


_TOLD = ("fn", "code", "method", "name", "stream", "timeout", "tell", "cpus", "gpus")


def _wire(head: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Return what a worker is told of a kind: what it runs, and whose it is; never the client's other options."""
    told = {key: head[key] for key in _TOLD if key in head}
    told["session"] = client.session
    return told


def parse_kind(number: int, client: Client, head: Any, code: bytes | None, limits: Limits) -> Kind:
    """Return the kind that ``head`` declares.

    Raises :class:`ProtocolError` naming the key, its value and what was expected. Keys that this version does not know
    are ignored.
    """
    if not isinstance(head, dict):
        raise ProtocolError(f"a kind is declared by a map, not by {type(head).__name__}")
    kind = Kind(number, client, head, code, limits)
    runs = sum(key in head for key in ("fn", "code", "actor"))
    if runs != 1:
        raise ProtocolError(f"a kind names exactly one of 'fn', 'code' and 'actor'; this one names {runs}")
    if kind.message and not isinstance(head.get("method"), str):
        raise ProtocolError(f"a message to actor {kind.actor!r} names its 'method'")
    return kind


def parse_shape(head: Mapping[str, Any], limits: Limits) -> Shape:
    """Return the resources that ``head`` asks for; raises :class:`ProtocolError` as :func:`parse_kind` does."""
    read = _Reader(head, limits)
    labels = head.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(part, str) for pair in labels.items() for part in pair):
        raise ProtocolError(f"'labels' must map strings to strings, not {labels!r}")
    gpus = read.number("gpus", 0, 0, 1_024)
    if gpus > 1 and gpus != int(gpus):
        raise ProtocolError(f"'gpus' is a whole number or a share of one below 1, not {gpus}")
    return Shape(
        cpus=read.number("cpus", 1, 0, 65_536),
        gpus=gpus,
        memory=read.integer("memory", 0, 0, 1 << 62),
        labels=tuple(sorted(labels.items())),
    )


class _Reader:
    """Reads typed fields from a declared map, with errors that name the field."""

    def __init__(self, head: Mapping[str, Any], limits: Limits) -> None:
        self._head = head
        self._limits = limits

    def text(self, key: str) -> str | None:
        value = self._head.get(key)
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= self._limits.name):
            raise ProtocolError(f"{key!r} must be a string of 1 to {self._limits.name} characters, not {value!r:.80}")
        return value

    def binary(self, key: str) -> bytes | None:
        value = self._head.get(key)
        if value is not None and (not isinstance(value, bytes) or len(value) > 64):
            raise ProtocolError(f"{key!r} must be a digest of at most 64 bytes, not {value!r:.80}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self._head.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise ProtocolError(f"{key!r} must be a number from {least} to {most}, not {value!r:.80}")
        return value

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        value = self.number(key, default, least, most)
        if not isinstance(value, int):
            raise ProtocolError(f"{key!r} must be an integer, not {value!r:.80}")
        return value

    def seconds(self, key: str) -> float | None:
        return None if self._head.get(key) is None else float(self.number(key, 0, 0, 1e9))

    def flag(self, key: str) -> bool:
        value = self._head.get(key, False)
        if not isinstance(value, bool):
            raise ProtocolError(f"{key!r} must be true or false, not {value!r:.80}")
        return value
