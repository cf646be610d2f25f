"""What a queued small task costs the broker in memory; beside the bare records in a plain deque."""

from __future__ import annotations

import sys

import omnibus
from benchmarks.common import Result, absolute, run_one
from benchmarks.gates import held, unfinished
from benchmarks.processes import alone, pss, python
from benchmarks.work import noop

__all__ = ["measure"]

BARE = """
import collections, json, sys
import msgpack
from benchmarks.processes import pss
import os

count = int(sys.argv[1])
queue = collections.deque()
before = pss(os.getpid())
for number in range(count):
    queue.append(msgpack.unpackb(msgpack.packb([12, number, 1, msgpack.packb([number]), 0])))
print(json.dumps((pss(os.getpid()) - before) / count))
"""


def _queued(count: int) -> float:
    """Return the bytes by which the broker grows for each of ``count`` tasks that wait."""
    with omnibus.connect(workers=1) as bus:
        for future in [bus.submit(noop, number) for number in range(2_000)]:  # what the broker needs once, it has then
            future.result()
        with held(bus):
            broker = bus.status()["broker"]["pid"]
            before = pss(broker)
            futures = [bus.submit(noop, number) for number in range(count)]
            held_back = unfinished(bus) - 1
            after = pss(broker)
            if held_back != count or futures[0].done():
                raise AssertionError(f"{held_back} of {count} tasks wait")
        return (after - before) / count


def measure(quick: bool) -> list[Result]:
    """Return the bytes of broker memory for each queued task."""
    count, rounds = (30_000, 2) if quick else (500_000, 3)
    values, references = [], []
    with alone():
        for _ in range(rounds):
            values.append(_queued(count))
            references.append(float(python(BARE, str(count))))
    against = "the bare decoded records in a deque"
    claim = "broker memory per queued small task"
    return [
        absolute(
            "memory_per_task",
            claim,
            values,
            unit="B",
            against=against,
            references=references,
            floor=700,
            aim=400,
            tasks=count,
        )
    ]


if __name__ == "__main__":
    sys.exit(run_one("memory_per_task", measure))
