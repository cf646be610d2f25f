"""The state of a mesh as a plain map, for ``status``: the shape that ``bus.status()`` promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .peers import Client, Worker

if TYPE_CHECKING:
    from .peers import Node
    from .state import Mesh

__all__ = ["report"]


def report(mesh: Mesh) -> dict[str, Any]:
    """Return broker, nodes, workers, actors, lanes, tasks and messages as msgpack can carry them."""
    return {
        "broker": {"epoch": mesh.epoch.hex(), "uptime": mesh.now - mesh.started, **mesh.about},
        "nodes": [_node(node) for node in mesh.nodes.values()],
        "workers": [_worker(worker) for worker in mesh.every(Worker) if worker.actor is None],
        "actors": [_actor(name, mesh) for name in mesh.actors],
        "clients": [{"name": client.name, "unfinished": len(client.tasks)} for client in mesh.every(Client)],
        "lanes": _lanes(mesh),
        "waited": _waited(mesh),
        "tasks": {**mesh.ledger.as_dict(), "balance": mesh.ledger.balance()},
        "messages": {**mesh.messages.as_dict(), "balance": mesh.messages.balance()},
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "host": node.hello.host,
        "pid": node.hello.pid,
        "cpus": node.cpus,
        "free_cpus": node.free_cpus,
        "gpus": node.free_gpus,
        "memory": node.memory,
        "labels": node.labels,
        "state": "up" if node.route is not None else "lost",
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "name": worker.name,
        "pid": worker.hello.pid,
        "host": worker.hello.host,
        "state": _state(worker),
        "running": len(worker.attempts),
        "devices": list(worker.hello.devices),
        "restarts": worker.hello.incarnation,
    }


def _state(worker: Worker) -> str:
    if worker.route is None:
        return "lost"
    if worker.closing:
        return "closing"
    return "lent" if worker.lent else "busy" if worker.attempts else "idle"


def _actor(name: str, mesh: Mesh) -> dict[str, Any]:
    actor = mesh.actors[name]
    hello = actor.worker.hello if actor.worker is not None else None
    return {
        "name": name,
        "pid": hello.pid if hello is not None else None,
        "host": hello.host if hello is not None else None,
        "state": actor.state,
        "running": len(actor.worker.attempts) if actor.worker is not None else 0,
        "queued": actor.pool.queue.depth,
        "restarts": actor.restarts,
    }


def _lanes(mesh: Mesh) -> dict[int, int]:
    total: dict[int, int] = {}
    for pool in mesh.pools.values():
        for priority, depth in pool.queue.depths().items():
            total[priority] = total.get(priority, 0) + depth
    return dict(sorted(total.items(), reverse=True))


def _waited(mesh: Mesh) -> dict[int, dict[str, float]]:
    return {
        priority: {"dispatched": lane.dispatched, "waited": lane.waited, "longest": lane.longest}
        for priority, lane in sorted(mesh.lanes.items(), reverse=True)
    }
