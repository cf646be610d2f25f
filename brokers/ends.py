"""How work ends: once, in one of the ledger's five ways; its client hears of it by one RESULT or FAILED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnibus.protocol import Blob, Record, Verb

if TYPE_CHECKING:
    from .peers import Peer, Worker
    from .state import Mesh
    from .tasks import Task

__all__ = ["detach", "end", "fail", "refuse"]

_FAILED = int(Verb.FAILED)


def end(mesh: Mesh, task: Task, how: str, record: Record, blobs: Sequence[Blob] = ()) -> None:
    """Book the end of ``task``, which is in no queue and at no worker, as ``how``; tell its client by ``record``."""
    kind = task.kind
    client = kind.client
    del client.tasks[task.seq]
    window = kind.window
    window.tasks -= 1
    window.size -= task.size
    kind.books.close(how)
    if kind.detached:
        _keep(mesh, task, record, blobs)
    if client.gone:
        if not client.tasks:
            mesh.ghosts.discard(client)
        if kind.plain:
            kind.books.dropped += 1
    elif not kind.silent:
        client.put(record, blobs)


def _keep(mesh: Mesh, task: Task, record: Record, blobs: Sequence[Blob]) -> None:
    first = not len(mesh.shelf)
    mesh.shelf.put((task.kind.client.session, task.seq), record, blobs, mesh.now)
    if first:
        _tidy(mesh, mesh.now)


def _tidy(mesh: Mesh, now: float) -> None:
    """Clear the shelf of what was kept long enough; there is one timer while it holds something, and none otherwise."""
    deadline = mesh.shelf.expire(now)
    if deadline is not None:
        mesh.at(deadline, lambda at: _tidy(mesh, at))


def fail(mesh: Mesh, task: Task, how: str, error: str, message: str, **more: Any) -> None:
    """End ``task`` with an error of the tree's class ``error``."""
    head = {"error": error, "state": how, "message": message, "attempts": task.attempt, **more}
    end(mesh, task, how, [_FAILED, task.seq, head, None, 0])


def refuse(peer: Peer, seq: int, error: str, message: str) -> None:
    """Answer a request that was not accepted; it is in no book but ``refused``."""
    peer.put([_FAILED, seq, {"error": error, "state": "refused", "message": message}, None, 0])


def detach(worker: Worker, task: Task) -> None:
    """Take ``task`` off ``worker``: its attempt is over, however it went."""
    del worker.attempts[task.aid]
    worker.backlog -= task.cost
    task.worker = None
    task.kind.books.running -= 1
