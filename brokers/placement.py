"""Placement: which node gets a new process, and when one is worth starting.

CPUs are held by a worker while it has work, so any number of idle processes may stand by; GPUs and memory are held by a
process for its life. A pool grows while work waits in it, no worker has room, and a node could run one more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnibus.protocol import Verb

from .dispatch import wake
from .kinds import Shape
from .peers import Node, Worker
from .pools import Pool

if TYPE_CHECKING:
    from .state import Mesh

__all__ = ["MOST_LENT", "fits", "free_devices", "grow", "lend", "place", "reserve", "surrender"]

MOST_LENT = 64
"""Workers that a node may have waiting inside tasks, beyond those that work."""


def fits(node: Node, shape: Shape) -> bool:
    """Return whether ``node``, all idle, could run ``shape``."""
    return (
        node.route is not None
        and shape.cpus <= node.cpus
        and shape.gpus <= len(node.gpus)
        and shape.memory <= node.memory
        and all(node.labels.get(key) == value for key, value in shape.labels)
    )


def free_devices(node: Node, gpus: float) -> tuple[str, ...] | None:
    """Return the devices that a process with ``gpus`` would get, or ``None``: whole free ones, or the fullest that has the share."""
    if not gpus:
        return ()
    if gpus < 1:
        shared = [(left, name) for name, left in node.free_gpus.items() if left >= gpus - 1e-9]
        return (min(shared)[1],) if shared else None
    whole = [name for name, left in node.free_gpus.items() if left >= 1 - 1e-9]
    return tuple(whole[: int(gpus)]) if len(whole) >= gpus else None


def place(mesh: Mesh, shape: Shape) -> tuple[Node, tuple[str, ...]] | None:
    """Return the node with most free CPUs that can start a process of ``shape`` now, and its devices."""
    for node in sorted(mesh.nodes.values(), key=lambda node: -node.free_cpus):
        if fits(node, shape) and shape.memory <= node.free_memory:
            devices = free_devices(node, shape.gpus)
            if devices is not None:
                return node, devices
    return None


def reserve(node: Node, shape: Shape, devices: tuple[str, ...]) -> None:
    """Book what a process holds for its life."""
    node.free_memory -= shape.memory
    for device in devices:
        node.free_gpus[device] -= min(shape.gpus, 1.0)


def surrender(node: Node, shape: Shape, devices: tuple[str, ...]) -> None:
    """Give back what :func:`reserve` booked."""
    node.free_memory += shape.memory
    for device in devices:
        node.free_gpus[device] = min(1.0, node.free_gpus[device] + min(shape.gpus, 1.0))


def grow(mesh: Mesh, pool: Pool) -> None:
    """Start workers for ``pool`` while more waits than is starting and a node has a place for one more."""
    while pool.queue.depth > pool.starting:
        placed = _room(mesh, pool)
        if placed is None:
            return
        node, devices = placed
        command = mesh.command()
        node.pending[command] = (pool, devices)
        reserve(node, pool.shape, devices)
        pool.starting += 1
        head = {"name": f"worker-x{command}", "role": "worker", "cpus": pool.shape.cpus, "devices": list(devices)}
        node.put([Verb.START, command, head | {"credits": 1024, "shape": list(pool.shape[:3])}, None, 0])


def _room(mesh: Mesh, pool: Pool) -> tuple[Node, tuple[str, ...]] | None:
    shape = pool.shape
    for node in mesh.nodes.values():
        if not fits(node, shape) or shape.memory > node.free_memory:
            continue
        if not _wants_more(node, pool):
            continue
        devices = free_devices(node, shape.gpus)
        if devices is not None:
            return node, devices
        _retire(mesh, node, pool)
    return None


def _wants_more(node: Node, pool: Pool) -> bool:
    """Return whether one more worker of ``pool`` would find CPUs on ``node``; those that wait inside tasks hold none."""
    mine = [worker for worker in pool.workers if worker.node is node]
    lent = sum(worker.lent for worker in mine)
    coming = sum(waiting is pool for waiting, _ in node.pending.values())
    base = int(node.info.get("workers") or 0) if pool.shape == Shape() else 0
    if not base:
        return lent <= MOST_LENT and (len(mine) - lent + coming + 1) * pool.shape.cpus <= node.cpus
    # A node keeps its base workers up by itself: one that is missing is on its way, and no more are wanted than these.
    own = sum(not worker.info.get("command") for worker in mine)
    return lent <= MOST_LENT and max(own, base) + len(mine) - own - lent + coming < base


def _retire(mesh: Mesh, node: Node, pool: Pool) -> None:
    """Stop an idle worker of another pool whose GPUs are wanted here; its exit stirs this pool again."""
    for worker in node.workers.values():
        if worker.devices and not worker.attempts and worker.actor is None and worker.open and worker.pool is not pool:
            assert worker.pool is not None
            worker.pool.leave(worker)
            node.starved.add(pool)
            node.put([Verb.HALT, mesh.command(), {"session": worker.session, "grace": mesh.settings.step}, None, 0])
            return


def lend(mesh: Mesh, worker: Worker, lent: bool) -> None:
    """Lend out the CPUs of a worker whose task waits for others, or take them back (for a while the node may be over-booked)."""
    node = worker.node
    if worker.lent == lent or node is None or worker.pool is None:
        return
    worker.lent = lent
    if worker.busy:
        node.free_cpus += worker.pool.shape.cpus if lent else -worker.pool.shape.cpus
    if lent:
        node.starved.add(worker.pool)
        wake(mesh, node.starved)
