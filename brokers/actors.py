"""Actors as the broker knows them: a name, what makes one, a queue that outlives its process, and who asked for it.

::

                      ┌─────────── restarting ◀──────────┐
                      ▼                ▲                 │
    placing ──▶ starting ──▶ setup ────┴──────▶ ready ───┤
       │            │          │                  │      │
       │            ├──────────┴── stopping ◀─────┴──────┘
       ▼            ▼                  ▼
     ended        ended              ended

*placing*: its node is making room; *starting*: a process was asked for; *setup*: the process is there and makes
the actor; *ready*: it takes messages; *restarting*: its process ended, and its node starts another; *stopping*:
its end was asked for. Only what is *ended* has left the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb, fit

from .ends import detach, fail, refuse
from .kinds import parse_shape
from .peers import Client, Holding, Node, Peer, Worker
from .placement import fits, halt, make_room, place, start, surrender
from .pools import Pool
from .reading import Reader
from .state import DEFAULT_SHAPE, Mesh
from .tasks import HORIZON

__all__ = [
    "LIFE",
    "ActorEntry",
    "adopt",
    "become_restarting",
    "end_actor",
    "name_taken",
    "on_setup",
    "on_spawn",
    "on_stop",
    "place_queued",
    "stop_actor",
]

LIFE: Final[dict[str, tuple[str, ...]]] = {
    "placing": ("starting", "ended"),
    "starting": ("setup", "ready", "restarting", "stopping", "ended"),
    "setup": ("ready", "restarting", "stopping", "ended"),
    "ready": ("restarting", "stopping", "ended"),
    "restarting": ("setup", "restarting", "stopping", "ended"),
    "stopping": ("ended",),
    "ended": (),
}
"""The states of an actor, and which may follow each. One in someone else's process is ready as soon as it is there."""

_MAILBOX = 1024
_CONCURRENCY = 1024
_ENVIRONMENT = 64 * 1024
_STOP_AFTER = 5.0


class ActorEntry:
    """One actor. :data:`LIFE` has its states.

    ``making`` says how to make it anew, with ``code``, ``body`` and ``blobs``, as its spawner sent them;
    ``order`` is how its node starts the process, ``holding`` what that holds. ``setup`` is the attempt at making
    it that is under way. ``waiters`` are the requests (peer and number) to answer when it is ready, ``enders``
    those to answer when it is gone.
    """

    def __init__(self, name: str, pool: Pool, owner: Client | None, named: bool) -> None:
        self.name = name
        self.pool = pool
        self.owner = owner
        self.named = named
        self.state = "placing"
        self.seq = 0
        self.concurrency = 1
        self.making: dict[str, Any] = {}
        self.order: dict[str, Any] = {}
        self.code: bytes | None = None
        self.body: bytes | None = None
        self.blobs: Sequence[Blob] = ()
        self.worker: Worker | None = None
        self.node: Node | None = None
        self.holding: Holding | None = None
        self.setup = 0
        self.restarts = 0
        self.waiters: list[tuple[Peer, int]] = []
        self.enders: list[tuple[Peer, int]] = []

    def become(self, state: str) -> None:
        """Enter ``state``; raises ``AssertionError`` where the table does not have that step."""
        assert state in LIFE[self.state], f"actor {self.name} is {self.state} and cannot become {state}"
        self.state = state


# ---------------------------------------------------------------------- spawning


def on_spawn(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Start an actor on a node that has room; the RESULT says that it is ready and carries nothing.

    The code of its class, where it is shipped, was declared by a DEFINE of the same digest. The same request
    again is the same actor.
    """
    actor = _parse_spawn(mesh, client, seq, head)
    known = mesh.actors.get(actor.name)
    if known is not None:
        _spawned_again(client, seq, known)
        return
    if not any(fits(node, actor.pool.shape) for node in mesh.nodes.values()):
        refuse(client, seq, "CapacityExceeded", _no_place(mesh, actor))
        return
    actor.body, actor.blobs = body, blobs
    actor.waiters.append((client, seq))
    mesh.actors[actor.name] = actor
    if not _start(mesh, actor):
        _queue(mesh, actor)


def _parse_spawn(mesh: Mesh, client: Client, seq: int, head: Any) -> ActorEntry:
    """Return the actor that a SPAWN asks for; raises :class:`ProtocolError` for a wrong field."""
    read = Reader(head, f"SPAWN {seq}", mesh.limits)
    cls, digest = read.text("cls"), read.binary("code")
    if (cls is None) == (digest is None):
        raise ProtocolError(f"SPAWN {seq} names its class by either 'cls' or 'code'")
    if digest is not None and digest not in client.codes:
        raise ProtocolError(f"SPAWN {seq} names code {digest.hex()}, which {client} has not sent")
    name, anonymous = read.text("name"), read.flag("anonymous")
    named = name is not None and not anonymous
    name = name or f"actor-{client.session.hex()[:6]}-{seq}"
    pool = Pool(parse_shape(read), f"actor {name}", mesh.settings.guard, for_actor=True)
    actor = ActorEntry(name, pool, client, named)
    actor.seq = seq
    actor.code = client.codes[digest] if digest is not None else None
    actor.concurrency = read.integer("concurrency", 1, 1, _CONCURRENCY)
    making = {"cls": cls, "code": digest, "name": name}
    actor.making = {key: value for key, value in making.items() if value is not None}
    if "concurrency" in read:
        actor.making["concurrency"] = actor.concurrency
    actor.order = {
        "name": name,
        "role": "actor",
        "credits": read.integer("mailbox", _MAILBOX, 1, 1 << 20),
        "env": _environment(read),
        "restart": _restart(read, mesh),
    }
    return actor


def _environment(read: Reader) -> dict[Any, Any]:
    """Return what is added to the process's environment; what its entries may be is for the node to say."""
    env = read.get("env") or {}
    if not isinstance(env, dict) or len(msgpack.packb(env)) > _ENVIRONMENT:
        raise read.wrong("env", f"a map of at most {_ENVIRONMENT} bytes")
    return env


def _restart(read: Reader, mesh: Mesh) -> dict[str, float] | None:
    """Return how often and how fast a node may restart the actor, ``None`` for never."""
    if "restart" not in read:
        return None
    inner = Reader(read.get("restart"), "SPAWN's 'restart'", mesh.limits)
    return {key: inner.number(key, 0, 0, 1e9) for key in ("max", "window", "base", "cap") if key in inner}


def _spawned_again(client: Client, seq: int, known: ActorEntry) -> None:
    """Answer a SPAWN whose name is taken: by what the same request made before, or by another actor."""
    if known.owner is not client or known.seq != seq:
        text = f"an actor named {known.name!r} is {known.state}; stop it first, or pick another name"
        refuse(client, seq, "AlreadyExists", text)
    elif (client, seq) not in known.waiters:
        client.put([Verb.RESULT, seq, None, None, 0])


def _no_place(mesh: Mesh, actor: ActorEntry) -> str:
    if not mesh.nodes:
        return f"actor {actor.name!r} has no place: no node is up; start one with `omnibus node`"
    has = "; ".join(_what_is_free(node) for node in mesh.nodes.values())
    return f"actor {actor.name!r} asks for {actor.pool.shape}, and no node has that free ({has})"


def _what_is_free(node: Node) -> str:
    gpus = sum(node.free_gpus.values())
    state = "" if node.route is not None else ", its link is lost"
    return f"{node.name}: cpus={node.cpus:g} gpus={gpus:g} of {len(node.gpus)} memory={node.free_memory}{state}"


def _start(mesh: Mesh, actor: ActorEntry) -> bool:
    """Have a node with room start the actor's process; false where none has."""
    placed = place(mesh, actor.pool.shape)
    if placed is None:
        return False
    actor.node, devices = placed
    actor.become("starting")
    actor.holding = start(mesh, actor.node, actor.pool, devices, dict(actor.order))
    return True


def _queue(mesh: Mesh, actor: ActorEntry) -> None:
    """Let the actor wait for a process that ends to make room for it; where none can, say that there is no place."""
    shape = actor.pool.shape
    if any(fits(node, shape) and make_room(mesh, node, shape) for node in mesh.nodes.values()):
        mesh.queued_actors.append(actor)
    else:
        end_actor(mesh, actor, "CapacityExceeded", {"message": _no_place(mesh, actor), "state": "refused"})


def place_queued(mesh: Mesh) -> None:
    """Try the actors that wait for room again: a process has ended, or a node has come."""
    waiting, mesh.queued_actors = mesh.queued_actors, []
    for actor in waiting:
        if not _start(mesh, actor):
            _queue(mesh, actor)


# ---------------------------------------------------------------------- the process


def name_taken(mesh: Mesh, name: str) -> str | None:
    """Return why an actor in someone else's process cannot have ``name``; ``None`` where it can."""
    actor = mesh.actors.get(name)
    if actor is None:
        return None
    return f"an actor named {name!r} is {actor.state}; two live holders of one name are not allowed"


def adopt(mesh: Mesh, worker: Worker) -> None:
    """Take in an actor's process that said HELLO: one that a node started, or someone else's process."""
    actor = mesh.actors.get(worker.name)
    if worker.node is None:
        assert actor is None, "the name was found to be free when it said HELLO"
        pool = Pool(DEFAULT_SHAPE, f"actor {worker.name}", mesh.settings.guard, for_actor=True)
        actor = mesh.actors[worker.name] = ActorEntry(worker.name, pool, None, named=True)
        actor.become("starting")
        actor.worker, worker.actor = worker, actor
        _present(mesh, actor)
    elif actor is None or actor.node is not worker.node or "setup" not in LIFE[actor.state]:
        # Nobody knows it (any more), or it is to stop, or another process has its name.
        halt(mesh, worker)
    else:
        actor.become("setup")
        actor.worker, worker.actor, worker.holding = worker, actor, actor.holding
        worker.horizon = HORIZON * actor.concurrency
        if actor.holding is not None:
            actor.holding.session = worker.session
        actor.setup = mesh.attempt()
        code, beside = fit(actor.code, ())
        worker.put([Verb.DEFINE, 0, actor.making, code, len(beside)], beside)
        worker.put([Verb.SPAWN, actor.setup, actor.making, actor.body, len(actor.blobs)], actor.blobs)


def on_setup(mesh: Mesh, worker: Worker, aid: int, error: dict[str, Any] | None) -> bool:
    """Take the answer to an actor's set-up; false where ``aid`` is none."""
    actor = worker.actor
    if actor is None or not aid or actor.setup != aid:
        return False
    actor.setup = 0
    if actor.state == "setup" and error is None:
        _present(mesh, actor)
    elif actor.state == "setup" and error is not None:
        end_actor(mesh, actor, "SetupFailed", error)
        halt(mesh, worker)
    return True


def _present(mesh: Mesh, actor: ActorEntry) -> None:
    """Let the actor take messages, and answer those who waited for it."""
    assert actor.worker is not None
    actor.become("ready")
    actor.pool.join(actor.worker)
    mesh.stir(actor.pool)
    for peer, seq in actor.waiters:
        peer.put([Verb.RESULT, seq, None, None, 0])
    actor.waiters.clear()


def become_restarting(mesh: Mesh, actor: ActorEntry) -> None:
    """Keep the queue of an actor whose process ended, for its node starts another."""
    actor.become("restarting")
    actor.restarts += 1
    actor.worker = None
    actor.setup = 0


# ---------------------------------------------------------------------- the end


def end_actor(mesh: Mesh, actor: ActorEntry, error: str, head: dict[str, Any]) -> None:
    """Take an actor out of the mesh: what waits for it fails with ``error``, those who asked for its end are answered.

    ``head`` carries the message, and whatever else the answer to its spawner says.
    """
    actor.become("ended")
    del mesh.actors[actor.name]
    if actor in mesh.queued_actors:
        mesh.queued_actors.remove(actor)
    message = f"actor {actor.name}: {head.get('message', error)}"
    worker = actor.worker
    if worker is not None and not worker.dead:  # the results of a dead one may be under way
        actor.pool.retire(worker)
        for attempt in list(worker.attempts.values()):
            detach(worker, attempt)
            fail(mesh, attempt, "failed", error, message)
    while (task := actor.pool.queue.pop()) is not None:
        task.kind.expiring.pop(task.seq, None)
        task.kind.books.queued -= 1
        fail(mesh, task, "failed", error, message)
    for peer, seq in actor.waiters:
        peer.put([Verb.FAILED, seq, {"state": "failed", **head, "error": error}, None, 0])
    for peer, seq in actor.enders:
        peer.put([Verb.RESULT, seq, None, None, 0])


def on_stop(mesh: Mesh, client: Client, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Stop an actor for good; the RESULT says that it is gone. A number of 0 wants no answer."""
    read = Reader(head, f"STOP {seq}", mesh.limits)
    name, grace = read.text("actor"), read.number("grace", _STOP_AFTER, 0, 1e9)
    actor = mesh.actors.get(name or "")
    if actor is None:
        if seq:
            refuse(client, seq, "NotFound", f"no actor is named {name!r}: it was never there, or it has stopped")
        return
    if seq and (client, seq) not in actor.enders:
        actor.enders.append((client, seq))
    stop_actor(mesh, actor, grace)


def stop_actor(mesh: Mesh, actor: ActorEntry, grace: float = _STOP_AFTER) -> None:
    """Ask an actor to stop; its node ends the process after ``grace`` seconds, and that ends the actor."""
    if actor.state == "stopping":
        return
    stopped = {"message": "it was stopped"}
    if actor.state == "placing":
        end_actor(mesh, actor, "NotFound", stopped)
        return
    between = actor.state == "restarting"
    actor.become("stopping")
    if actor.worker is not None:
        actor.worker.put([Verb.STOP, 0, None, None, 0])
    if actor.node is None:
        return
    order: dict[str, Any] = {"name": actor.name, "grace": grace}
    if actor.worker is not None:
        order["session"] = actor.worker.session
    actor.node.put([Verb.HALT, mesh.command(), order, None, 0])
    if between:  # there is no process whose end would tell
        _end_stopped(mesh, actor)
    else:
        mesh.at(mesh.now + grace + mesh.settings.grace, lambda now: _end_stopped(mesh, actor))


def _end_stopped(mesh: Mesh, actor: ActorEntry) -> None:
    """End an actor that was to stop, whatever its node says; it may have said nothing."""
    if mesh.actors.get(actor.name) is not actor:
        return
    end_actor(mesh, actor, "NotFound", {"message": "it was stopped"})
    if actor.node is not None and actor.holding is not None:
        surrender(actor.node, actor.holding)
