"""What nodes send: the lives and deaths of their children, and what became of a recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Verb

from .actors import ActorEntry, become_restarting, end_actor, place_queued
from .losses import bury, end_aborted
from .peers import Holding, Node, Worker
from .placement import rest, surrender
from .publishing import on_publish
from .reading import Reader
from .sharing import wake
from .state import Mesh
from .workers import take_back

__all__ = ["NODE_HANDLERS", "drop_node", "on_child", "on_recalled", "room_came"]

_NUMBER = (1 << 64) - 1


class _Exit:
    """How a child ended, as its node says, checked field by field."""

    def __init__(self, read: Reader) -> None:
        self.session = read.binary("session", 8, 32) or b""
        self.name = read.text("name")
        self.actor = read.text("role") == "actor"
        self.begun = read.integer("begun", 0, 0, _NUMBER)
        self.last = read.integer("last", 0, 0, _NUMBER)
        self.aborted = read.integer("aborted", 0, 0, _NUMBER)
        self.cause = read.text("cause")
        self.error = "OutOfMemory" if read.flag("oom") else "WorkerDied"
        self.reason = read.remark("reason", "it exited")
        self.restarts = read.seconds("restart_in") is not None


def on_child(mesh: Mesh, node: Node, command: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn that a child started (which its HELLO says better) or exited."""
    read = Reader(head, f"CHILD from {node}", mesh.limits)
    event = read.get("event")
    if event == "exited":
        _on_exited(mesh, node, command, _Exit(read))
    elif event != "started":
        raise read.wrong("event", "'started' or 'exited'")


def on_refused(mesh: Mesh, node: Node, command: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn that the node did not take an order: a START that it refuses has no child that could exit."""
    holding = node.holdings.get(command)
    if holding is None or holding.joined:
        return
    why = Reader(head, f"ERROR from {node}", mesh.limits).remark("message", "it did not say why")
    if not holding.pool.for_actor:
        rest(mesh, holding.pool)
    for actor in [actor for actor in mesh.actors.values() if actor.holding is holding]:
        end_actor(mesh, actor, "SetupFailed", {"message": f"node {node.name} did not start it: {why}"})
    surrender(node, holding)
    room_came(mesh, node)


def _on_exited(mesh: Mesh, node: Node, command: int, gone: _Exit) -> None:
    """Deal with what a dead child held: its work, its place, its actor."""
    holding = node.holdings.get(command) or _holding_of(node, gone.session)
    if not gone.session or gone.session not in mesh.dead:  # else that was said before, or the child was given up before
        _bury_child(mesh, node, gone, holding)
    if holding is not None and not gone.restarts:
        if not holding.joined and not holding.pool.for_actor:
            rest(mesh, holding.pool)
        surrender(node, holding)
    room_came(mesh, node)


def _holding_of(node: Node, session: bytes) -> Holding | None:
    return next((holding for holding in node.holdings.values() if session and holding.session == session), None)


def _bury_child(mesh: Mesh, node: Node, gone: _Exit, holding: Holding | None) -> None:
    """End the child's session, and its actor unless that is restarted."""
    worker = mesh.sessions.get(gone.session)
    if not isinstance(worker, Worker) or worker.hello.node != node.session:
        worker = None
    if gone.session:
        mesh.mark_dead(gone.session, gone.reason)
    if worker is not None:
        if gone.cause is not None:
            end_aborted(mesh, worker, gone.aborted, gone.cause, gone.reason)
        bury(mesh, worker, gone.error, gone.reason, last=gone.last, begun=gone.begun)
    if gone.actor or (holding is not None and holding.pool.for_actor):
        actor = mesh.actors.get(gone.name or "")
        if actor is not None and actor.node is node and actor.worker in (None, worker):
            _bury_actor(mesh, actor, gone)
    elif holding is None:
        _count_coming(node, joined=worker is not None, restarts=gone.restarts)


def _count_coming(node: Node, *, joined: bool, restarts: bool) -> None:
    """Expect again a worker that its node started, and starts again, by itself; or do not expect it any more."""
    if joined and restarts:
        node.coming += 1
    elif not joined and not restarts and node.coming:
        node.coming -= 1


def _bury_actor(mesh: Mesh, actor: ActorEntry, gone: _Exit) -> None:
    """Keep the queue of an actor that its node restarts; end one that is gone for good."""
    if actor.state == "stopping":
        end_actor(mesh, actor, "NotFound", {"message": "it was stopped"})
    elif not gone.restarts:
        error = gone.error if actor.state in ("ready", "restarting") else "SetupFailed"
        end_actor(mesh, actor, error, {"message": gone.reason})
    else:
        become_restarting(mesh, actor)


def room_came(mesh: Mesh, node: Node) -> None:
    """Have those try again who wait for room: something has ended on ``node``, or it has come."""
    place_queued(mesh)
    wake(mesh, node)
    mesh.stir_waiting()


def on_recalled(mesh: Mesh, node: Node, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Queue an attempt again that will never begin (1); one that has begun (0) goes on."""
    if head not in (0, 1):
        raise ProtocolError(f"RECALLED {aid} from {node}: its head is 1 (it will never begin) or 0 (it has begun)")
    if head == 1:
        for worker in node.workers.values():
            if aid in worker.attempts:
                take_back(mesh, worker, aid)
                return


def drop_node(mesh: Mesh, node: Node, reason: str, *, certain: bool) -> None:
    """Give up a node: its children are gone with it, and nobody knows what they had begun.

    Where that is not ``certain``, those that can still be reached are told to begin anew.
    """
    reason = f"its node {node.name} is gone: {reason}"
    mesh.nodes.pop(node.session, None)
    for worker in [worker for worker in mesh.every(Worker) if worker.hello.node == node.session]:
        route = worker.route
        bury(mesh, worker, "WorkerDied", reason)
        if route is not None and not certain:
            mesh.send_first(route, [Verb.ERROR, 0, {"error": "Unreachable", "message": reason, "again": True}, None, 0])
    for actor in [actor for actor in mesh.actors.values() if actor.node is node]:
        end_actor(mesh, actor, "WorkerDied", {"message": reason})
    for holding in list(node.holdings.values()):
        surrender(node, holding)
    node.wants.clear()
    mesh.drop(node)
    place_queued(mesh)
    mesh.stir_waiting()


NODE_HANDLERS = {
    int(Verb.CHILD): on_child,
    int(Verb.RECALLED): on_recalled,
    int(Verb.PUBLISH): on_publish,
    int(Verb.ERROR): on_refused,
}
