"""Lending: tasks that wait for other tasks do not hold up the pool.

While a task waits its worker's CPUs are lent to others; what was put behind it is recalled, and another worker may be
started. An actor goes on taking messages, for it may handle several at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .recall import recall
from .sharing import wake

if TYPE_CHECKING:
    from .peers import Worker
    from .state import Mesh

__all__ = ["lend"]


def lend(mesh: Mesh, worker: Worker, lent: bool) -> None:
    """Lend out the CPUs of a worker whose task waits, or take them back, which may over-book its node for a while."""
    node, pool = worker.node, worker.pool
    if worker.lent == lent or node is None or pool is None or not worker.attempts:
        return
    worker.lent = lent
    if not lent:
        node.free_cpus -= pool.shape.cpus
        pool.enlist(worker)
    else:
        node.free_cpus += pool.shape.cpus
        if not pool.for_actor:
            pool.unlist(worker)
            recall(worker)
        wake(mesh, node)
    mesh.stir(pool)
