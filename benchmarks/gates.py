"""A gate that keeps the only worker of a mesh busy, so that what is submitted meanwhile stays queued."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import omnibus
from benchmarks.work import gate

__all__ = ["Gate", "held", "unfinished"]


def unfinished(bus: omnibus.Bus) -> int:
    """Return how many tasks the broker holds: queued, or handed to a worker and not ended."""
    tasks = bus.status()["tasks"]
    return int(tasks["queued"] + tasks["running"])


class Gate:
    """Closed from its making on, until :meth:`open`. Its lane is above all others, so what waits goes on waiting."""

    def __init__(self, bus: omnibus.Bus, folder: Path) -> None:
        path = folder / f"gate-{os.urandom(4).hex()}"
        os.mkfifo(path)
        self._task = bus.options(priority=1_000).submit(gate, str(path))
        # Opening a FIFO for writing waits until somebody reads there, which is when the task has begun.
        self._fd = os.open(path, os.O_WRONLY)
        path.unlink()

    def open(self) -> None:
        """Let the worker go on, and wait until it does."""
        self.release()
        self._task.result()

    def release(self) -> None:
        """Let the worker go on; doing it twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


@contextmanager
def held(bus: omnibus.Bus) -> Iterator[Gate]:
    """Hold the worker of ``bus`` at a gate meanwhile."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as folder:
        barrier = Gate(bus, Path(folder))
        try:
            yield barrier
        finally:
            barrier.release()
