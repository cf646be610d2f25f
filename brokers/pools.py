"""Pools: a queue of lanes and the workers that may take from it.

There is one pool for each resource shape in use, and one, with a single worker, for each actor. A worker stands in
``free`` while it has room: while what it holds is reckoned at less than :data:`HORIZON`. Work whose cost nobody has measured
is reckoned at the whole horizon, so that such tasks go out one at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .lanes import LaneQueue
from .tasks import Task

if TYPE_CHECKING:
    from .kinds import Shape
    from .peers import Worker

__all__ = ["HORIZON", "Pool"]

HORIZON = 2_000_000
"""Nanoseconds of work that a worker may hold: about a round trip's worth under load."""


class Pool:
    """Work of one shape, or for one actor, and who can do it."""

    __slots__ = ("free", "label", "queue", "shape", "starting", "stirred", "workers")

    def __init__(self, shape: Shape, label: str, guard: int | None = None) -> None:
        self.shape = shape
        self.label = label
        self.queue: LaneQueue[Task] = LaneQueue(guard)
        self.free: deque[Worker] = deque()
        self.workers: set[Worker] = set()
        self.stirred = False
        self.starting = 0

    def join(self, worker: Worker) -> None:
        """Let ``worker`` take from this pool."""
        worker.pool = self
        worker.open = True
        self.workers.add(worker)
        self.enlist(worker)

    def leave(self, worker: Worker) -> None:
        """Take ``worker`` out; what it still holds is the caller's to end."""
        worker.open = False
        self.workers.discard(worker)
        if worker.listed:
            worker.listed = False
            self.free.remove(worker)

    def enlist(self, worker: Worker) -> None:
        """Put ``worker`` among those with room, if it has some."""
        if worker.open and not worker.listed and worker.backlog < HORIZON and len(worker.attempts) < worker.credits:
            worker.listed = True
            self.free.append(worker)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the pool's lists do not agree; for tests."""
        self.queue.check_invariants()
        assert len(set(self.free)) == len(self.free), f"{self.label}: a worker is listed twice"
        for worker in self.workers:
            assert worker.pool is self and worker.open, f"{self.label}: {worker} does not know it"
            assert worker.listed == (worker in self.free), f"{self.label}: {worker} listed {worker.listed}"
            assert worker.backlog == sum(task.cost for task in worker.attempts.values()), f"{worker}: backlog is off"
        assert set(self.free) <= self.workers, f"{self.label}: a stranger is listed"
