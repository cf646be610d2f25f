"""The rate of tasks with a million queued, against that with a thousand queued.

Two meshes, each with one worker and a client in an interpreter of its own, run the same closed loop: take the oldest
result, submit one more. Between the rounds a gate keeps their workers, so that the queue keeps its depth.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import omnibus
from benchmarks.common import Result, interleave, run_one, versus
from benchmarks.gates import Gate, unfinished
from benchmarks.processes import alone, eventually, script, serve
from benchmarks.work import noop

__all__ = ["measure"]

SHALLOW = 1_000


class Loop:
    """A client that keeps ``depth`` tasks queued."""

    def __init__(self, bus: omnibus.Bus, folder: Path, depth: int) -> None:
        self._bus = bus
        self._folder = folder
        self._gate = Gate(bus, folder)
        self._futures: deque[omnibus.Future[Any]] = deque(bus.submit(noop, number) for number in range(depth))

    def rate(self, count: str) -> float:
        """Return how many tasks a second end, over ``count`` of them."""
        self._gate.open()
        self._turn(int(count) // 10)
        began = time.perf_counter()
        self._turn(int(count))
        took = time.perf_counter() - began
        self._gate = Gate(self._bus, self._folder)
        return int(count) / took

    def _turn(self, count: int) -> None:
        futures, submit = self._futures, self._bus.submit
        for number in range(count):
            futures.popleft().result()
            futures.append(submit(noop, number))

    def depth(self, _: str) -> int:
        """Wait until the broker holds all tasks, and return how many it holds, the gate not among them."""
        full = len(self._futures)
        with omnibus.connect(self._bus.address) as other:  # this one's window may be full
            return int(eventually(lambda: (held := unfinished(other) - 1) >= full and held, f"{full} tasks are queued"))

    def release(self) -> None:
        """Let the worker go."""
        self._gate.release()


def client(depth: int) -> None:
    """Be one of the two clients."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as folder, omnibus.connect(workers=1) as bus:
        loop = Loop(bus, Path(folder), depth)
        try:
            serve(rate=loop.rate, depth=loop.depth)
        finally:
            loop.release()


def measure(quick: bool) -> list[Result]:
    """Return the rate with many tasks queued as a multiple of that with few."""
    depth, count, rounds = (20_000, 5_000, 3) if quick else (1_000_000, 100_000, 7)
    run_client = ("-m", "benchmarks.backlog", "--client")
    with alone(), script(*run_client, str(depth)) as deep, script(*run_client, str(SHALLOW)) as shallow:
        queued = deep.ask("depth")
        pairs = interleave(rounds, lambda: deep.ask(f"rate {count}"), lambda: shallow.ask(f"rate {count}"))
    claim = f"rate with {depth:,} tasks queued"
    against = f"rate with {SHALLOW:,} queued"
    return [
        versus(
            "backlog",
            claim,
            pairs,
            against=against,
            measured_in="tasks/s",
            floor=0.9,
            aim=1.0,
            queued=queued,
            tasks=count,
        )
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(int(sys.argv[2]))
    else:
        sys.exit(run_one("backlog", measure))
