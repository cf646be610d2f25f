"""Recall: short work that was put behind long work goes to a worker that idles.

Work is given ahead by what it was reckoned to cost, and may turn out to take longer. A worker that has ended
nothing for a while, while another of its pool has nothing to do, is asked back what it has not begun: through its
supervisor, whose word holds although the worker itself is busy. There is a timer while such a case is possible,
and none otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnibus.protocol import Verb

if TYPE_CHECKING:
    from .peers import Worker
    from .pools import Pool
    from .state import Mesh

__all__ = ["recall", "watch"]


def watch(mesh: Mesh, pool: Pool) -> None:
    """Look, a while from now, whether work waits at a worker of ``pool`` that does not get on, while another idles.

    To be called where the pool's queue is empty and one of its workers has room.
    """
    if not pool.watched and len(pool.workers) > 1:
        pool.watched = True
        mesh.at(mesh.now + mesh.settings.stall, lambda now: _look(mesh, pool, now))


def _look(mesh: Mesh, pool: Pool, now: float) -> None:
    pool.watched = False
    if pool.queue.depth or not pool.idle():
        return  # the next worker that idles looks again
    later: list[float] = []
    for worker in pool.workers:
        if len(worker.attempts) < 2 or worker.stalled or worker.closing:
            continue
        due = worker.moved + mesh.settings.stall
        if due <= now:
            worker.stalled = True
            pool.unlist(worker)
            recall(worker)
        else:
            later.append(due)
    if later:
        pool.watched = True
        mesh.at(min(later), lambda at: _look(mesh, pool, at))


def recall(worker: Worker, *, first: int = 1) -> None:
    """Ask ``worker`` back what it has not begun: all but its ``first`` attempts, each once, and the last first."""
    asked = worker.recalled
    asked.intersection_update(worker.attempts)
    for aid in reversed(list(worker.attempts)[first:]):
        if aid in asked:
            continue
        asked.add(aid)
        if worker.node is not None:
            worker.node.put([Verb.RECALL, aid, {"session": worker.session}, None, 0])
        else:
            worker.put([Verb.REVOKE, aid, None, None, 0])
