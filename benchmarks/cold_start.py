"""From ``omnibus.connect()``, where no mesh runs, to the first result of a function of the script.

Each time in a fresh interpreter. The reference is the same with a ``ProcessPoolExecutor``, which forks. Imports count
where they happen, after the clock has started, but for ``import omnibus`` itself; a detail gives the time with that.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import Result, absolute, interleave, p, run_one
from benchmarks.processes import alone, python

__all__ = ["measure"]

OURS = """
import json, time
def square(x):
    return x * x
imported = time.perf_counter()
import omnibus
began = time.perf_counter()
bus = omnibus.connect(workers=1)
connected = time.perf_counter()
assert bus.submit(square, 3).result() == 9
done = time.perf_counter()
bus.close()
closed = time.perf_counter()
print(json.dumps([done - began, done - imported, connected - began, closed - done]))
"""
POOL = """
import json, time
def square(x):
    return x * x
began = time.perf_counter()
from concurrent.futures import ProcessPoolExecutor
pool = ProcessPoolExecutor(1)
assert pool.submit(square, 3).result() == 9
done = time.perf_counter()
pool.shutdown()
print(json.dumps(done - began))
"""


def measure(quick: bool) -> list[Result]:
    """Return the seconds from ``connect()`` to the first result."""
    rounds = 2 if quick else 9
    with alone():
        python(OURS)  # byte code is written now, as an installer does
        python(POOL)
        taken: list[tuple[Any, ...]] = interleave(rounds, lambda: python(OURS), lambda: python(POOL))
    ours = [row[0] for row in taken]
    parts = {
        name: p([times[place] for times in ours], 0.5)
        for place, name in enumerate(("to_result", "with_import_omnibus", "to_connected", "to_close"))
    }
    return [
        absolute(
            "cold_start",
            "connect() without a mesh to the first result",
            [times[0] for times in ours],
            unit="s",
            against="ProcessPoolExecutor, first result",
            references=[row[1] for row in taken],
            floor=1.0,
            aim=0.4,
            medians=parts,
        )
    ]


if __name__ == "__main__":
    sys.exit(run_one("cold_start", measure))
