"""What clients send: kinds, tasks, messages to actors, cancels, questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb

from .actors import on_spawn, on_stop, stop_actor
from .catalog import adhoc, declare, forget, forget_all
from .ends import refuse
from .kinds import Kind
from .lending import lend
from .peers import Client, Worker
from .publishing import on_publish, on_subscribe, on_unsubscribe
from .reading import Reader, short
from .state import Mesh
from .status import report
from .tasks import Task
from .waiting import expect_expiry, withdraw

__all__ = ["CLIENT_HANDLERS", "drop_client", "on_ask", "on_cancel", "on_define", "on_submit"]

_MOST_CREDIT = 1 << 32


def on_define(mesh: Mesh, client: Client, k: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn a kind. The code of a function comes with the first kind that names its digest."""
    declare(mesh, client, k, head, body if body is not None else bytes(blobs[0]) if blobs else None)


def on_forget(mesh: Mesh, client: Client, k: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Forget a kind: no later record names it. Tasks of it that are under way go on."""
    forget(mesh, client, k)


# ---------------------------------------------------------------------- work


def on_submit(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Accept a task into its lane. The same number again is the same task, and changes nothing."""
    kind = client.kinds.get(head) if head.__class__ is int else adhoc(mesh, client, head)
    if kind is None or kind.message:
        raise _no_kind(client, f"SUBMIT {seq}", head, "task")
    numbers = client.numbers
    if seq == numbers.next:
        numbers.next = seq + 1
    elif not numbers.take(seq):
        _repeated(mesh, client, kind, seq)
        return
    task = Task(kind, seq, body, blobs, mesh.now)
    if _admit(mesh, client, kind, task):
        pool = kind.pool
        pool.queue.push(kind.line, task)
        if not pool.stirred:
            pool.stirred = True
            mesh.stirred.append(pool)


def _no_kind(client: Client, request: str, head: Any, what: str) -> ProtocolError:
    """Return why the head of a request names no kind: its DEFINE was refused, or it is of the other sort, or none."""
    why = client.refused.get(head) if type(head) is int and head not in client.kinds else None
    return ProtocolError(why or f"{request}: its head {short(head)} names no kind of {what} that {client} has defined")


def _admit(mesh: Mesh, client: Client, kind: Kind, task: Task) -> bool:
    """Count the task in, or refuse it because its lane's window is full."""
    window = kind.window
    limits = mesh.limits
    size = task.size
    if window.tasks >= limits.window_tasks or (window.size + size > limits.window_bytes and window.tasks):
        _refuse_full(mesh, client, kind, task)
        return False
    window.tasks += 1
    window.size += size
    client.tasks[task.seq] = task
    books = kind.books
    books.submitted += 1
    books.queued += 1
    if kind.ttl is not None:
        expect_expiry(mesh, kind, task)
    return True


def _refuse_full(mesh: Mesh, client: Client, kind: Kind, task: Task) -> None:
    window, limits = kind.window, mesh.limits
    kind.books.refused += 1
    client.numbers.give(task.seq)
    text = (
        f"lane {kind.priority} of {client} holds {window.tasks} unfinished tasks ({window.size} bytes); its window is "
        f"{limits.window_tasks} tasks and {limits.window_bytes} bytes: wait for some to end"
    )
    refuse(client, task.seq, "CapacityExceeded", text)


def _repeated(mesh: Mesh, client: Client, kind: Kind, seq: int) -> None:
    """Deal with a number that was used before: its task goes on, or has ended, and is in no case run again.

    A client that has had the answer knows nothing of the number any more, and ignores this one.
    """
    if seq in client.tasks or kind.silent:
        return
    if not mesh.shelf.answer(client, seq, (client.session, seq)):
        text = f"number {seq} of {client} was used, and what it named has ended; only detached ends are kept"
        refuse(client, seq, "NotFound", text)


def on_ask(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Accept a message to an actor (an ask, or a tell where its kind says so) into that actor's lanes."""
    kind = client.kinds.get(head) if head.__class__ is int else adhoc(mesh, client, head)
    if kind is None or kind.actor is None:
        raise _no_kind(client, f"ASK {seq}", head, "message to an actor")
    actor = mesh.actors.get(kind.actor)
    if actor is None:
        kind.books.refused += 1
        if not kind.silent:
            text = f"no actor is named {kind.actor!r} here; {len(mesh.actors)} others are known"
            refuse(client, seq, "NotFound", text)
        return
    if not client.numbers.take(seq):
        _repeated(mesh, client, kind, seq)
        return
    if kind.pool is not actor.pool:  # its first message, or the first to a new holder of the name
        kind.pool.dislodge(kind)
        actor.pool.lodge(kind)
        kind.cost = None
    task = Task(kind, seq, body, blobs, mesh.now)
    if _admit(mesh, client, kind, task):
        actor.pool.queue.push(kind.line, task)
        mesh.stir(actor.pool)


def on_cancel(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Ask for the end of a task, wherever it stands; idempotent, and without effect once it ended."""
    task = client.tasks.get(seq)
    if task is not None:
        _cancel(mesh, task)


def _cancel(mesh: Mesh, task: Task) -> None:
    """End a waiting task at once; have a dispatched one revoked, or brought to its end by its supervisor's ladder."""
    worker = task.worker
    if worker is None:
        withdraw(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled before it began")
    elif not task.cancelling:
        task.cancelling = True
        worker.put([Verb.CANCEL, task.aid, None, None, 0])
        if worker.node is not None:
            head = {"session": worker.session, "reason": "cancel", "grace": mesh.settings.step}
            worker.node.put([Verb.ABORT, task.aid, head, None, 0])


def on_credit(mesh: Mesh, client: Client, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Let a stream or a subscription send ``head`` more."""
    if type(head) is not int or not 0 < head <= _MOST_CREDIT:
        raise ProtocolError(f"CREDIT {about}: its head must be a positive count, not {short(head)}")
    task = client.tasks.get(about)
    if task is None:
        mesh.topics.credit(client.session, about, head)
    elif task.worker is not None:
        task.worker.put([Verb.CREDIT, task.aid, head, None, 0])


# ---------------------------------------------------------------------- questions


def on_status(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Answer with the state of the mesh."""
    client.put([Verb.RESULT, seq, None, msgpack.packb(report(mesh)), 0])


def on_fetch(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Hand out the end of a detached task to whoever knows its id; one that has not ended is to be asked for again."""
    read = Reader(head, f"FETCH {seq}", mesh.limits)
    session, number = read.binary("session"), read.get("seq")
    if session is None or type(number) is not int:
        raise ProtocolError(f"FETCH {seq} names a task by 'session' and 'seq'")
    if mesh.shelf.answer(client, seq, (session, number)):
        return
    owners = (mesh.sessions.get(session), *(ghost for ghost in mesh.ghosts if ghost.session == session))
    if any(isinstance(owner, Client) and number in owner.tasks for owner in owners):
        refuse(client, seq, "Pending", f"task {session.hex()}-{number} has not ended yet")
    else:
        why = "it is not there, was not detached, or ended too long ago"
        refuse(client, seq, "NotFound", f"no end of task {session.hex()}-{number} is kept: {why}")


def on_lend(mesh: Mesh, client: Client, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Have the CPUs of a worker lent out while its task waits for other tasks (1), or taken back as it goes on (0)."""
    worker = mesh.sessions.get(client.hello.within or b"")
    if isinstance(worker, Worker):
        lend(mesh, worker, head == 1)


# ---------------------------------------------------------------------- the end


def drop_client(mesh: Mesh, client: Client) -> None:
    """End a client's session: its tasks are cancelled unless they are detached, its unnamed actors stopped.

    While some of its tasks have not ended it is a ghost: their ends are booked, and told to nobody.
    """
    dropped = sum(1 for record in client.records if record[0] in (Verb.RESULT, Verb.FAILED))
    mesh.ledger.dropped += dropped
    mesh.drop(client)
    if client.tasks:
        mesh.ghosts.add(client)
    for task in list(client.tasks.values()):
        if not task.kind.detached:
            _cancel(mesh, task)
    mesh.topics.forget(client.session)
    for actor in [actor for actor in mesh.actors.values() if actor.owner is client and not actor.named]:
        stop_actor(mesh, actor)
    forget_all(mesh, client)


CLIENT_HANDLERS = {
    int(Verb.DEFINE): on_define,
    int(Verb.FORGET): on_forget,
    int(Verb.SUBMIT): on_submit,
    int(Verb.ASK): on_ask,
    int(Verb.TELL): on_ask,
    int(Verb.CANCEL): on_cancel,
    int(Verb.CREDIT): on_credit,
    int(Verb.SPAWN): on_spawn,
    int(Verb.STOP): on_stop,
    int(Verb.STATUS): on_status,
    int(Verb.FETCH): on_fetch,
    int(Verb.PUBLISH): on_publish,
    int(Verb.SUBSCRIBE): on_subscribe,
    int(Verb.UNSUBSCRIBE): on_unsubscribe,
    int(Verb.LEND): on_lend,
}
