"""How tasks wait: into their lane, out of it, and what becomes of those that wait longer than they may.

A time to live counts from when a task was queued last. The deadlines of a kind's tasks rise in the order in which
they were queued, so one timer for each kind is enough, and a task that has ended leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ends import fail

if TYPE_CHECKING:
    from .kinds import Kind
    from .lanes import Line
    from .state import Mesh
    from .tasks import Task

__all__ = ["expect_expiry", "settle", "withdraw"]


def expect_expiry(mesh: Mesh, kind: Kind, task: Task) -> None:
    """Have a task of a kind with a time to live, queued just now, end when that is over."""
    assert kind.ttl is not None
    deadline = mesh.now + kind.ttl
    kind.expiring[task.seq] = deadline, task
    if not kind.armed:
        kind.armed = True
        mesh.at(deadline, lambda now: _expire(mesh, kind, now))


def _expire(mesh: Mesh, kind: Kind, now: float) -> None:
    kind.armed = False
    while kind.expiring:
        deadline, task = next(iter(kind.expiring.values()))
        if deadline > now:
            kind.armed = True
            mesh.at(deadline, lambda at: _expire(mesh, kind, at))
            return
        withdraw(mesh, task, "expired", "Expired", f"task {task.seq} waited longer than its ttl of {kind.ttl:g} s")


def withdraw(mesh: Mesh, task: Task, how: str, error: str, message: str) -> None:
    """End a task that waits in its lane."""
    kind = task.kind
    kind.pool.queue.discard(kind.line, task)
    kind.expiring.pop(task.seq, None)
    kind.books.queued -= 1
    fail(mesh, task, how, error, message)


def settle(mesh: Mesh, task: Task) -> None:
    """Put a task whose attempt is over back at the front of its line, unless its end was asked for meanwhile."""
    if task.cancelling:
        fail(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled before it began")
        return
    kind = task.kind
    if kind.actor is not None and not _lives(mesh, kind):
        fail(mesh, task, "failed", "NotFound", f"actor {kind.actor!r} ended before it handled {kind.method!r}")
        return
    kind.books.queued += 1
    task.born = mesh.now
    kind.pool.queue.push_front(kind.line, task, _behind(kind.line, task))
    mesh.stir(kind.pool)
    if kind.ttl is not None:
        expect_expiry(mesh, kind, task)


def _behind(line: Line[Task], task: Task) -> int:
    """Return how many of the first in line came back too, and had been dispatched before ``task``."""
    count = 0
    for other in line.items:
        if not 0 < other.aid < task.aid:
            break
        count += 1
    return count


def _lives(mesh: Mesh, kind: Kind) -> bool:
    """Return whether the actor whose queue the kind's messages wait in is still there."""
    actor = mesh.actors.get(kind.actor or "")
    return actor is not None and actor.pool is kind.pool
