"""What workers and actors send: the ends of attempts, chunks of streams, what calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb

from .actors import on_setup
from .clients import on_publish
from .dispatch import release
from .ends import detach, end, fail, give_back, lose, requeue
from .peers import Worker
from .pools import HORIZON
from .state import Mesh
from .tasks import Task

__all__ = ["WORKER_HANDLERS", "drop_worker", "on_done", "on_fail", "take_back"]

_RESULT = int(Verb.RESULT)


def on_done(mesh: Mesh, worker: Worker, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Book a result and hand it to its client. That of an attempt which is not live is late: counted and dropped."""
    attempts = worker.attempts
    task = attempts.pop(aid, None)
    if task is None:
        _late(mesh, worker, aid, None)
        return
    kind = task.kind
    client = kind.client
    books = kind.books
    worker.backlog -= task.cost
    worker.moved = mesh.now
    task.worker = None
    books.running -= 1
    if kind.detached or kind.silent or client.route is None:
        end(mesh, task, "done", [_RESULT, task.seq, None, body, len(blobs)], blobs)
    else:
        # What follows is `end`, written out: it runs once for every task.
        del client.tasks[task.seq]
        window = kind.window
        window.tasks -= 1
        window.size -= task.size
        books.done += 1
        client.records.append([_RESULT, task.seq, None, body, len(blobs)])
        if blobs:
            client.blobs.extend(blobs)
        if not client.dirty:
            client.dirty = True
            client.outlet.append(client)
    if not worker.listed:
        freed(mesh, worker)
    elif not attempts:
        release(mesh, worker)


def freed(mesh: Mesh, worker: Worker) -> None:
    """Let a worker whose attempt is over take more, or give its CPUs back when it has nothing left."""
    pool = worker.pool
    if not worker.attempts and worker.busy:
        release(mesh, worker)
    if pool is not None:
        pool.enlist(worker)
        if worker.listed and not pool.stirred:
            mesh.stir(pool)


def _late(mesh: Mesh, worker: Worker, aid: int, error: dict[str, Any] | None) -> None:
    """Count an answer to an attempt that is not live, unless it answers an actor's set-up."""
    if not on_setup(mesh, worker, aid, error):
        mesh.ledger.late += 1


def on_fail(mesh: Mesh, worker: Worker, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Book an attempt that raised, was cancelled, timed out, or was not begun (it goes back to its queue)."""
    if not isinstance(head, dict) or not isinstance(head.get("error"), str):
        raise ProtocolError(f"FAIL {aid} must say its 'error' in a map, not {head!r:.80}")
    task = worker.attempts.get(aid)
    if task is None:
        _late(mesh, worker, aid, head)
        return
    error = head["error"]
    if error == "Revoked":
        give_back(mesh, worker, task)
    else:
        detach(mesh, worker, task)
        how = "cancelled" if error == "Cancelled" else "failed"
        answer = {**head, "state": how, "attempts": task.attempt}
        end(mesh, task, how, [Verb.FAILED, task.seq, answer, body, len(blobs)], blobs)
    worker.moved = mesh.now
    freed(mesh, worker)


def on_chunk(mesh: Mesh, worker: Worker, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Pass a part of a stream on; from now on its attempt cannot be repeated."""
    task = worker.attempts.get(aid)
    if task is None:
        mesh.ledger.late += 1
        return
    task.chunked = True
    client = task.kind.client
    if client.listens:
        client.put([Verb.CHUNK, task.seq, None, body, len(blobs)], blobs)


def on_timed(mesh: Mesh, worker: Worker, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn what a call of a kind costs, in nanoseconds; what it is reckoned at from its next dispatch on."""
    if type(head) is not int or head < 0:
        raise ProtocolError(f"TIMED {number}: its head must be a count of nanoseconds, not {head!r:.80}")
    kind = mesh.kinds.get(number)
    if kind is not None:
        kind.cost = min(max(head, 1_000), HORIZON)


def on_grant(mesh: Mesh, worker: Worker, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Let the worker hold ``head`` more messages than it was credited for."""
    if about or type(head) is not int or not 0 < head <= 1 << 20:
        raise ProtocolError(f"CREDIT from {worker}: id 0 and a positive count were expected, not {about} and {head!r:.80}")
    worker.credits += head
    freed(mesh, worker)


def take_back(mesh: Mesh, worker: Worker, aid: int) -> None:
    """Queue an attempt again that its supervisor revoked before it began."""
    task = worker.attempts.get(aid)
    if task is not None:
        give_back(mesh, worker, task)
        freed(mesh, worker)


def drop_worker(mesh: Mesh, worker: Worker, error: str, reason: str, *, last: int | None, running: int) -> None:
    """Deal with all that a dead worker held.

    ``last`` is the newest attempt that it had begun, from its status page; ``None`` where nobody knows, and then every attempt counts as
    begun. ``running`` is the one that it was in when it died (0: none).
    """
    for aid, task in sorted(worker.attempts.items(), reverse=True):
        if last is not None and aid > last:
            give_back(mesh, worker, task)
        else:
            lose(mesh, worker, task, error, reason)
    if worker.pool is not None:
        worker.pool.leave(worker)
    if worker.busy:
        release(mesh, worker)


def end_running(mesh: Mesh, worker: Worker, aid: int, cause: str, reason: str) -> Task | None:
    """End the attempt that its supervisor killed the worker for: ``cause`` is ``cancel`` or ``timeout``."""
    task = worker.attempts.get(aid)
    if task is None:
        return None
    detach(mesh, worker, task)
    if cause == "timeout":
        fail(mesh, task, "failed", "TaskTimeout", f"task {task.seq} ran longer than its timeout of {task.kind.timeout} s; {reason}")
    else:
        fail(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled; {reason}")
    return task


WORKER_HANDLERS = {
    Verb.DONE: on_done,
    Verb.FAIL: on_fail,
    Verb.CHUNK: on_chunk,
    Verb.TIMED: on_timed,
    Verb.CREDIT: on_grant,
    Verb.PUBLISH: on_publish,
}
