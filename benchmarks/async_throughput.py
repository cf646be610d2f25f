"""``AsyncBus`` against ``Bus``: the same tasks, the same mesh, in turn."""

from __future__ import annotations

import asyncio
import sys
import time

import omnibus
from benchmarks.common import Result, run_one, versus
from benchmarks.processes import alone
from benchmarks.throughput import rate
from benchmarks.work import noop

__all__ = ["measure"]


async def _async_rate(bus: omnibus.AsyncBus, count: int) -> float:
    began = time.perf_counter()
    futures = [bus.submit(noop, number) for number in range(count)]
    results = [await future for future in futures]
    took = time.perf_counter() - began
    if results != list(range(count)):
        raise AssertionError("a result is not its own task's")
    return count / took


async def _pairs(bus: omnibus.Bus, count: int, rounds: int) -> list[tuple[float, float]]:
    # While the one is measured the other has nothing to do: Bus blocks the loop that AsyncBus lives on.
    async with omnibus.aconnect(bus.address) as other:
        rate(bus, count)
        await _async_rate(other, count)
        return [(await _async_rate(other, count), rate(bus, count)) for _ in range(rounds)]


def measure(quick: bool) -> list[Result]:
    """Return the rate of tasks through ``AsyncBus`` as a multiple of that through ``Bus``."""
    count, rounds = (5_000, 3) if quick else (50_000, 9)
    with alone(), omnibus.connect(workers=1) as bus:
        pairs = asyncio.run(_pairs(bus, count, rounds))
    claim = "AsyncBus, the same tasks"
    return [
        versus("async_throughput", claim, pairs, against="Bus", measured_in="tasks/s", floor=0.8, aim=1.0, tasks=count)
    ]


if __name__ == "__main__":
    sys.exit(run_one("async_throughput", measure))
