"""The state of a broker: sessions, pools, actors, books; and the checks that hold between them.

The handlers in ``clients``, ``workers`` and ``nodes`` and the functions in ``dispatch`` and ``ends`` work on one :class:`Mesh`. Each index has one owner,
and what leaves the mesh leaves every index.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from omnibus.protocol import Limits

from .kinds import Shape
from .ledger import LaneStats, Ledger
from .peers import Client, Node, Peer, Worker
from .pools import Pool
from .topics import Topics

if TYPE_CHECKING:
    from .actors import ActorEntry
    from .ends import Kept
    from .kinds import Kind
    from .tasks import Task

__all__ = ["Mesh", "Settings"]


class Settings:
    """How a broker behaves; all times in seconds.

    ``grace``: how long a lost session may come back before its work is given up (``reattach_grace``). ``probe``: how often a
    quiet peer is sent a PING, so that a broken link shows. ``keep``: how long a detached result is kept. ``step``: the grace of each rung of the
    cancel and timeout ladder. ``stall``: how long a worker may show no progress before what it has not begun is recalled for an idle one.
    ``guard``: see :class:`LaneQueue`.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        grace: float = 30.0,
        probe: float = 1.0,
        keep: float = 3600.0,
        step: float = 1.0,
        stall: float = 0.05,
        guard: int | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.grace = grace
        self.probe = probe
        self.keep = keep
        self.step = step
        self.stall = stall
        self.guard = guard


class Mesh:
    """All that a broker knows. ``epoch`` names this life of it; attempt numbers start at ``first`` and are never re-used in it."""

    def __init__(self, epoch: bytes, now: float, settings: Settings, first: int = 0) -> None:
        self.epoch = epoch
        self.settings = settings
        self.limits = settings.limits
        self.now = now
        self.started = now
        self.aid = first
        self.last_kind = 0
        self.last_command = 0
        self.routes: dict[bytes, Peer] = {}
        self.sessions: dict[bytes, Peer] = {}
        self.nodes: dict[bytes, Node] = {}
        self.pools: dict[Shape, Pool] = {}
        self.kinds: dict[int, Kind] = {}
        self.about: dict[str, Any] = {}
        self.actors: dict[str, ActorEntry] = {}
        self.ledger = Ledger()
        self.messages = Ledger()
        self.lanes: dict[int, LaneStats] = {}
        self.topics = Topics()
        self.kept: dict[tuple[bytes, int], Kept] = {}
        self.dirty: list[Peer] = []
        self.stirred: list[Pool] = []
        self.timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer = 0

    def at(self, deadline: float, action: Callable[[float], None]) -> None:
        """Have ``action(now)`` called once ``deadline`` has come; it checks for itself whether it still matters."""
        self._timer += 1
        heapq.heappush(self.timers, (deadline, self._timer, action))

    def pool(self, shape: Shape) -> Pool:
        """Return the pool of that shape, made on first use."""
        pool = self.pools.get(shape)
        if pool is None:
            label = f"cpus={shape.cpus:g} gpus={shape.gpus:g}"
            pool = self.pools[shape] = Pool(shape, label, self.settings.guard)
        return pool

    def stir(self, pool: Pool) -> None:
        """Remember that work or room has come to ``pool``; the next dispatch looks at it."""
        if not pool.stirred:
            pool.stirred = True
            self.stirred.append(pool)

    def command(self) -> int:
        """Return a fresh number for a command to a node."""
        self.last_command += 1
        return self.last_command

    def drop(self, peer: Peer) -> None:
        """Take a session out of the tables; its work is the caller's to end first."""
        self.sessions.pop(peer.session, None)
        if peer.route is not None:
            self.routes.pop(peer.route, None)
            peer.route = None

    def stats(self, priority: int) -> LaneStats:
        """Return the lane's statistics, begun on first use."""
        return self.lanes.setdefault(priority, LaneStats())

    def books(self, kind: Kind) -> Ledger:
        """Return the ledger that counts this kind: that of tasks, or that of messages to actors."""
        return self.messages if kind.message else self.ledger

    def every(self, role: type[Any]) -> Sequence[Any]:
        """Return the sessions of one role."""
        return [peer for peer in self.sessions.values() if isinstance(peer, role)]

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where indexes disagree or the books do not add up; tests call it after every step."""
        for route, peer in self.routes.items():
            assert peer.route == route and self.sessions.get(peer.session) is peer, f"{peer}: stale route"
        pools = [*self.pools.values(), *(actor.pool for actor in self.actors.values())]
        for pool in pools:
            pool.check_invariants()
        queued: dict[bool, int] = {False: 0, True: 0}
        running = dict(queued)
        # A session that has ended may have left work under way: detached tasks, and attempts that are being cancelled.
        clients = dict.fromkeys(self.every(Client))
        clients.update((task.kind.client, None) for worker in self.every(Worker) for task in worker.attempts.values())
        clients.update((task.kind.client, None) for pool in pools for task in pool.queue.waiting())
        for client in clients:
            for seq, task in client.tasks.items():
                assert task.seq == seq and task.kind.client is client, f"{client}: task {seq} is misfiled"
                assert task.waiting != (task.worker is not None), f"{client}: task {seq} is in two states or in none"
                (queued if task.waiting else running)[task.kind.message] += 1
            for priority, window in client.windows.items():
                held = [task for task in client.tasks.values() if task.kind.priority == priority]
                assert window.tasks == len(held), f"{client}: window of lane {priority} is off"
                assert window.size == sum(task.size for task in held), f"{client}: bytes of lane {priority} are off"
        for message, ledger in ((False, self.ledger), (True, self.messages)):
            assert ledger.queued == queued[message], f"ledger says {ledger.queued} queued, {queued[message]} are"
            assert ledger.running == running[message], f"ledger says {ledger.running} running, {running[message]} are"
            assert ledger.balance() == 0, f"the books do not add up: {ledger.as_dict()}"
        for worker in self.every(Worker):
            for aid, task in worker.attempts.items():
                assert task.aid == aid and task.worker is worker, f"{worker}: attempt {aid} is misfiled"
        assert sum(pool.queue.depth for pool in pools) == sum(queued.values()), "what waits is not in the pools"
