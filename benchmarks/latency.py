"""One round trip at a time, p50: an ``ask`` to an actor, and a task; against the raw chain."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import omnibus
from benchmarks.common import Result, interleave, p, run_one, versus
from benchmarks.processes import alone
from benchmarks.rawchain import RawChain
from benchmarks.work import Echo, noop

__all__ = ["measure", "times"]

Ask = Callable[[int], "omnibus.Future[Any]"]
MICRO = 1e6


def times(ask: Ask, count: int) -> list[float]:
    """Return the sorted times, in microseconds, of ``count`` round trips, one at a time."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        result = ask(number).result()
        took.append((time.perf_counter() - began) * MICRO)
        if result != number:
            raise AssertionError("a result is not its own request's")
    return sorted(took)


def measure(quick: bool) -> list[Result]:
    """Return the medians of both round trips as multiples of the raw chain's, their 99th percentiles beside."""
    count, rounds = (200, 3) if quick else (1_000, 9)
    with alone(), RawChain() as raw, omnibus.connect(workers=1) as bus:
        actor = bus.spawn(Echo)
        asks: list[Ask] = [lambda number: actor.ask("echo", number), lambda number: bus.submit(noop, number)]
        for ask in asks:
            times(ask, count // 2)
        taken = interleave(
            rounds,
            lambda: times(asks[0], count),
            lambda: [each * MICRO for each in raw.latency(count)],
            lambda: times(asks[1], count),
        )
    results = []
    for column, (name, floor, aim) in {0: ("ask of an actor", 1.6, 1.2), 2: ("task", None, None)}.items():
        pairs = [(p(row[column], 0.5), p(row[1], 0.5)) for row in taken]
        tails = versus(
            "latency", "", [(p(row[column], 0.99), p(row[1], 0.99)) for row in taken], against="", measured_in="µs"
        )
        claim = f"one {name} at a time, p50"
        against = "raw pyzmq chain, one message at a time"
        results.append(
            versus(
                "latency",
                claim,
                pairs,
                against=against,
                measured_in="µs",
                better="less",
                floor=floor,
                aim=aim,
                requests=count,
                p99={"ours": tails.ours, "reference": tails.reference, "ratio": tails.figure},
            )
        )
    return results


if __name__ == "__main__":
    sys.exit(run_one("latency", measure))
