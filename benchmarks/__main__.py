"""``python -m benchmarks [NAME …] [--json] [--quick]``: run all benchmarks, or some."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common import Result, absolute, run

__all__ = ["NAMES", "main"]

NAMES = (
    "throughput",
    "async_throughput",
    "latency",
    "backlog",
    "memory_per_task",
    "cold_start",
    "failover",
    "idle_memory",
    "tensor_tcp",
    "tensor_codec",
    "peers",
)


def _tensor_codec(quick: bool) -> list[Result]:
    """Return the script's figures for 1 KB tensors, each beside pickle's."""
    from benchmarks import tensor_codec

    rows = {(row["tensor"], row["way"]): row["us_1kb"] for row in tensor_codec.measure(5 if quick else 15)}
    return [
        absolute(
            "tensor_codec",
            f"encode + decode of a 1 KB {library} tensor, its shape seen before",
            [value],
            unit="µs",
            against="pickle 5",
            references=[rows[library, "pickle 5"]],
            floor=15,
            aim=5,
            ways={other: each for (its, other), each in rows.items() if its == library},
        )
        for (library, way), value in rows.items()
        if way == "omnibus"
    ]


def _late(name: str) -> Callable[[bool], list[Result]]:
    def measure(quick: bool) -> list[Result]:
        module: Any = importlib.import_module(f"benchmarks.{name}")
        return list(module.measure(quick))

    return measure


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line names, all of them by default; return the exit status."""
    return run({name: _late(name) for name in NAMES} | {"tensor_codec": _tensor_codec}, argv, "python -m benchmarks")


if __name__ == "__main__":
    sys.exit(main())
