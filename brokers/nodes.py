"""What nodes send: the lives and deaths of their children, and what became of a recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob

from .actors import ActorEntry, end_actor
from .clients import on_publish
from .dispatch import wake
from .peers import Node, Worker
from .placement import surrender
from .state import Mesh
from .workers import drop_worker, end_running, take_back

__all__ = ["NODE_HANDLERS", "drop_node", "on_child"]


def on_child(mesh: Mesh, node: Node, command: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Learn that a child started or exited."""
    event = head.get("event") if isinstance(head, dict) else None
    if event == "exited":
        on_exited(mesh, node, command, head)
    elif event != "started":
        raise ProtocolError(f"CHILD from {node}: 'event' is started or exited, not {event!r:.80}")


def on_exited(mesh: Mesh, node: Node, command: int, head: dict[str, Any]) -> None:
    """Deal with what a dead child held: its work, its place, its actor."""
    pending = node.pending.pop(command, None) if command else None
    if pending is not None:
        pending[0].starting -= 1
        surrender(node, pending[0].shape, pending[1])
    reason = str(head.get("reason") or "it exited")
    error = "OutOfMemory" if head.get("oom") else "WorkerDied"
    worker = mesh.sessions.get(head.get("session", b""))
    if isinstance(worker, Worker):
        bury(mesh, worker, head, error, reason)
    actor = mesh.actors.get(str(head.get("name")))
    if actor is not None and actor.node is node and (actor.worker is None or actor.worker is worker):
        _bury_actor(mesh, actor, head, error, reason)
    wake(mesh, node.starved)


def bury(mesh: Mesh, worker: Worker, head: dict[str, Any], error: str, reason: str) -> None:
    """End a worker's session; what it had not begun goes back for free."""
    if head.get("cause"):
        end_running(mesh, worker, int(head.get("aborted") or 0), head["cause"], reason)
    drop_worker(mesh, worker, error, reason, last=int(head.get("last") or 0), running=int(head.get("begun") or 0))
    node = worker.node
    if node is not None:
        node.workers.pop(worker.session, None)
        if worker.pool is not None and worker.actor is None:
            surrender(node, worker.pool.shape, worker.devices)
    mesh.drop(worker)


def _bury_actor(mesh: Mesh, actor: ActorEntry, head: dict[str, Any], error: str, reason: str) -> None:
    """Keep the queue of an actor that its node restarts; end one that is gone for good."""
    if actor.state == "stopping":
        end_actor(mesh, actor, "NotFound", {"message": "it was stopped"})
    elif head.get("restart_in") is None:
        end_actor(mesh, actor, error if actor.state == "ready" else "SetupFailed", {"message": reason})
    else:
        actor.state = "restarting"
        actor.restarts += 1
        actor.worker = None


def on_recalled(mesh: Mesh, node: Node, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Queue an attempt again that will never begin (1); one that has begun (0) goes on."""
    if head == 1:
        for worker in list(node.workers.values()):
            take_back(mesh, worker, aid)


def drop_node(mesh: Mesh, node: Node, reason: str) -> None:
    """Give up a node: its children are gone with it, and nobody knows what they had begun."""
    for worker in list(node.workers.values()):
        drop_worker(mesh, worker, "WorkerDied", f"its node {node.name} is gone: {reason}", last=None, running=0)
        mesh.drop(worker)
    node.workers.clear()
    for pool, _ in node.pending.values():
        pool.starting -= 1
    node.pending.clear()
    mesh.nodes.pop(node.session, None)
    for actor in [actor for actor in mesh.actors.values() if actor.node is node]:
        end_actor(mesh, actor, "WorkerDied", {"message": f"its node {node.name} is gone: {reason}"})
    mesh.drop(node)


NODE_HANDLERS = {65: on_child, 66: on_recalled, 21: on_publish}
