"""Kinds: what many tasks of one session have in common, parsed once.

A client declares a kind with DEFINE (its function or its actor and method, priority, budgets, resources) and then
names it by an int in every record. Here the declared map becomes a :class:`Kind`, with every field checked, so
that the hot path reads attributes and never a map. :mod:`omnibus.brokers.catalog` keeps the kinds of each client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from omnibus.errors import ProtocolError
from omnibus.protocol import Limits

from .reading import Reader

if TYPE_CHECKING:
    from .lanes import Line
    from .ledger import LaneStats, Ledger
    from .peers import Client, Window, Worker
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

    def __str__(self) -> str:
        parts = [f"cpus={self.cpus:g}", f"gpus={self.gpus:g}"]
        if self.memory:
            parts.append(f"memory={self.memory}")
        if self.labels:
            parts.append(f"labels={dict(self.labels)}")
        return " ".join(parts)


class Kind:
    """One declared kind. ``number`` is the broker's, unique in an epoch; the client's own number keys its table.

    What it says: ``actor`` and ``method`` for a message, else a task of ``shape``; ``silent``: nobody waits for
    its end; ``plain``: its result goes to its client and nowhere else; ``special``: it has a timeout or a time to
    live. ``wire`` is what a worker is told, ``code`` what goes with it, under ``digest``.

    What is kept of it: ``cost`` is the nanoseconds that a call takes, as workers report it (``None`` until one
    has); ``line`` and ``pool`` say where its tasks wait; ``window`` counts the client's unfinished work in that
    lane; ``books`` and ``stats`` are where it is counted; ``told`` are the workers that know it; ``expiring`` has
    those of its tasks that wait and may expire, by their deadlines; ``gone``: its client has forgotten it.
    """

    __slots__ = (
        "actor",
        "armed",
        "books",
        "client",
        "code",
        "cost",
        "detached",
        "digest",
        "expiring",
        "gone",
        "line",
        "message",
        "method",
        "number",
        "plain",
        "pool",
        "priority",
        "retries",
        "shape",
        "silent",
        "special",
        "stats",
        "stream",
        "timeout",
        "told",
        "ttl",
        "window",
        "wire",
    )

    line: Line[Task]
    pool: Pool
    window: Window
    books: Ledger
    stats: LaneStats

    def __init__(self, number: int, client: Client, read: Reader) -> None:
        self.number = number
        self.client = client
        self.code: bytes | None = None
        self.digest = read.binary("code")
        self.actor = read.text("actor")
        self.method = read.text("method")
        self.message = self.actor is not None
        self.priority = read.integer("priority", 0, -PRIORITY_RANGE, PRIORITY_RANGE)
        self.retries = read.integer("retries", 0 if self.message else DEFAULT_RETRIES, 0, 1_000_000)
        self.timeout = read.seconds("timeout")
        self.ttl = read.seconds("ttl")
        self.detached = read.flag("detached")
        self.stream = read.flag("stream")
        self.silent = read.flag("tell")
        self.shape = parse_shape(read)
        self.plain = not self.detached and not self.silent
        self.special = self.timeout is not None or self.ttl is not None
        self.wire = self._wire(read)
        self.cost: int | None = None
        self.told: set[Worker] = set()
        self.expiring: dict[int, tuple[float, Task]] = {}
        self.armed = False
        self.gone = False

    def _wire(self, read: Reader) -> dict[str, Any]:
        """Return what a worker is told: what to run, and for whom; never the client's other options."""
        told = {
            "fn": read.text("fn"),
            "code": self.digest,
            "method": self.method,
            "name": read.text("name"),
            "stream": self.stream or None,
            "timeout": self.timeout,
            "tell": self.silent or None,
            "cpus": read.get("cpus"),
            "gpus": read.get("gpus"),
            "session": self.client.session,
        }
        return {key: value for key, value in told.items() if value is not None}


def parse_kind(number: int, client: Client, head: Any, limits: Limits) -> Kind:
    """Return the kind that ``head`` declares, which has no place yet.

    Raises :class:`ProtocolError` naming the key, its value and what was expected. Keys that this version does not
    know are ignored.
    """
    read = Reader(head, "a kind", limits)
    runs = [key for key in ("fn", "code", "actor") if key in read]
    if len(runs) != 1:
        raise ProtocolError(f"a kind names exactly one of 'fn', 'code' and 'actor'; this one names {len(runs)}")
    kind = Kind(number, client, read)
    if kind.message != (kind.method is not None):
        raise ProtocolError("a kind names a 'method' where it names an 'actor', and only there")
    return kind


def parse_shape(read: Reader) -> Shape:
    """Return the resources that a map asks for; raises :class:`ProtocolError` as :func:`parse_kind` does."""
    gpus = read.number("gpus", 0, 0, 1_024)
    if gpus > 1 and gpus != int(gpus):
        raise read.wrong("gpus", "a whole number, or a share of one below 1")
    return Shape(
        cpus=read.number("cpus", 1, 0, 65_536),
        gpus=gpus,
        memory=read.integer("memory", 0, 0, 1 << 62),
        labels=tuple(sorted(read.labels("labels").items())),
    )
