"""The peers of a broker: clients, workers and actors, nodes; and what is queued for each.

A peer is a *session*, not a connection: it may come back over a new route and go on. What is to be sent to it
collects in ``records`` and ``blobs`` until the core's output is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnibus.channel import Channel
from omnibus.protocol import Blob, Record

from .numbers import Numbers
from .tasks import HORIZON

if TYPE_CHECKING:
    from .actors import ActorEntry
    from .hello import Hello
    from .kinds import Kind, Shape
    from .pools import Pool
    from .tasks import Task

__all__ = ["Client", "Holding", "Node", "Peer", "Want", "Window", "Worker"]


class Peer:
    """One session. ``route`` is the ROUTER's name for its link, ``None`` while it has none.

    ``hello`` is what it said of itself. ``seen`` is when it last sent something, ``lost`` since when it has no
    route; ``gone``: its session has ended. ``channel`` keeps what a broken link may have swallowed, for peers
    that can resume. ``requests`` is a REQ peer's, which gets exactly one message for each that it sent: for each
    the numbers that are not answered yet; ``reply`` is the last one that it was sent.
    """

    __slots__ = (
        "blobs",
        "channel",
        "dirty",
        "gone",
        "hello",
        "lost",
        "name",
        "outlet",
        "records",
        "reply",
        "requests",
        "role",
        "route",
        "seen",
        "session",
    )

    def __init__(self, hello: Hello, route: bytes, outlet: list[Peer], now: float, *, lockstep: bool = False) -> None:
        self.session = hello.session
        self.hello = hello
        self.role = hello.role
        self.name = hello.name or hello.session.hex()[:8]
        self.route: bytes | None = route
        self.seen = now
        self.lost: float | None = None
        self.gone = False
        self.channel = Channel() if hello.resume and not lockstep else None
        self.requests: deque[set[int]] | None = deque() if lockstep else None
        self.reply: tuple[list[Record], list[Blob]] = [], []
        self.records: list[Record] = []
        self.blobs: list[Blob] = []
        self.dirty = False
        self.outlet = outlet

    def put(self, record: Record, blobs: Sequence[Blob] = ()) -> None:
        """Queue ``record`` and its blobs for this peer."""
        self.records.append(record)
        if blobs:
            self.blobs.extend(blobs)
        self.stir()

    def stir(self) -> None:
        """Have the output looked at, for there is something to send."""
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
    """A program that submits work.

    ``tasks`` holds its unfinished ones by their number, ``numbers`` says which were used. ``kinds`` are those
    that it declared, ``adhoc`` those that came along with a record, by their packed map; ``refused`` says why of
    those that it could not declare, for whoever names one. ``codes`` are the functions that it shipped, by
    digest.
    """

    __slots__ = ("adhoc", "codes", "kinds", "numbers", "refused", "tasks", "windows")

    def __init__(self, hello: Hello, route: bytes, outlet: list[Peer], now: float, *, lockstep: bool = False) -> None:
        super().__init__(hello, route, outlet, now, lockstep=lockstep)
        self.kinds: dict[int, Kind] = {}
        self.adhoc: dict[bytes, Kind] = {}
        self.refused: dict[int, str] = {}
        self.codes: dict[bytes, bytes] = {}
        self.tasks: dict[int, Task] = {}
        self.numbers = Numbers()
        self.windows: dict[int, Window] = {}

    @property
    def unused(self) -> bool:
        """Whether nothing is lost when it is forgotten: it left no trace, and is sent nothing that it missed."""
        return self.channel is None and not (self.kinds or self.adhoc or self.tasks or self.numbers.next)


class Worker(Peer):
    """A process that runs work: a pool's worker, or an actor.

    What it has: ``attempts`` are those dispatched to it and not ended, in the order of dispatch; ``backlog`` is
    what they are reckoned to take, in nanoseconds, and ``horizon`` bounds that; ``credits`` bounds how many it
    may hold; ``known`` and ``codes`` are the kinds and the code digests that it was told, ``leftover`` those of
    the kinds that it will be told to forget.

    Where it stands: ``node`` and ``pool`` (``None`` until both are known) and ``holding``, what it holds of its
    node for its life. ``listed``: in its pool's list of workers with room. ``busy``: it holds its CPUs. ``lent``:
    its task waits for other tasks. ``moved``: when it last ended an attempt, or began to have some. ``stalled``:
    that is long ago, so nothing is put behind what it does; ``recalled`` are the attempts that it was asked back.
    ``closing``: it takes nothing any more, and its node is to report its end; ``dead``: that has come, and its
    last results may be under way.
    """

    __slots__ = (
        "actor",
        "attempts",
        "backlog",
        "busy",
        "closing",
        "codes",
        "credits",
        "dead",
        "holding",
        "horizon",
        "known",
        "leftover",
        "lent",
        "listed",
        "moved",
        "node",
        "pool",
        "recalled",
        "stalled",
    )

    def __init__(self, hello: Hello, route: bytes, outlet: list[Peer], now: float, *, lockstep: bool = False) -> None:
        super().__init__(hello, route, outlet, now, lockstep=lockstep)
        self.attempts: dict[int, Task] = {}
        self.backlog = 0
        self.credits = hello.credits
        self.horizon = HORIZON * hello.concurrency
        self.known: dict[int, Kind] = {}
        self.codes: set[bytes] = set()
        self.leftover: list[Kind] = []
        self.pool: Pool | None = None
        self.node: Node | None = None
        self.holding: Holding | None = None
        self.actor: ActorEntry | None = None
        self.listed = False
        self.busy = False
        self.lent = False
        self.moved = now
        self.stalled = False
        self.recalled: set[int] = set()
        self.closing = False
        self.dead = False


class Holding:
    """What one process holds of its node from its START to its end: devices, and the memory of its pool's shape.

    ``command`` is the START's id; ``session`` is the process's, once it has said HELLO.
    """

    __slots__ = ("command", "devices", "pool", "session")

    def __init__(self, command: int, pool: Pool, devices: tuple[str, ...]) -> None:
        self.command = command
        self.pool = pool
        self.devices = devices
        self.session: bytes | None = None

    @property
    def joined(self) -> bool:
        """Whether the process has come."""
        return self.session is not None

    @property
    def shape(self) -> Shape:
        """The resources that its pool's processes have."""
        return self.pool.shape

    @property
    def scarce(self) -> bool:
        """Whether it keeps others from something: whoever holds only CPUs gives them back whenever it idles."""
        return bool(self.devices or self.shape.memory)


class Want:
    """What a pool waits for at a node, and since when: CPUs for a process of its, or ``room`` for one more."""

    __slots__ = ("room", "since")

    def __init__(self, since: float, room: bool) -> None:
        self.since = since
        self.room = room


class Node(Peer):
    """A host's supervisor, and what is free on that host: CPUs, memory, and the share left of each GPU.

    ``holdings`` are the processes that were asked of it, by the id of their START; ``base`` is how many workers
    of the default shape it keeps up by itself, and ``coming`` how many of them have not come (yet, or again).
    ``wants`` are the pools that wait for something here, the longest first.
    """

    __slots__ = (
        "base",
        "coming",
        "cpus",
        "free_cpus",
        "free_gpus",
        "free_memory",
        "gpus",
        "holdings",
        "labels",
        "memory",
        "wants",
        "workers",
    )

    def __init__(self, hello: Hello, route: bytes, outlet: list[Peer], now: float, *, lockstep: bool = False) -> None:
        super().__init__(hello, route, outlet, now, lockstep=lockstep)
        self.cpus = self.free_cpus = hello.cpus
        self.memory = self.free_memory = hello.memory
        self.gpus = hello.gpus
        self.free_gpus = dict.fromkeys(hello.gpus, 1.0)
        self.labels = hello.labels or {}
        self.base = self.coming = hello.workers
        self.workers: dict[bytes, Worker] = {}
        self.holdings: dict[int, Holding] = {}
        self.wants: dict[Pool, Want] = {}
