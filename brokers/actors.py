"""Actors as the broker knows them: a name, what makes one, a queue that outlives its process, and who asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb, fit

from .ends import detach, fail
from .kinds import Shape, parse_shape
from .peers import Client, Node, Peer, Worker
from .placement import place, reserve, surrender
from .pools import Pool

if TYPE_CHECKING:
    from .state import Mesh

__all__ = ["ActorEntry", "adopt", "end_actor", "on_setup", "on_spawn", "on_stop", "present"]


class ActorEntry:
    """One actor. ``state`` is starting, setup, ready, restarting or stopping.

    ``head``, ``body`` and ``blobs`` say how to make it anew, as its spawner sent them. ``waiters`` are the requests (peer and number) to answer
    when it is ready, ``enders`` those to answer when it is gone.
    """

    def __init__(self, name: str, pool: Pool, owner: Client | None, named: bool) -> None:
        self.name = name
        self.pool = pool
        self.owner = owner
        self.named = named
        self.state = "starting"
        self.head: dict[str, Any] = {}
        self.code: bytes | None = None
        self.body: bytes | None = None
        self.blobs: Sequence[Blob] = ()
        self.worker: Worker | None = None
        self.node: Node | None = None
        self.devices: tuple[str, ...] = ()
        self.setup = 0
        self.restarts = 0
        self.waiters: list[tuple[Peer, int]] = []
        self.enders: list[tuple[Peer, int]] = []


def on_spawn(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Start an actor on a node that has room; the RESULT says that it is ready and carries nothing.

    The code of its class, where it is shipped, was declared by a DEFINE of the same digest.
    """
    if not isinstance(head, dict) or ("cls" in head) == ("code" in head):
        raise ProtocolError(f"SPAWN {seq} names its class by either 'cls' or 'code'")
    shape = parse_shape(head, mesh.limits)
    name = head.get("name")
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= mesh.limits.name):
        raise ProtocolError(f"SPAWN {seq}: 'name' must be a string of 1 to {mesh.limits.name} characters, not {name!r:.80}")
    named = name is not None and not head.get("anonymous")
    name = name or f"actor-{client.session.hex()[:6]}-{seq}"
    if name in mesh.actors:
        _refuse(client, seq, "AlreadyExists", f"an actor named {name!r} is {mesh.actors[name].state}; stop it first, or pick another name")
        return
    placed = place(mesh, shape)
    if placed is None:
        _refuse(client, seq, "CapacityExceeded", _no_place(mesh, name, shape))
        return
    actor = ActorEntry(name, Pool(shape, f"actor {name}", mesh.settings.guard), client, named)
    actor.head = {**head, "name": name}
    actor.code = client.codes.get(head["code"]) if "code" in head else None
    actor.body, actor.blobs = body, blobs
    actor.node, actor.devices = placed
    actor.waiters.append((client, seq))
    mesh.actors[name] = actor
    reserve(actor.node, shape, actor.devices)
    order = {"name": name, "role": "actor", "cpus": shape.cpus, "devices": list(actor.devices)}
    order |= {"credits": head.get("mailbox", 1024), "restart": head.get("restart"), "env": head.get("env") or {}}
    actor.node.put([Verb.START, mesh.command(), order, None, 0])


def _no_place(mesh: Mesh, name: str, shape: Shape) -> str:
    if not mesh.nodes:
        return f"actor {name!r} has no place: no node is up; start one with `omnibus node`"
    has = ", ".join(f"{node.name}: cpus={node.cpus:g} gpus={len(node.gpus)}" for node in mesh.nodes.values())
    return f"actor {name!r} asks for cpus={shape.cpus:g} gpus={shape.gpus:g} memory={shape.memory}, and no node has that free ({has})"


def _refuse(client: Peer, seq: int, error: str, message: str) -> None:
    client.put([Verb.FAILED, seq, {"error": error, "state": "refused", "message": message}, None, 0])


def adopt(mesh: Mesh, worker: Worker) -> None:
    """Take in an actor's process that said HELLO: one that a node started, or one that lives in someone else's process."""
    actor = mesh.actors.get(worker.name)
    if worker.info.get("node") is None:
        if actor is not None:
            text = f"an actor named {worker.name!r} is {actor.state}; two live holders of one name are not allowed"
            worker.put([Verb.ERROR, 0, {"error": "AlreadyExists", "message": text, "again": False}, None, 0])
            return
        actor = mesh.actors[worker.name] = ActorEntry(worker.name, Pool(Shape(), f"actor {worker.name}"), None, True)
        actor.worker, worker.actor = worker, actor
        present(mesh, actor)
        return
    if actor is None:
        worker.put([Verb.STOP, 0, None, None, 0])
        return
    actor.worker, worker.actor = worker, actor
    actor.state = "setup"
    mesh.aid += 1
    actor.setup = mesh.aid
    making = _making(actor)
    code, beside = fit(actor.code, ())
    worker.put([Verb.DEFINE, 0, making, code, len(beside)], beside)
    worker.put([Verb.SPAWN, actor.setup, making, actor.body, len(actor.blobs)], actor.blobs)


def _making(actor: ActorEntry) -> dict[str, Any]:
    """Return what the process must know to make the actor: its class and how it handles messages."""
    return {key: actor.head[key] for key in ("cls", "code", "name", "concurrency") if key in actor.head}


def on_setup(mesh: Mesh, worker: Worker, aid: int, error: dict[str, Any] | None) -> bool:
    """Take the answer to an actor's set-up; false where ``aid`` is none."""
    actor = worker.actor
    if actor is None or actor.setup != aid:
        return False
    actor.setup = 0
    if error is None:
        present(mesh, actor)
        return True
    assert actor.node is not None
    actor.node.put([Verb.HALT, mesh.command(), {"name": actor.name, "session": worker.session, "grace": mesh.settings.step}, None, 0])
    end_actor(mesh, actor, "SetupFailed", error)
    return True


def present(mesh: Mesh, actor: ActorEntry) -> None:
    """Let the actor take messages, and answer those who waited for it."""
    assert actor.worker is not None
    actor.state = "ready"
    actor.pool.join(actor.worker)
    mesh.stir(actor.pool)
    for peer, seq in actor.waiters:
        peer.put([Verb.RESULT, seq, None, None, 0])
    actor.waiters.clear()


def end_actor(mesh: Mesh, actor: ActorEntry, error: str, head: dict[str, Any]) -> None:
    """Take an actor out of the mesh: what waits for it fails with ``error``, those who asked for its end are answered.

    ``head`` carries the message, and whatever else the answer to its spawner says.
    """
    del mesh.actors[actor.name]
    worker = actor.worker
    if worker is not None:
        worker.actor = None
        for task in list(worker.attempts.values()):
            detach(mesh, worker, task)
            fail(mesh, task, "failed", error, f"actor {actor.name}: {head['message']}")
        if worker.pool is not None:
            worker.pool.leave(worker)
    while (task := actor.pool.queue.pop()) is not None:
        task.kind.books.queued -= 1
        fail(mesh, task, "failed", error, f"actor {actor.name}: {head['message']}")
    if actor.node is not None:
        surrender(actor.node, actor.pool.shape, actor.devices)
    for peer, seq in actor.waiters:
        peer.put([Verb.FAILED, seq, {**head, "error": error, "state": "failed"}, None, 0])
    for peer, seq in actor.enders:
        peer.put([Verb.RESULT, seq, None, None, 0])


def on_stop(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Stop an actor for good; the RESULT says that it is gone. A number of 0 wants no answer."""
    name = head.get("actor") if isinstance(head, dict) else None
    actor = mesh.actors.get(name) if isinstance(name, str) else None
    if actor is None:
        if seq:
            _refuse(client, seq, "NotFound", f"no actor is named {name!r}: it was never there, or it has stopped")
        return
    if seq:
        actor.enders.append((client, seq))
    if actor.state == "stopping":
        return
    was, actor.state = actor.state, "stopping"
    if actor.node is not None:
        grace = head.get("grace", 5.0)
        order: dict[str, Any] = {"name": actor.name, "grace": grace}
        if actor.worker is not None:
            order["session"] = actor.worker.session
            actor.worker.put([Verb.STOP, 0, None, None, 0])
        actor.node.put([Verb.HALT, mesh.command(), order, None, 0])
        if actor.worker is None and was != "starting":
            end_actor(mesh, actor, "NotFound", {"message": "it was stopped"})
    elif actor.worker is not None:
        actor.worker.put([Verb.STOP, 0, None, None, 0])
