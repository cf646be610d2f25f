"""Placement: which node gets a new process, when one is worth starting, and when one should end.

CPUs are held by a worker while it has work (see :mod:`omnibus.brokers.sharing`); GPUs and memory are held by a
process for its life. A pool grows while work waits in it, no worker has room, and a node could run one more.
Where a node could, were it not for what other pools' processes hold, the pool wants room there: idle ones are
ended for it, and busy ones give way in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnibus.protocol import Verb

from .peers import Holding
from .sharing import goes_first, want

if TYPE_CHECKING:
    from .kinds import Shape
    from .peers import Node, Worker
    from .pools import Pool
    from .state import Mesh

__all__ = ["disband", "fits", "free_devices", "grow", "halt", "make_room", "place", "rest", "start", "surrender"]

_MOST_LENT = 64
"""Workers of one pool that may wait inside tasks on a node, beyond those that work."""
_PER_CPU = 4
"""Processes of one pool on a node, for each of its CPUs, where they ask for small shares or for none."""
_MOST_REST = 30.0
_EPSILON = 1e-9


def fits(node: Node, shape: Shape) -> bool:
    """Return whether ``node``, all idle, could run ``shape``."""
    return (
        node.route is not None
        and shape.cpus <= node.cpus
        and shape.gpus <= len(node.gpus)
        and shape.memory <= node.memory
        and all(node.labels.get(key) == value for key, value in shape.labels)
    )


def free_devices(free: Mapping[str, float], gpus: float) -> tuple[str, ...] | None:
    """Return the devices that a process with ``gpus`` would get, or ``None``.

    They are whole free ones, or the fullest that has the share. ``free`` is what is left of each device.
    """
    if not gpus:
        return ()
    if gpus < 1:
        shared = [(left, name) for name, left in free.items() if left >= gpus - _EPSILON]
        return (min(shared)[1],) if shared else None
    whole = [name for name, left in free.items() if left >= 1 - _EPSILON]
    return tuple(whole[: int(gpus)]) if len(whole) >= gpus else None


def _room(node: Node, shape: Shape) -> tuple[str, ...] | None:
    """Return the devices for a process of ``shape`` that could begin on ``node`` now, ``None`` where it could not."""
    return free_devices(node.free_gpus, shape.gpus) if shape.memory <= node.free_memory else None


def place(mesh: Mesh, shape: Shape) -> tuple[Node, tuple[str, ...]] | None:
    """Return the node with most free CPUs that can start a process of ``shape`` now, and its devices."""
    for node in sorted(mesh.nodes.values(), key=lambda node: -node.free_cpus):
        if fits(node, shape):
            devices = _room(node, shape)
            if devices is not None:
                return node, devices
    return None


def start(mesh: Mesh, node: Node, pool: Pool, devices: tuple[str, ...], order: dict[str, Any]) -> Holding:
    """Have ``node`` start a process for ``pool`` as ``order`` says, and book what it holds for its life."""
    shape = pool.shape
    holding = Holding(mesh.command(), pool, devices)
    node.holdings[holding.command] = holding
    node.free_memory -= shape.memory
    for device in devices:
        node.free_gpus[device] -= min(shape.gpus, 1.0)
    order |= {"cpus": shape.cpus, "devices": list(devices), "shape": list(shape[:3])}
    node.put([Verb.START, holding.command, order, None, 0])
    return holding


def surrender(node: Node, holding: Holding) -> None:
    """Give back what a process held: it has ended."""
    del node.holdings[holding.command]
    node.free_memory += holding.shape.memory
    for device in holding.devices:
        node.free_gpus[device] += min(holding.shape.gpus, 1.0)
    if not holding.joined and not holding.pool.for_actor:
        holding.pool.starting -= 1


def grow(mesh: Mesh, pool: Pool) -> None:
    """Start workers for ``pool`` while more waits than is starting and a node has a place for one more."""
    if mesh.now < pool.rest:
        return
    while pool.queue.depth > pool.starting:
        placed = _find(mesh, pool)
        if placed is None:
            return
        node, devices = placed
        pool.starting += 1
        name = f"worker-x{mesh.last_command + 1 & 0xFFFFFFFF}"
        start(mesh, node, pool, devices, {"name": name, "role": "worker", "credits": 1024})
        node.wants.pop(pool, None)


def rest(mesh: Mesh, pool: Pool) -> None:
    """Learn that a process of ``pool`` ended before it came: ask for no more for a while, and longer each time."""
    pause = min(_MOST_REST, mesh.settings.rest * 2**pool.failures)
    pool.failures = min(pool.failures + 1, 16)
    pool.rest = mesh.now + pause
    mesh.at(pool.rest, lambda now: mesh.stir(pool))


def _find(mesh: Mesh, pool: Pool) -> tuple[Node, tuple[str, ...]] | None:
    """Return a node that has a place for one more process of ``pool``, and its devices; else ask for room."""
    shape = pool.shape
    could: list[Node] = []
    for node in mesh.nodes.values():
        if not fits(node, shape) or not _may_add(mesh, node, pool):
            continue
        if any(wish.room and goes_first(mesh, node, other, pool) for other, wish in node.wants.items()):
            could.append(node)
            continue
        devices = _room(node, shape)
        if devices is not None:
            return node, devices
        could.append(node)
    for node in could:
        want(mesh, node, pool, room=True)
        make_room(mesh, node, shape)
    return None


def _may_add(mesh: Mesh, node: Node, pool: Pool) -> bool:
    """Return whether the pool's processes on ``node`` are few enough for one more."""
    wish = node.wants.get(pool)
    if wish is not None and not wish.room:
        return False  # one stands by already, and waits for CPUs
    mine = [worker for worker in node.workers.values() if worker.pool is pool and not worker.dead]
    lent = sum(worker.lent for worker in mine)
    coming = sum(holding.pool is pool and not holding.joined for holding in node.holdings.values())
    cpus = node.cpus
    if pool is mesh.default and node.base:
        coming += node.coming
        cpus = node.base  # a node that keeps a base of workers up wants no more of them
    active = len(mine) - lent + coming
    most = max(1.0, cpus) * _PER_CPU
    return lent < _MOST_LENT and active < most and (active + 1) * pool.shape.cpus <= cpus + _EPSILON


def make_room(mesh: Mesh, node: Node, shape: Shape) -> bool:
    """End idle workers that hold what a process of ``shape`` lacks on ``node``; their exits stir those who wait.

    Returns whether that makes room enough; otherwise nothing is ended.
    """
    held = [worker for worker in node.workers.values() if worker.holding is not None and worker.holding.scarce]
    ending: list[Worker] = []
    memory, gpus = node.free_memory, dict(node.free_gpus)
    for worker in sorted(held, key=lambda worker: not worker.closing):
        if shape.memory <= memory and free_devices(gpus, shape.gpus) is not None:
            break
        holding = worker.holding
        assert holding is not None
        lacks_devices = free_devices(gpus, shape.gpus) is None
        if worker.attempts or holding.pool.for_actor:
            continue
        if (lacks_devices and holding.devices) or (shape.memory > memory and holding.shape.memory):
            ending.append(worker)
            memory += holding.shape.memory
            for device in holding.devices:
                gpus[device] += min(holding.shape.gpus, 1.0)
    if shape.memory > memory or free_devices(gpus, shape.gpus) is None:
        return False
    for worker in ending:
        if not worker.closing:
            halt(mesh, worker)
    return True


def halt(mesh: Mesh, worker: Worker) -> None:
    """Have a worker's node end it for good; it takes nothing any more."""
    assert worker.node is not None
    worker.closing = True
    if worker.pool is not None:
        worker.pool.retire(worker)
    order = {"name": worker.name, "session": worker.session, "grace": mesh.settings.step}
    worker.node.put([Verb.HALT, mesh.command(), order, None, 0])


def disband(mesh: Mesh, pool: Pool) -> None:
    """Let the processes of a pool that no kind uses any more stand by for a while, then end them; drop the pool."""
    if pool is mesh.default or mesh.drop_pool(pool):
        return
    mesh.at(mesh.now + mesh.settings.linger, lambda now: _end_idle(mesh, pool))


def _end_idle(mesh: Mesh, pool: Pool) -> None:
    if pool.users or mesh.drop_pool(pool):
        return
    busy = False
    for worker in list(pool.workers):
        if worker.attempts:
            busy = True
        elif worker.node is not None and not worker.closing:
            halt(mesh, worker)
    if busy or pool.starting:
        mesh.at(mesh.now + mesh.settings.linger, lambda now: _end_idle(mesh, pool))
