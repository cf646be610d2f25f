"""How work ends, and how it comes back to its queue.

A task ends once, in one of the ledger's five ways; its client hears of it by one RESULT or FAILED. A lost attempt is counted
and the task goes back to the front of its line, or it ends when its budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnibus.protocol import Blob, Record, Verb

if TYPE_CHECKING:
    from .peers import Worker
    from .state import Mesh
    from .tasks import Task

__all__ = ["Kept", "detach", "end", "fail", "give_back", "lose", "requeue", "settle"]


@dataclass(slots=True)
class Kept:
    """The end of a detached task, kept for whoever fetches it. ``verb`` is RESULT or FAILED."""

    verb: int
    head: Any
    body: bytes | None
    blobs: Sequence[Blob]
    until: float


def end(mesh: Mesh, task: Task, how: str, record: Record, blobs: Sequence[Blob] = ()) -> None:
    """Book the end of ``task`` as ``how`` and tell its client by ``record``; the task is in no queue and at no worker any more."""
    kind = task.kind
    client = kind.client
    del client.tasks[task.seq]
    window = kind.window
    window.tasks -= 1
    window.size -= task.size
    books = kind.books
    setattr(books, how, getattr(books, how) + 1)
    if kind.detached:
        _keep(mesh, task, record, blobs)
    if kind.silent:
        return
    if client.listens:
        client.put(record, blobs)
    elif not kind.detached:
        books.dropped += 1


def _keep(mesh: Mesh, task: Task, record: Record, blobs: Sequence[Blob]) -> None:
    key = (task.kind.client.session, task.seq)
    mesh.kept[key] = Kept(record[0], record[2], record[3], blobs, mesh.now + mesh.settings.keep)
    mesh.at(mesh.now + mesh.settings.keep, lambda now: mesh.kept.pop(key, None) and None)


def fail(mesh: Mesh, task: Task, how: str, error: str, message: str, **more: Any) -> None:
    """End ``task`` with an error of the tree's class ``error``."""
    head = {"error": error, "state": how, "message": message, "attempts": task.attempt, **more}
    end(mesh, task, how, [Verb.FAILED, task.seq, head, None, 0])


def detach(mesh: Mesh, worker: Worker, task: Task) -> None:
    """Take ``task`` off ``worker``: its attempt is over, however it went."""
    del worker.attempts[task.aid]
    worker.backlog -= task.cost
    task.worker = None
    task.kind.books.running -= 1


def requeue(mesh: Mesh, task: Task) -> None:
    """Put a task whose attempt is over back at the front of its line."""
    kind = task.kind
    kind.books.queued += 1
    task.born = mesh.now
    kind.pool.queue.push_front(kind.line, task)
    mesh.stir(kind.pool)


def give_back(mesh: Mesh, worker: Worker, task: Task) -> None:
    """Queue again, at no cost, a task whose attempt is known not to have begun; a cancelled one ends here."""
    detach(mesh, worker, task)
    task.attempt -= 1
    settle(mesh, task)


def settle(mesh: Mesh, task: Task) -> None:
    """Queue a task whose attempt is over, unless it was cancelled meanwhile or can never run."""
    if task.cancelling:
        fail(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled before it began")
    else:
        requeue(mesh, task)


def lose(mesh: Mesh, worker: Worker, task: Task, error: str, reason: str) -> None:
    """Deal with an attempt that began and was lost with its worker: redelivery while the budget lasts, else the end."""
    detach(mesh, worker, task)
    kind = task.kind
    what = f"message {kind.wire.get('method')!r} to actor {kind.actor}" if kind.message else f"task {task.seq}"
    if task.cancelling:
        fail(mesh, task, "cancelled", "Cancelled", f"{what} was cancelled; {reason}")
    elif task.attempt <= kind.retries and not task.chunked:
        kind.books.redelivered += 1
        requeue(mesh, task)
    elif kind.retries == 0 or task.chunked:
        why = "part of its stream was delivered" if task.chunked else "retries=0"
        fail(mesh, task, "failed", error, f"{what} was running on {worker.name}: {reason}; it is not run again ({why})")
    else:
        text = f"{what} lost its worker {task.attempt} times, and retries={kind.retries}; the last: {worker.name}, {reason}"
        fail(mesh, task, "dead", "DeadLetter", text, last=error)
