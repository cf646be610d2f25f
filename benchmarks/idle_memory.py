"""Memory of all processes of an idle mesh with one worker, its client among them; beside a raw pyzmq trio.

The figure is the sum of proportional set sizes: pages that processes share count once. Other programs on the machine
that share pages of the interpreter with these make both figures smaller.
"""

from __future__ import annotations

import sys

from benchmarks.common import Result, absolute, run_one
from benchmarks.processes import MiB, alone, descendants, pss, script

__all__ = ["measure"]

MESH = """
import sys
import omnibus

def square(x):
    return x * x

with omnibus.connect(workers=1) as bus:
    for line in sys.stdin:
        if line.startswith("work"):
            bus.submit(square, 3).result()
        print(bus.status()["tasks"]["done"], flush=True)
"""
RAW = """
import sys
from benchmarks.rawchain import RawChain

with RawChain() as raw:
    for line in sys.stdin:
        print(len(raw.latency(10)), flush=True)
"""


def _weigh(pid: int) -> dict[str, float]:
    """Return the MiB of each process below ``pid``, by what it is."""
    weights: dict[str, float] = {}
    for each, command in descendants(pid).items():
        name = _name(command) if each != pid else "client"
        while name in weights:
            name += "+"
        weights[name] = pss(each) / MiB
    return weights


def _name(command: str) -> str:
    words = command.split()
    known = ("omnibus.brokers", "omnibus.actors", "zygote", "worker", "broker")
    return next((word for word in words for each in known if word.endswith(each)), command[:40])


def measure(quick: bool) -> list[Result]:
    """Return the MiB of all processes of an idle mesh, after its worker has run one function."""
    rounds = 1 if quick else 5
    fresh, used, raws, details = [], [], [], {}
    with alone():
        with script("-c", MESH) as mesh:  # byte code is cached now: to compile takes memory that is not given back
            mesh.ask("work")
        for _ in range(rounds):
            with script("-c", MESH) as mesh, script("-c", RAW) as raw:
                mesh.ask("hello")
                raw.ask("hello")
                fresh.append(sum(_weigh(mesh.pid).values()))
                mesh.ask("work")
                details = _weigh(mesh.pid)
                used.append(sum(details.values()))
                raws.append(sum(_weigh(raw.pid).values()))
    return [
        absolute(
            "idle_memory",
            claim,
            values,
            unit="MiB",
            against="a raw pyzmq trio",
            references=raws,
            floor=floor,
            aim=aim,
            processes={name: round(value, 2) for name, value in details.items()},
            without_client=round(values[-1] - details["client"], 2),
        )
        for claim, values, floor, aim in (
            ("idle mesh with one worker, all its processes and its client", used, 60, 45),
            ("the same before its first task", fresh, None, None),
        )
    ]


if __name__ == "__main__":
    sys.exit(run_one("idle_memory", measure))
