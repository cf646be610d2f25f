"""Pools: a queue of lanes and the workers that may take from it.

There is one pool for each resource shape in use, and one, with a single worker, for each actor. A worker stands
in ``free`` while it has room: while what it holds is reckoned at less than its horizon. Work whose cost nobody
has measured is reckoned at the whole horizon, so that such tasks go out one at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .lanes import LaneQueue, Line
from .tasks import Task

if TYPE_CHECKING:
    from .kinds import Kind, Shape
    from .peers import Worker

__all__ = ["Pool"]


class Pool:
    """Work of one shape, or for one actor (``for_actor``), and who can do it.

    ``lines`` are the lines of its queue, by client and priority; ``users`` counts the kinds that stand in them.
    ``stirred``: the next dispatch looks at it. ``watched``: a timer looks for a worker that holds up others'
    work. ``starting`` is how many of its processes were asked for and have not come; ``failures`` how many in a
    row ended before they came, and ``rest`` until when no more are asked for because of that.
    """

    __slots__ = (
        "failures",
        "for_actor",
        "free",
        "label",
        "lines",
        "queue",
        "rest",
        "shape",
        "starting",
        "stirred",
        "users",
        "watched",
        "workers",
    )

    def __init__(self, shape: Shape, label: str, guard: int | None = None, *, for_actor: bool = False) -> None:
        self.shape = shape
        self.label = label
        self.for_actor = for_actor
        self.queue: LaneQueue[Task] = LaneQueue(guard)
        self.lines: dict[bytes, dict[int, Line[Task]]] = {}
        self.users = 0
        self.free: deque[Worker] = deque()
        self.workers: set[Worker] = set()
        self.stirred = False
        self.watched = False
        self.starting = 0
        self.failures = 0
        self.rest = 0.0

    def __repr__(self) -> str:
        return f"pool {self.label}"

    # ------------------------------------------------------------------ work

    def lodge(self, kind: Kind) -> None:
        """Have the tasks of ``kind`` wait here: in its client's line of its priority, where they keep their order."""
        lines = self.lines.setdefault(kind.client.session, {})
        line = lines.get(kind.priority)
        if line is None:
            line = lines[kind.priority] = self.queue.line(kind.priority)
        line.users += 1
        self.users += 1
        kind.pool, kind.line = self, line

    def dislodge(self, kind: Kind) -> None:
        """Expect no new tasks of ``kind``; those that wait still do."""
        self.users -= 1
        kind.line.users -= 1
        session = kind.client.session
        if not kind.line.users:
            del self.lines[session][kind.priority]
            if not self.lines[session]:
                del self.lines[session]

    # ------------------------------------------------------------------ workers

    def join(self, worker: Worker) -> None:
        """Let ``worker`` take from this pool."""
        worker.pool = self
        self.workers.add(worker)
        self.enlist(worker)

    def retire(self, worker: Worker) -> None:
        """Give ``worker`` nothing any more; it stays until its session ends."""
        worker.closing = True
        self.unlist(worker)

    def leave(self, worker: Worker) -> None:
        """Take ``worker`` out; what it still holds is the caller's to end."""
        self.retire(worker)
        self.workers.discard(worker)

    def enlist(self, worker: Worker) -> None:
        """Put ``worker`` among those with room, if it has some and may be given work."""
        if (
            not worker.listed
            and worker.backlog < worker.horizon
            and len(worker.attempts) < worker.credits
            and worker.route is not None
            and not (worker.stalled or worker.closing or (worker.lent and not self.for_actor))
        ):
            worker.listed = True
            self.free.append(worker)

    def unlist(self, worker: Worker) -> None:
        """Give ``worker`` nothing until it is enlisted again."""
        if worker.listed:
            worker.listed = False
            self.free.remove(worker)

    def idle(self) -> bool:
        """Return whether a worker with room has nothing to do."""
        return any(not worker.attempts for worker in self.free)
