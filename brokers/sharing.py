"""Sharing a node's CPUs between the pools whose workers it runs.

A worker holds its CPUs while it has work, so any number of idle processes may stand by. A pool whose worker finds
too few of them free *wants* some, and waits for its turn: the pools with the higher lane go first, and among
equals the one that has waited for longest. Those that are behind it leave it what it needs, and a worker that is
refilled all the time gives way once a wish is old enough: that is how a large shape gets its CPUs beside a flood
of small ones.

Actors never wait for CPUs: a message is not to stand behind a backlog of tasks. A node may be over-booked by
them, and by tasks that had lent their CPUs; then tasks wait until it no longer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .peers import Want

if TYPE_CHECKING:
    from .peers import Node, Worker
    from .pools import Pool
    from .state import Mesh

__all__ = ["claim", "gives_way", "goes_first", "release", "want"]

_EPSILON = 1e-9
"""CPUs are added and subtracted in fractions, which do not always add up to nothing."""


def claim(mesh: Mesh, worker: Worker) -> bool:
    """Take the worker's CPUs on its node for the time that it has work; false where it has to wait for them."""
    node, pool = worker.node, worker.pool
    assert pool is not None
    if node is not None:
        cpus = pool.shape.cpus
        if cpus and not pool.for_actor and not _may_take(mesh, node, pool, cpus):
            want(mesh, node, pool, room=False)
            return False
        if pool in node.wants and not node.wants[pool].room:
            del node.wants[pool]
        node.free_cpus -= cpus
    worker.busy = True
    return True


def _may_take(mesh: Mesh, node: Node, pool: Pool, cpus: float) -> bool:
    """Return whether the CPUs are free, also once those that go first have had theirs."""
    left = node.free_cpus + _EPSILON
    if left < cpus:
        return False
    return not any(
        left < cpus + other.shape.cpus
        for other, wish in node.wants.items()
        if not wish.room and goes_first(mesh, node, other, pool)
    )


def want(mesh: Mesh, node: Node, pool: Pool, *, room: bool) -> None:
    """Remember that ``pool`` waits for something of ``node``; the time that it has waited already is kept."""
    wish = node.wants.get(pool)
    if wish is None:
        node.wants[pool] = Want(mesh.now, room)
    else:
        wish.room = room


def goes_first(mesh: Mesh, node: Node, other: Pool, pool: Pool) -> bool:
    """Return whether ``other``, which wants something of ``node``, goes before ``pool``."""
    if other is pool or not other.queue.depth:
        return False
    top, mine = other.queue.top, pool.queue.top
    if mine is None or top is None or top != mine:
        return mine is None or (top is not None and top > mine)
    wish = node.wants.get(pool)
    return wish is None or node.wants[other].since < wish.since


def gives_way(mesh: Mesh, node: Node, worker: Worker) -> bool:
    """Return whether a worker should get no more, so that a pool that wants what it holds has its turn.

    It then waits for its own.
    """
    pool = worker.pool
    assert pool is not None
    if pool.for_actor:
        return False
    mine = pool.queue.top
    for other, wish in node.wants.items():
        top = other.queue.top
        if other is pool or top is None or not _holds(worker, wish):
            continue
        patience = mesh.settings.switch if wish.room else mesh.settings.turn
        if mine is None or top > mine or (top == mine and mesh.now - wish.since >= patience):
            if not worker.busy:
                want(mesh, node, pool, room=False)
            return True
    return False


def _holds(worker: Worker, wish: Want) -> bool:
    """Return whether ``worker`` holds what is wished for: CPUs while it works, other things for its life."""
    return worker.holding is not None and worker.holding.scarce if wish.room else worker.busy


def release(mesh: Mesh, worker: Worker) -> None:
    """Give the CPUs of a worker that has nothing left back to its node, and stir the pools that wait for some."""
    worker.busy = False
    node = worker.node
    if node is None:
        return
    assert worker.pool is not None
    if worker.lent:
        worker.lent = False
    else:
        node.free_cpus += worker.pool.shape.cpus
    if node.wants:
        wake(mesh, node)


def wake(mesh: Mesh, node: Node) -> None:
    """Let every pool that waits for something of ``node`` try again."""
    served = {worker.pool for worker in node.workers.values() if not worker.closing and worker.route is not None}
    for pool, wish in list(node.wants.items()):
        if not pool.queue.depth or not (wish.room or pool in served):
            del node.wants[pool]
        else:
            mesh.stir(pool)
    for worker in node.workers.values():
        if worker.pool in node.wants:
            worker.pool.enlist(worker)
