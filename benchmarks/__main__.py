"""``python -m benchmarks [NAME …] [--json] [--quick]``: run all benchmarks, or some."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common import Result, run

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


def _late(name: str) -> Callable[[bool], list[Result]]:
    def measure(quick: bool) -> list[Result]:
        module: Any = importlib.import_module(f"benchmarks.{name}")
        return list(module.measure(quick))

    return measure


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line names, all of them by default; return the exit status."""
    return run({name: _late(name) for name in NAMES}, argv, "python -m benchmarks")


if __name__ == "__main__":
    sys.exit(main())
