"""Tasks per second, each tracked by a future, with lanes, attempts, limits and ledger on; against the raw chain.

One client, one worker, the supervisor and its status page running: the mesh that ``omnibus.connect(workers=1)`` starts.
Every result comes back and is compared with what was sent.
"""

from __future__ import annotations

import sys
import time

import omnibus
from benchmarks.common import Result, interleave, run_one, versus
from benchmarks.processes import alone
from benchmarks.rawchain import RawChain
from benchmarks.work import noop

__all__ = ["measure", "rate"]


def rate(bus: omnibus.Bus, count: int) -> float:
    """Return how many tasks a second come back when ``count`` are submitted at once."""
    began = time.perf_counter()
    futures = [bus.submit(noop, number) for number in range(count)]
    results = [future.result() for future in futures]
    took = time.perf_counter() - began
    if results != list(range(count)):
        raise AssertionError("a result is not its own task's")
    return count / took


def measure(quick: bool) -> list[Result]:
    """Return the rate of tasks as a multiple of the raw chain's rate of messages."""
    count, messages, rounds = (5_000, 2_000, 3) if quick else (50_000, 20_000, 9)
    with alone(), RawChain() as raw, omnibus.connect(workers=1) as bus:
        rate(bus, count)
        raw.rate(messages // 4)
        pairs = interleave(rounds, lambda: rate(bus, count), lambda: raw.rate(messages))
    claim = "no-op tasks, each tracked by a future, one client, one worker"
    against = "raw pyzmq chain, one message a task"
    return [
        versus(
            "throughput",
            claim,
            pairs,
            against=against,
            measured_in="tasks/s",
            floor=2.5,
            aim=4.0,
            tasks=count,
            messages=messages,
        )
    ]


if __name__ == "__main__":
    sys.exit(run_one("throughput", measure))
