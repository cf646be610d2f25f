"""What clients send: kinds, tasks, messages to actors, cancels, topics, questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb

from .actors import on_spawn, on_stop
from .ends import fail
from .kinds import Kind, parse_kind
from .peers import Client, Peer, Window, Worker
from .placement import lend
from .state import Mesh
from .status import report
from .tasks import Task

__all__ = ["CLIENT_HANDLERS", "drop_client", "on_ask", "on_cancel", "on_define", "on_submit"]

_FAILED = int(Verb.FAILED)


def on_define(mesh: Mesh, client: Client, k: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn a kind. The code of a function comes with the first kind that names its digest."""
    if len(client.kinds) >= mesh.limits.kinds and k not in client.kinds:
        raise ProtocolError(f"{client} has {len(client.kinds)} kinds defined, the limit: FORGET some first")
    code = body if body is not None else bytes(blobs[0]) if blobs else None
    client.kinds[k] = _declare(mesh, client, head, code)


def _declare(mesh: Mesh, client: Client, head: Any, code: bytes | None) -> Kind:
    mesh.last_kind += 1
    kind = parse_kind(mesh.last_kind, client, head, code, mesh.limits)
    if kind.digest is not None:
        kind.code = client.codes.setdefault(kind.digest, code) if code else client.codes.get(kind.digest)
        if kind.code is None:
            raise ProtocolError(f"kind names code {kind.digest.hex()}, which {client} has not sent")
    mesh.kinds[kind.number] = kind
    kind.books = mesh.books(kind)
    kind.stats = mesh.stats(kind.priority)
    kind.window = client.windows.get(kind.priority) or client.windows.setdefault(kind.priority, Window())
    if not kind.message:
        kind.pool = mesh.pool(kind.shape)
        kind.line = kind.pool.queue.line(kind.priority, client.session)
    return kind


def _adhoc(mesh: Mesh, client: Client, head: Any) -> Kind | None:
    """Return the kind of a record that carries its map along, as simple clients do; the last few hundred are remembered."""
    if not isinstance(head, dict):
        return None
    key = msgpack.packb(head)
    kind = client.adhoc.get(key)
    if kind is None:
        if len(client.adhoc) >= 256:
            drop_kind(mesh, client.adhoc.pop(next(iter(client.adhoc))))
        kind = client.adhoc[key] = _declare(mesh, client, head, None)
    return kind


def on_forget(mesh: Mesh, client: Client, k: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Forget a kind: no later record names it. Tasks of it that are under way go on."""
    kind = client.kinds.pop(k, None)
    if kind is None:
        return
    drop_kind(mesh, kind)
    if kind.digest is not None and all(other.digest != kind.digest for other in client.kinds.values()):
        client.codes.pop(kind.digest, None)


def drop_kind(mesh: Mesh, kind: Kind) -> None:
    """Tell the workers that know ``kind`` to forget it."""
    mesh.kinds.pop(kind.number, None)
    for worker in mesh.every(Worker):
        if kind.number in worker.known:
            worker.known.discard(kind.number)
            worker.put([Verb.FORGET, kind.number, None, None, 0])


def on_submit(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Accept a task into its lane. The same number again is the same task, and changes nothing."""
    kind = client.kinds.get(head) if head.__class__ is int else _adhoc(mesh, client, head)
    if kind is None or kind.message:
        raise ProtocolError(f"SUBMIT {seq}: its head {head!r:.80} names no kind of task that {client} has defined")
    if seq in client.tasks:
        return
    task = Task(kind, seq, body, blobs, mesh.now)
    if _admit(mesh, client, kind, task):
        pool = kind.pool
        pool.queue.push(kind.line, task)
        if not pool.stirred:
            pool.stirred = True
            mesh.stirred.append(pool)


def _admit(mesh: Mesh, client: Client, kind: Kind, task: Task) -> bool:
    """Count the task in, or refuse it because its lane's window is full."""
    window = kind.window
    limits = mesh.limits
    size = task.size
    if window.tasks >= limits.window_tasks or window.size + size > limits.window_bytes and window.tasks:
        kind.books.refused += 1
        text = (
            f"lane {kind.priority} of {client} holds {window.tasks} unfinished tasks ({window.size} bytes); its window is "
            f"{limits.window_tasks} tasks and {limits.window_bytes} bytes: wait for some to end"
        )
        refuse(client, task.seq, "CapacityExceeded", text)
        return False
    window.tasks += 1
    window.size += size
    client.tasks[task.seq] = task
    books = kind.books
    books.submitted += 1
    books.queued += 1
    if kind.ttl is not None:
        mesh.at(mesh.now + kind.ttl, lambda now: _expire(mesh, client, task))
    return True


def refuse(client: Client, seq: int, error: str, message: str) -> None:
    """Answer a request that was not accepted; it is in no book but ``refused``."""
    client.put([_FAILED, seq, {"error": error, "state": "refused", "message": message}, None, 0])


def _expire(mesh: Mesh, client: Client, task: Task) -> None:
    if client.tasks.get(task.seq) is task and task.waiting:
        withdraw(mesh, task, "expired", "Expired", f"task {task.seq} waited longer than its ttl of {task.kind.ttl} s")


def withdraw(mesh: Mesh, task: Task, how: str, error: str, message: str) -> None:
    """End a task that waits in its lane."""
    task.kind.pool.queue.discard(task.kind.line, task)
    task.kind.books.queued -= 1
    fail(mesh, task, how, error, message)


def on_ask(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Accept a message to an actor (an ask, or a tell where its kind says so) into that actor's lanes."""
    kind = client.kinds.get(head) if head.__class__ is int else _adhoc(mesh, client, head)
    if kind is None or kind.actor is None:
        raise ProtocolError(f"ASK {seq}: its head {head!r:.80} names no kind of message that {client} has defined")
    if seq in client.tasks:
        return
    actor = mesh.actors.get(kind.actor)
    if actor is None:
        kind.books.refused += 1
        if not kind.silent:
            refuse(client, seq, "NotFound", f"no actor is named {kind.actor!r} here; {len(mesh.actors)} others are known")
        return
    if getattr(kind, "pool", None) is not actor.pool:
        kind.pool = actor.pool
        kind.line = actor.pool.queue.line(kind.priority, client.session)
        kind.cost = None
    task = Task(kind, seq, body, blobs, mesh.now)
    if _admit(mesh, client, kind, task):
        actor.pool.queue.push(kind.line, task)
        mesh.stir(actor.pool)


def on_cancel(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Ask for the end of a task, wherever it stands; idempotent, and without effect once it ended."""
    task = client.tasks.get(seq)
    if task is not None:
        cancel(mesh, task)


def cancel(mesh: Mesh, task: Task) -> None:
    """End a waiting task at once; have a dispatched one revoked, or brought to its end by its supervisor's ladder."""
    if task.waiting:
        withdraw(mesh, task, "cancelled", "Cancelled", f"task {task.seq} was cancelled before it began")
        return
    worker = task.worker
    if task.cancelling or worker is None:
        return
    task.cancelling = True
    worker.put([Verb.CANCEL, task.aid, None, None, 0])
    if worker.node is not None:
        head = {"session": worker.session, "reason": "cancel", "grace": mesh.settings.step}
        worker.node.put([Verb.ABORT, task.aid, head, None, 0])


def on_credit(mesh: Mesh, client: Client, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Let a stream or a subscription send ``head`` more."""
    if type(head) is not int or not 0 < head <= 1 << 32:
        raise ProtocolError(f"CREDIT {about}: its head must be a positive count, not {head!r:.80}")
    task = client.tasks.get(about)
    if task is not None and task.worker is not None:
        task.worker.put([Verb.CREDIT, task.aid, head, None, 0])
    elif task is None:
        mesh.topics.credit(client.session, about, head)


def on_publish(mesh: Mesh, peer: Peer, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Publish a message under the topic that the head names; with a non-zero id, its number is the RESULT."""
    topic = mesh.topics.get(_topic(mesh, head))
    if topic is None:
        raise ProtocolError("too many topics are followed; the limit is on all of them together")
    number = mesh.topics.publish(topic, body, blobs)
    if about:
        peer.put([Verb.RESULT, about, None, msgpack.packb(number), 0])


def on_subscribe(mesh: Mesh, client: Client, sid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Follow a topic from ``since`` on, or from now; RESULT carries the number that comes next."""
    topic = mesh.topics.get(_topic(mesh, head))
    since, credit = head.get("since"), head.get("credit", 1024)
    if topic is None or type(credit) is not int or not (since is None or type(since) is int):
        raise ProtocolError(f"SUBSCRIBE {sid}: 'since' and 'credit' must be integers")
    client.put([Verb.RESULT, sid, None, msgpack.packb(topic.next if since is None else since), 0])
    mesh.topics.subscribe(client, sid, topic, since, credit)


def on_unsubscribe(mesh: Mesh, client: Client, sid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Stop following."""
    mesh.topics.unsubscribe(client.session, sid)


def _topic(mesh: Mesh, head: Any) -> str:
    name = head.get("topic") if isinstance(head, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= mesh.limits.name:
        raise ProtocolError(f"a topic is a string of 1 to {mesh.limits.name} characters, not {name!r:.80}")
    return name


def on_status(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Answer with the state of the mesh."""
    client.put([Verb.RESULT, seq, None, msgpack.packb(report(mesh)), 0])


def on_fetch(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Hand out the end of a detached task, to whoever knows its id; one that is under way is awaited by asking again."""
    session, number = (head.get("session"), head.get("seq")) if isinstance(head, dict) else (None, None)
    if not isinstance(session, bytes) or type(number) is not int:
        raise ProtocolError(f"FETCH {seq} names a task by 'session' and 'seq'")
    kept = mesh.kept.get((session, number))
    owner = mesh.sessions.get(session)
    if kept is not None:
        client.put([kept.verb, seq, kept.head, kept.body, len(kept.blobs)], kept.blobs)
    elif isinstance(owner, Client) and number in owner.tasks:
        refuse(client, seq, "Pending", f"task {session.hex()}-{number} has not ended yet")
    else:
        refuse(client, seq, "NotFound", f"no result of task {session.hex()}-{number} is kept: it was never detached, or an hour has passed")


def on_lend(mesh: Mesh, client: Client, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """A task waits for other tasks (head 1) or goes on (0): its worker's CPUs are lent out meanwhile."""
    worker = mesh.sessions.get(client.info.get("within", b""))
    if isinstance(worker, Worker):
        lend(mesh, worker, head == 1)


def drop_client(mesh: Mesh, client: Client, reason: str) -> None:
    """End a client's session: its tasks are cancelled unless they are detached, its unnamed actors stopped."""
    for task in list(client.tasks.values()):
        if not task.kind.detached:
            cancel(mesh, task)
    mesh.topics.forget(client.session)
    for pool in [*mesh.pools.values(), *(actor.pool for actor in mesh.actors.values())]:
        pool.queue.forget(client.session)
    for actor in [actor for actor in mesh.actors.values() if actor.owner is client and not actor.named]:
        on_stop(mesh, client, 0, {"actor": actor.name}, None, ())
    for kind in [*client.kinds.values(), *client.adhoc.values()]:
        drop_kind(mesh, kind)
    client.kinds.clear()
    client.adhoc.clear()
    client.codes.clear()


CLIENT_HANDLERS = {
    Verb.DEFINE: on_define,
    Verb.FORGET: on_forget,
    Verb.SUBMIT: on_submit,
    Verb.ASK: on_ask,
    Verb.TELL: on_ask,
    Verb.CANCEL: on_cancel,
    Verb.CREDIT: on_credit,
    Verb.SPAWN: on_spawn,
    Verb.STOP: on_stop,
    Verb.STATUS: on_status,
    Verb.FETCH: on_fetch,
    Verb.PUBLISH: on_publish,
    Verb.SUBSCRIBE: on_subscribe,
    Verb.UNSUBSCRIBE: on_unsubscribe,
    Verb.LEND: on_lend,
}
