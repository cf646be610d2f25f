"""The state of a broker: sessions, pools, actors, books.

The handlers in ``clients``, ``workers`` and ``nodes``, and the functions that they share, work on one
:class:`Mesh`. Each index has one owner, and what leaves the mesh leaves every index;
:mod:`omnibus.brokers.invariants` says what holds between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from omnibus.errors import CapacityExceeded
from omnibus.protocol import Blob, Limits, Record, encode

from .events import Event
from .kinds import Shape
from .ledger import LaneStats, Ledger
from .peers import Client, Node, Peer
from .pools import Pool
from .shelf import Shelf
from .topics import Topics

if TYPE_CHECKING:
    from .actors import ActorEntry
    from .kinds import Kind

__all__ = ["DEFAULT_SHAPE", "Mesh", "Message", "Settings"]

Message = tuple[bytes, list[Blob]]
P = TypeVar("P", bound=Peer)

DEFAULT_SHAPE = Shape()
"""What a task needs that asks for nothing, and what the workers that a node starts by itself have."""
_MOST_LANES = 4096
_MOST_DEAD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a broker behaves; all times in seconds.

    Sessions: ``grace``: how long a lost one may come back before its work is given up (``reattach_grace``);
    ``probe``: how often a quiet peer is sent a PING, so that a broken link shows; ``idle``: how long a REQ peer,
    which cannot be sent one, may be silent; ``sessions``: how many there may be.

    Work: ``keep`` and ``keep_bytes``: how long detached results are kept, and how much of them; ``guard``: see
    :class:`LaneQueue`; ``pools``: how many resource shapes may be in use; ``step``: the grace of each rung of the
    cancel and timeout ladder; ``stall``: how long a worker may show no progress before what it has not begun is
    recalled for an idle one; ``turn``: how long a pool waits for CPUs that another keeps busy before it is its
    turn, and ``switch`` the same where a process must end to make room for one of the waiting pool's.

    Rights: ``code``: whether functions and values may travel as pickles; false where strangers may connect.

    Processes: ``settle``: how long the last results of a dead worker are waited for, beyond the turn in which its
    end is told; ``linger``: how long the processes of a shape that nobody uses any more stand by; ``rest``: the
    pause after a process that ended before it came, doubled each time.
    """

    limits: Limits = field(default_factory=Limits)
    code: bool = True
    grace: float = 30.0
    probe: float = 1.0
    idle: float = 600.0
    sessions: int = 10_000
    keep: float = 3600.0
    keep_bytes: int = 1 << 30
    guard: int | None = None
    pools: int = 1_000
    step: float = 1.0
    stall: float = 0.05
    turn: float = 0.05
    switch: float = 2.0
    settle: float = 0.0
    linger: float = 60.0
    rest: float = 0.1


class Mesh:
    """All that a broker knows.

    ``epoch`` names this life of it; numbers of attempts, and of commands, are not re-used in it.

    ``ghosts`` are clients whose session has ended and some of whose tasks have not; ``dead`` the last children
    whose end their node has reported. ``limbo`` is where a kind of messages stands before its first message has
    met its actor. ``dirty`` are the peers that something is queued for, ``urgent`` the messages that go first,
    ``stirred`` the pools that work or room has come to.
    """

    def __init__(self, epoch: bytes, now: float, settings: Settings, first: int = 0) -> None:
        self.epoch = epoch
        self.settings = settings
        self.limits = settings.limits
        self.now = now
        self.started = now
        self.about: dict[str, Any] = {}
        self.aid = first
        self.last_kind = 0
        self.last_command = first
        self.routes: dict[bytes, Peer] = {}
        self.sessions: dict[bytes, Peer] = {}
        self.nodes: dict[bytes, Node] = {}
        self.ghosts: set[Client] = set()
        self.dead: dict[bytes, str] = {}
        self.pools: dict[Shape, Pool] = {}
        self.limbo = Pool(DEFAULT_SHAPE, "no actor yet", for_actor=True)
        self.actors: dict[str, ActorEntry] = {}
        self.queued_actors: list[ActorEntry] = []
        self.ledger = Ledger()
        self.messages = Ledger()
        self.lanes: dict[int, LaneStats] = {}
        self.topics = Topics()
        self.shelf = Shelf(settings.keep, settings.keep_bytes)
        self.dirty: list[Peer] = []
        self.urgent: list[Message] = []
        self.events: list[Event] = []
        self.stirred: list[Pool] = []
        self.timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer = 0
        self.default = self.pools[DEFAULT_SHAPE] = Pool(DEFAULT_SHAPE, str(DEFAULT_SHAPE), settings.guard)

    def at(self, deadline: float, action: Callable[[float], None]) -> None:
        """Have ``action(now)`` called once ``deadline`` has come; it checks for itself whether it still matters."""
        self._timer += 1
        heapq.heappush(self.timers, (deadline, self._timer, action))

    def note(self, what: str, peer: object, detail: str = "", session: bytes = b"") -> None:
        """Tell the shell of something."""
        self.events.append(Event(what, str(peer), detail, session=session))

    def send_first(self, route: bytes, record: Record, *, lockstep: bool = False) -> None:
        """Send a record over ``route`` before all else, and outside of the session's count of messages."""
        frames = encode([record])
        self.urgent.append((route, [b"", *frames] if lockstep else frames))

    def pool(self, shape: Shape) -> Pool:
        """Return the pool of that shape, made on first use; raises :class:`CapacityExceeded` for too many."""
        pool = self.pools.get(shape)
        if pool is None:
            if len(self.pools) >= self.settings.pools:
                self._drop_pools()
            if len(self.pools) >= self.settings.pools:
                text = f"{len(self.pools)} shapes of resources are in use, the limit: ask for {shape} as others do"
                raise CapacityExceeded(text)
            pool = self.pools[shape] = Pool(shape, str(shape), self.settings.guard)
        return pool

    def drop_pool(self, pool: Pool) -> bool:
        """Drop a pool that nothing needs any more; return whether it is gone."""
        if self.pools.get(pool.shape) is not pool:
            return True
        if pool is self.default or pool.users or pool.workers or pool.starting or pool.queue.depth:
            return False
        del self.pools[pool.shape]
        for node in self.nodes.values():
            node.wants.pop(pool, None)
        return True

    def _drop_pools(self) -> None:
        for pool in list(self.pools.values()):
            self.drop_pool(pool)

    def stir(self, pool: Pool) -> None:
        """Remember that work or room has come to ``pool``; the next dispatch looks at it."""
        if not pool.stirred:
            pool.stirred = True
            self.stirred.append(pool)

    def stir_waiting(self) -> None:
        """Have the next dispatch look at every pool that has work: there may be room for one more process."""
        for pool in self.pools.values():
            if pool.queue.depth:
                self.stir(pool)

    def command(self) -> int:
        """Return a fresh number for a command to a node."""
        self.last_command += 1
        return self.last_command

    def attempt(self) -> int:
        """Return a fresh number for an attempt."""
        self.aid += 1
        return self.aid

    def stats(self, priority: int) -> LaneStats:
        """Return the lane's statistics, begun on first use; of too many lanes, new ones are not reported."""
        stats = self.lanes.get(priority)
        if stats is None:
            stats = LaneStats()
            if len(self.lanes) < _MOST_LANES:
                self.lanes[priority] = stats
        return stats

    def books(self, kind: Kind) -> Ledger:
        """Return the ledger that counts this kind: that of tasks, or that of messages to actors."""
        return self.messages if kind.message else self.ledger

    def every(self, role: type[P]) -> Iterator[P]:
        """Iterate over the sessions of one role."""
        return (peer for peer in self.sessions.values() if isinstance(peer, role))

    def drop(self, peer: Peer) -> None:
        """Take a session out of the tables; its work is the caller's to end first."""
        peer.gone = True
        self.sessions.pop(peer.session, None)
        if peer.route is not None:
            self.routes.pop(peer.route, None)
            peer.route = None

    def mark_dead(self, session: bytes, why: str) -> None:
        """Remember that a child is dead: what still comes in its name is not to begin a session."""
        self.dead[session] = why
        if len(self.dead) > _MOST_DEAD:
            del self.dead[next(iter(self.dead))]
