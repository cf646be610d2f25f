"""Losses: what becomes of the work of a worker that has died, or that nobody can vouch for.

An attempt that is known not to have begun goes back for free. One that began and was lost is counted: it is
delivered again while its budget lasts. Of those that a worker had ended when it died the results may still be
under way, and are waited for a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalog import forget_worker
from .ends import detach, fail
from .sharing import release
from .waiting import settle

if TYPE_CHECKING:
    from .peers import Worker
    from .state import Mesh
    from .tasks import Task

__all__ = ["bury", "end_aborted", "give_back", "lose", "lose_all"]


def give_back(mesh: Mesh, worker: Worker, task: Task) -> None:
    """Queue again, at no cost, a task whose attempt is known not to have begun; a cancelled one ends here."""
    detach(worker, task)
    task.attempt -= 1
    settle(mesh, task)


def lose(mesh: Mesh, worker: Worker, task: Task, error: str, reason: str) -> None:
    """Deal with an attempt that began and was lost with its worker: redelivery while the budget lasts, else the end."""
    detach(worker, task)
    kind = task.kind
    what = f"message {kind.method!r} to actor {kind.actor}" if kind.message else f"task {task.seq}"
    if task.cancelling:
        fail(mesh, task, "cancelled", "Cancelled", f"{what} was cancelled; {reason}")
    elif task.chunked or not kind.retries:
        why = "part of its stream was delivered" if task.chunked else "retries=0"
        fail(mesh, task, "failed", error, f"{what} was running on {worker.name}: {reason}; it is not run again ({why})")
    elif task.attempt <= kind.retries:
        kind.books.redelivered += 1
        settle(mesh, task)
    else:
        text = f"{what} lost its worker {task.attempt} times, and retries={kind.retries}; the last"
        fail(mesh, task, "dead", "DeadLetter", f"{text}: {worker.name}, {reason}", last=error)


def lose_all(mesh: Mesh, worker: Worker, error: str, reason: str) -> None:
    """Count every attempt of a worker as lost: nobody knows which of them had begun."""
    for task in reversed(list(worker.attempts.values())):
        lose(mesh, worker, task, error, reason)


def bury(mesh: Mesh, worker: Worker, error: str, reason: str, *, last: int | None = None, begun: int = 0) -> None:
    """Deal with all that a dead worker held, and end its session.

    ``last`` is the newest attempt that it had begun, from its status page; ``None`` where nobody knows, and then
    every attempt counts as begun. ``begun`` is the one that it was in when it died (0: none).
    """
    _close(mesh, worker)
    ended: list[Task] = []
    for aid, task in reversed(list(worker.attempts.items())):
        if last is not None and aid > last:
            give_back(mesh, worker, task)
        elif last is not None and aid != begun:
            ended.append(task)
        else:
            lose(mesh, worker, task, error, reason)
    if ended:
        mesh.at(mesh.now + mesh.settings.settle, lambda now: _finish(mesh, worker, error, reason))
    else:
        _finish(mesh, worker, error, reason)


def _close(mesh: Mesh, worker: Worker) -> None:
    """Give ``worker`` nothing more, and take its CPUs back."""
    worker.closing = worker.dead = True
    if worker.pool is not None:
        worker.pool.retire(worker)
    if worker.busy:
        release(mesh, worker)


def _finish(mesh: Mesh, worker: Worker, error: str, reason: str) -> None:
    """Give up the results that have not come, and drop the worker."""
    lose_all(mesh, worker, error, reason)
    pool = worker.pool
    if pool is not None:
        pool.leave(worker)
        if not pool.for_actor:
            mesh.drop_pool(pool)
    forget_worker(worker)
    if worker.node is not None:
        worker.node.workers.pop(worker.session, None)
    mesh.drop(worker)


def end_aborted(mesh: Mesh, worker: Worker, aid: int, cause: str, reason: str) -> None:
    """End the attempt that its supervisor killed the worker for: ``cause`` is ``cancel`` or ``timeout``."""
    task = worker.attempts.get(aid)
    if task is None:
        return
    detach(worker, task)
    if cause == "timeout":
        text = f"task {task.seq} ran longer than its timeout of {task.kind.timeout} s; {reason}"
        fail(mesh, task, "failed", "TaskTimeout", text)
    else:
        fail(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled; {reason}")
