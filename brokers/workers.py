"""What workers and actors send: the ends of attempts, chunks of streams, what calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb

from .actors import on_setup
from .catalog import forget_leftover
from .ends import detach, end
from .losses import give_back
from .peers import Worker
from .publishing import on_publish
from .reading import Reader, short
from .recall import watch
from .sharing import release
from .state import Mesh
from .tasks import HORIZON

__all__ = ["WORKER_HANDLERS", "freed", "on_done", "on_fail", "take_back"]

_RESULT = int(Verb.RESULT)
_LEAST_COST = 1_000
_MOST_CREDITS = 1 << 30


def on_done(mesh: Mesh, worker: Worker, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Book a result and hand it to its client. That of an attempt which is not live is late: counted and dropped."""
    attempts = worker.attempts
    task = attempts.pop(aid, None)
    if task is None:
        if not on_setup(mesh, worker, aid, None):
            mesh.ledger.late += 1
        return
    kind = task.kind
    client = kind.client
    worker.backlog -= task.cost
    worker.moved = mesh.now
    task.worker = None
    books = kind.books
    books.running -= 1
    if kind.plain and client.route is not None:
        # This is `end`, written out, for it runs once for every task.
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
    else:
        end(mesh, task, "done", [_RESULT, task.seq, None, body, len(blobs)], blobs)
    if not worker.listed:
        freed(mesh, worker)
    elif not attempts:
        _idled(mesh, worker)


def freed(mesh: Mesh, worker: Worker) -> None:
    """Let a worker that got on take more, or give its CPUs back when it has nothing left."""
    worker.stalled = False
    if not worker.attempts and worker.busy:
        _idled(mesh, worker)
    _enlist(mesh, worker)


def _enlist(mesh: Mesh, worker: Worker) -> None:
    pool = worker.pool
    if pool is not None:
        pool.enlist(worker)
        if worker.listed and not pool.stirred:
            mesh.stir(pool)


def _idled(mesh: Mesh, worker: Worker) -> None:
    """Have a worker that has nothing left give back its CPUs, and look for work that waits elsewhere."""
    release(mesh, worker)
    pool = worker.pool
    if pool is not None and not pool.queue.depth:
        if worker.leftover:
            forget_leftover(worker)
        if not pool.watched:
            watch(mesh, pool)


def on_fail(mesh: Mesh, worker: Worker, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Book an attempt that raised, was cancelled, timed out, or was not begun (it goes back to its queue)."""
    read = Reader(head, f"FAIL {aid}", mesh.limits)
    error = read.text("error")
    if error is None:
        raise read.wrong("error", "the name of an error")
    task = worker.attempts.get(aid)
    if task is None:
        # What was recalled is reported by both the supervisor and the worker, and late for neither.
        if not on_setup(mesh, worker, aid, head) and error != "Revoked":
            mesh.ledger.late += 1
        return
    if error == "Revoked":
        give_back(mesh, worker, task)
    else:
        detach(worker, task)
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
    if not client.gone:
        client.put([Verb.CHUNK, task.seq, None, body, len(blobs)], blobs)


def on_timed(mesh: Mesh, worker: Worker, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn what a call of a kind costs, in nanoseconds; what it is reckoned at from its next dispatch on."""
    if type(head) is not int or head < 0:
        raise ProtocolError(f"TIMED {number}: its head must be a count of nanoseconds, not {short(head)}")
    kind = worker.known.get(number)
    if kind is not None:
        kind.cost = min(max(head, _LEAST_COST), HORIZON)


def on_grant(mesh: Mesh, worker: Worker, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Let the worker hold ``head`` more messages than it was credited for."""
    if about or type(head) is not int or not 0 < head <= _MOST_CREDITS:
        raise ProtocolError(f"CREDIT of {worker} needs id 0 and a positive count, not {about} and {short(head)}")
    worker.credits = min(worker.credits + head, _MOST_CREDITS)
    _enlist(mesh, worker)


def take_back(mesh: Mesh, worker: Worker, aid: int) -> None:
    """Queue an attempt of ``worker`` again that its supervisor revoked before it began."""
    give_back(mesh, worker, worker.attempts[aid])
    if worker.attempts:
        _enlist(mesh, worker)
    else:
        freed(mesh, worker)


WORKER_HANDLERS = {
    int(Verb.DONE): on_done,
    int(Verb.FAIL): on_fail,
    int(Verb.CHUNK): on_chunk,
    int(Verb.TIMED): on_timed,
    int(Verb.CREDIT): on_grant,
    int(Verb.PUBLISH): on_publish,
}
