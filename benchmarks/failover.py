"""From SIGKILL of a worker to its task running again: on another worker, or on the restarted one where it is alone.

The reference is the least that any supervisor must do: a pidfd wait, and a fork of a small process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import omnibus
from benchmarks.common import Result, absolute, interleave, run_one
from benchmarks.processes import alone, eventually, python
from benchmarks.work import hold

__all__ = ["measure"]

MILLI = 1e6
FORK = """
import json, os, select, signal, struct, sys, time
def start(write):
    pid = os.fork()
    if not pid:
        os.write(write, struct.pack("q", time.monotonic_ns()))
        signal.pause()
    return pid
times = []
for _ in range(int(sys.argv[1])):
    read, write = os.pipe()
    pid = start(write)
    os.read(read, 8)
    ended = select.poll()
    fd = os.pidfd_open(pid)
    ended.register(fd, select.POLLIN)
    killed = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    ended.poll()
    again = start(write)
    times.append((struct.unpack("q", os.read(read, 8))[0] - killed) / 1e6)
    os.kill(again, signal.SIGKILL)
    for each in (pid, again):
        os.waitpid(each, 0)
    for each in (fd, read, write):
        os.close(each)
print(json.dumps(sorted(times)[len(times) // 2]))
"""


def failover(folder: Path, workers: int) -> float:
    """Return the milliseconds from a kill until the killed task runs again, in a fresh mesh of so many workers."""
    mark = folder / f"held-{os.urandom(4).hex()}"
    with omnibus.connect(workers=workers) as bus:
        idle = lambda: len(bus.status()["workers"]) == workers  # noqa: E731
        eventually(idle, f"{workers} workers")
        task = bus.submit(hold, str(mark))
        text = eventually(lambda: mark.exists() and mark.read_text(), "the task runs")
        killed = time.monotonic_ns()
        os.kill(int(text), signal.SIGKILL)
        pid, began = task.result(30)
        if pid == int(text):
            raise AssertionError("the task ran on, in the process that was killed")
        return (began - killed) / MILLI


def measure(quick: bool) -> list[Result]:
    """Return the milliseconds from the kill to the task's next beginning."""
    rounds = 3 if quick else 11
    with alone() as folder:
        taken = interleave(
            rounds, lambda: failover(folder, 2), lambda: float(python(FORK, "5")), lambda: failover(folder, 1)
        )
    against = "a pidfd wait and a fork"
    references = [row[1] for row in taken]
    return [
        absolute(
            "failover",
            claim,
            [row[column] for row in taken],
            unit="ms",
            against=against,
            references=references,
            floor=floor,
            aim=aim,
            worst=max(row[column] for row in taken),
        )
        for column, claim, floor, aim in (
            (0, "SIGKILL of a worker to its task running on another", 100, 20),
            (2, "the same with one worker only, which is restarted", None, None),
        )
    ]


if __name__ == "__main__":
    sys.exit(run_one("failover", measure))
