"""The peers of a broker: clients, workers and actors, nodes; and what is queued for each.

A peer is a *session*, not a connection: it may come back over a new route and go on. What is to be sent to it collects
in ``records`` and ``blobs`` until the core's output is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnibus.channel import Channel
from omnibus.protocol import Blob, Record

if TYPE_CHECKING:
    from .actors import ActorEntry
    from .kinds import Kind
    from .pools import Pool
    from .tasks import Task

__all__ = ["Client", "Node", "Peer", "Window", "Worker"]


class Peer:
    """One session. ``route`` is the ROUTER's name for its link, ``None`` while it has none.

    ``seen`` is when it last sent something, ``lost`` since when it has no route. ``lockstep`` marks a REQ peer, which gets
    one message for each that it sent; ``asked``: one is due. ``channel`` keeps what a broken link may have swallowed, for
    peers that can resume.
    """

    __slots__ = (
        "asked",
        "blobs",
        "channel",
        "dirty",
        "info",
        "lockstep",
        "lost",
        "name",
        "outlet",
        "records",
        "route",
        "seen",
        "session",
    )
    role = "peer"

    def __init__(self, session: bytes, route: bytes, info: dict[str, Any], outlet: list[Peer], now: float) -> None:
        self.session = session
        self.route: bytes | None = route
        self.info = info
        self.name = str(info.get("name") or session.hex()[:8])
        self.seen = now
        self.lost: float | None = None
        self.lockstep = False
        self.asked = False
        self.channel: Channel | None = None
        self.records: list[Record] = []
        self.blobs: list[Blob] = []
        self.dirty = False
        self.outlet = outlet

    @property
    def listens(self) -> bool:
        """Whether what is queued for it can still reach it: over its link, or over the next one."""
        return self.route is not None or self.channel is not None

    def put(self, record: Record, blobs: Sequence[Blob] = ()) -> None:
        """Queue ``record`` and its blobs for this peer."""
        self.records.append(record)
        if blobs:
            self.blobs.extend(blobs)
        if not self.dirty:
            self.dirty = True
            self.outlet.append(self)

    def ask(self) -> None:
        """Note that a lockstep peer waits for a message, be it an empty one."""
        self.lockstep = self.asked = True
        if not self.dirty:
            self.dirty = True
            self.outlet.append(self)

    def __repr__(self) -> str:
        return f"{self.role} {self.name}"


class Window:
    """A client's unfinished work in one lane: how many tasks and how many bytes."""

    __slots__ = ("size", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.size = 0


class Client(Peer):
    """A program that submits work. ``tasks`` holds its unfinished ones by their sequence number."""

    __slots__ = ("adhoc", "codes", "kinds", "tasks", "windows")
    role = "client"

    def __init__(self, session: bytes, route: bytes, info: dict[str, Any], outlet: list[Peer], now: float) -> None:
        super().__init__(session, route, info, outlet, now)
        self.kinds: dict[int, Kind] = {}
        self.tasks: dict[int, Task] = {}
        self.windows: dict[int, Window] = {}
        self.adhoc: dict[bytes, Kind] = {}
        self.codes: dict[bytes, bytes] = {}


class Worker(Peer):
    """A process that runs work: a pool's worker, or an actor.

    ``attempts`` are those dispatched to it and not ended, in the order of dispatch. ``backlog`` is what they are reckoned to
    take, in nanoseconds. ``credits`` bounds how many it holds. ``known`` and ``codes`` are the kinds and the code digests that it was told. ``listed``: it
    stands in its pool's list of workers with room. ``busy``: it holds its CPUs. ``lent``: its task waits for other tasks.
    """

    __slots__ = (
        "actor",
        "attempts",
        "backlog",
        "busy",
        "codes",
        "credits",
        "devices",
        "known",
        "lent",
        "listed",
        "moved",
        "node",
        "open",
        "pool",
        "restarts",
    )
    role = "worker"

    def __init__(self, session: bytes, route: bytes, info: dict[str, Any], outlet: list[Peer], now: float) -> None:
        super().__init__(session, route, info, outlet, now)
        self.attempts: dict[int, Task] = {}
        self.backlog = 0
        self.credits = int(info.get("credits", 1))
        self.known: set[int] = set()
        self.codes: set[bytes] = set()
        self.pool: Pool | None = None
        self.node: Node | None = None
        self.actor: ActorEntry | None = None
        self.listed = False
        self.busy = False
        self.lent = False
        self.open = False
        self.moved = now
        self.restarts = int(info.get("incarnation", 0))
        self.devices: tuple[str, ...] = tuple(info.get("devices") or ())


class Node(Peer):
    """A host's supervisor, and what is free on that host: CPUs, memory, and the share left of each GPU."""

    __slots__ = ("cpus", "free_cpus", "free_gpus", "free_memory", "gpus", "labels", "memory", "pending", "starved", "workers")
    role = "node"

    def __init__(self, session: bytes, route: bytes, info: dict[str, Any], outlet: list[Peer], now: float) -> None:
        super().__init__(session, route, info, outlet, now)
        self.cpus = float(info.get("cpus") or 1)
        self.free_cpus = self.cpus
        self.gpus: tuple[str, ...] = tuple(str(gpu) for gpu in info.get("gpus") or ())
        self.free_gpus = dict.fromkeys(self.gpus, 1.0)
        self.memory = int(info.get("memory") or 0)
        self.free_memory = self.memory
        self.labels: dict[str, str] = dict(info.get("labels") or {})
        self.workers: dict[bytes, Worker] = {}
        self.pending: dict[int, tuple[Pool, tuple[str, ...]]] = {}
        self.starved: set[Pool] = set()
