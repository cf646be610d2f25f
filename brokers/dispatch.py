"""Dispatch: giving what waits to workers that have room.

It runs once for each turn of the broker's loop, over the pools that were stirred, so that whatever came in
together goes out together. The highest lane of all goes first; within a pool each worker is filled to its
horizon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnibus.protocol import Verb

from .catalog import teach
from .pools import Pool
from .sharing import claim, gives_way
from .tasks import HORIZON

if TYPE_CHECKING:
    from .peers import Worker
    from .state import Mesh
    from .tasks import Task

__all__ = ["dispatch"]

_RUN = int(Verb.RUN)


def dispatch(mesh: Mesh, now: float) -> list[Pool]:
    """Hand out all that can be handed out now, and return the pools that were looked at."""
    pools = mesh.stirred
    mesh.stirred = []
    if len(pools) > 1:
        pools.sort(key=_top, reverse=True)
    for pool in pools:
        pool.stirred = False
        _fill(mesh, pool, now)
    return pools


def _top(pool: Pool) -> float:
    top = pool.queue.top
    return float("-inf") if top is None else top


def _fill(mesh: Mesh, pool: Pool, now: float) -> None:
    """Fill the pool's workers in turn; each gets its fair part of the queue, up to its horizon."""
    free = pool.free
    queue = pool.queue
    sharers = len(free)
    while queue.depth and free:
        worker = free.popleft()
        worker.listed = False
        share = -(-queue.depth // sharers)
        sharers = sharers - 1 or len(free) + 1
        if worker.node is not None and worker.node.wants and gives_way(mesh, worker.node, worker):
            continue
        if worker.busy:
            if now - worker.moved > mesh.settings.stall and not pool.for_actor:
                worker.stalled = True  # its next sign of progress enlists it again
                continue
        elif not claim(mesh, worker):
            continue
        _load(mesh, worker, pool, share, now)
        pool.enlist(worker)


def _load(mesh: Mesh, worker: Worker, pool: Pool, share: int, now: float) -> None:
    """Give ``worker`` up to ``share`` tasks, until its horizon or its credits are reached."""
    horizon = worker.horizon
    pop = pool.queue.pop
    attempts = worker.attempts
    records = worker.records
    known = worker.known
    aid = mesh.aid
    backlog = worker.backlog
    share = min(share, worker.credits - len(attempts))
    if not attempts:
        worker.moved = now
    given = 0
    while given < share and backlog < horizon:
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
        if kind.number not in known:
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
        if kind.special:
            _note_times(worker, task)
    mesh.aid = aid
    worker.backlog = backlog
    if given:
        worker.stir()


def _note_times(worker: Worker, task: Task) -> None:
    """End the task's time to live, for it is queued no more; have its supervisor watch its running time.

    Without a supervisor, the worker keeps its own watch.
    """
    kind = task.kind
    if kind.ttl is not None:
        kind.expiring.pop(task.seq, None)
    if kind.timeout is not None and worker.node is not None:
        worker.node.put([Verb.WATCH, task.aid, {"session": worker.session, "timeout": kind.timeout}, None, 0])
