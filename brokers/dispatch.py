"""Dispatch: giving what waits to workers that have room.

It runs once for each turn of the broker's loop, over the pools that were stirred, so that whatever came in together goes
out together. The highest lane of all goes first; within a pool each worker is filled to its horizon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnibus.protocol import Verb, fit

from .pools import HORIZON, Pool

if TYPE_CHECKING:
    from .kinds import Kind
    from .peers import Worker
    from .state import Mesh

__all__ = ["dispatch", "release", "teach"]

_RUN = int(Verb.RUN)


def dispatch(mesh: Mesh, now: float) -> None:
    """Hand out all that can be handed out now."""
    if not mesh.stirred:
        return
    pools = mesh.stirred
    mesh.stirred = []
    if len(pools) > 1:
        pools.sort(key=_top, reverse=True)
    for pool in pools:
        pool.stirred = False
        _fill(mesh, pool, now)


def _top(pool: Pool) -> float:
    top = pool.queue.top
    return float("-inf") if top is None else top


def _fill(mesh: Mesh, pool: Pool, now: float) -> None:
    """Fill the pool's workers in turn; each gets its fair part of the queue, up to its horizon.

    Those that have no room now count too: what is left for them goes by its priority when they have.
    """
    free = pool.free
    queue = pool.queue
    while queue.depth and free:
        worker = free.popleft()
        worker.listed = False
        if not worker.busy and not claim(mesh, worker):
            continue
        _load(mesh, worker, pool, -(-queue.depth // len(pool.workers)), now)
        pool.enlist(worker)


def _load(mesh: Mesh, worker: Worker, pool: Pool, share: int, now: float) -> None:
    """Give ``worker`` up to ``share`` tasks, until its horizon or its credits are reached."""
    pop = pool.queue.pop
    attempts = worker.attempts
    records = worker.records
    aid = mesh.aid
    backlog = worker.backlog
    share = min(share, worker.credits - len(attempts))
    if not attempts:
        worker.moved = now
    given = 0
    while given < share and backlog < HORIZON:
        task = pop()
        if task is None:
            break
        given += 1
        kind = task.kind
        cost = task.cost = HORIZON if kind.cost is None else kind.cost
        backlog += cost
        aid += 1
        task.aid = aid
        task.worker = worker
        task.attempt += 1
        attempts[aid] = task
        if kind.number not in worker.known:
            teach(worker, kind)
        blobs = task.blobs
        records.append([_RUN, aid, [kind.number, task.seq, task.attempt], task.body, len(blobs)])
        if blobs:
            worker.blobs.extend(blobs)
        books = kind.books
        books.queued -= 1
        books.running += 1
        wait = now - task.born
        stats = kind.stats
        stats.dispatched += 1
        stats.waited += wait
        if wait > stats.longest:
            stats.longest = wait
        if kind.timeout is not None:
            _watch(worker, aid, kind.timeout)
    mesh.aid = aid
    worker.backlog = backlog
    if given and not worker.dirty:
        worker.dirty = True
        worker.outlet.append(worker)


def _watch(worker: Worker, aid: int, timeout: float) -> None:
    """Tell the worker's supervisor how long the attempt may run; without one, the worker keeps its own watch."""
    if worker.node is not None:
        worker.node.put([Verb.WATCH, aid, {"session": worker.session, "timeout": timeout}, None, 0])


def teach(worker: Worker, kind: Kind) -> None:
    """Tell ``worker`` of a kind before its first task: what it runs, and the code if it has not got that yet."""
    worker.known.add(kind.number)
    code = None
    if kind.digest is not None and kind.digest not in worker.codes:
        worker.codes.add(kind.digest)
        code = kind.code
    body, blobs = fit(code, ())
    worker.put([Verb.DEFINE, kind.number, kind.wire, body, len(blobs)], blobs)


def claim(mesh: Mesh, worker: Worker) -> bool:
    """Take the worker's CPUs on its node for the time that it has work; false where they are not free now."""
    node = worker.node
    pool = worker.pool
    if node is None or pool is None:
        worker.busy = True
        return True
    if worker.lent or node.free_cpus < pool.shape.cpus:
        node.starved.add(pool)
        return False
    node.free_cpus -= pool.shape.cpus
    worker.busy = True
    return True


def release(mesh: Mesh, worker: Worker) -> None:
    """Give the CPUs of a worker that has nothing left back to its node, and stir the pools that wait for some."""
    worker.busy = False
    node = worker.node
    if node is None or worker.pool is None or worker.lent:
        return
    node.free_cpus += worker.pool.shape.cpus
    if node.starved:
        wake(mesh, node.starved)


def wake(mesh: Mesh, pools: set[Pool]) -> None:
    """Let every pool in ``pools`` try again: its idle workers are listed once more."""
    for pool in pools:
        for worker in pool.workers:
            pool.enlist(worker)
        mesh.stir(pool)
    pools.clear()
