"""The bus beside what a user would pick instead: tasks a second, and one task at a time.

Each peer has one worker process and a client in an interpreter of its own. ProcessPoolExecutor and
multiprocessing.Pool are always measured; Ray and Dask where they are installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.common import Result, interleave, p, run_one, versus
from benchmarks.processes import Script, alone, script, serve
from benchmarks.work import noop

__all__ = ["measure"]

MICRO = 1e6
Many = Callable[[int], "list[int]"]
One = Callable[[int], int]


# Each yields a function that runs so many tasks at once, and one that runs one task; imports are its own.


@contextlib.contextmanager
def _omnibus() -> Iterator[tuple[Many, One]]:
    import omnibus

    with omnibus.connect(workers=1) as bus:
        yield (
            lambda count: [each.result() for each in [bus.submit(noop, n) for n in range(count)]],
            lambda n: bus.submit(noop, n).result(),
        )


@contextlib.contextmanager
def _executor() -> Iterator[tuple[Many, One]]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1) as pool:
        yield (
            lambda count: [each.result() for each in [pool.submit(noop, n) for n in range(count)]],
            lambda n: pool.submit(noop, n).result(),
        )


@contextlib.contextmanager
def _pool() -> Iterator[tuple[Many, One]]:
    from multiprocessing import Pool

    with Pool(1) as pool:
        yield lambda count: list(pool.imap(noop, range(count))), lambda n: pool.apply(noop, (n,))


@contextlib.contextmanager
def _ray() -> Iterator[tuple[Many, One]]:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(noop)
    try:
        yield (
            lambda count: list(ray.get([remote.remote(n) for n in range(count)])),
            lambda n: int(ray.get(remote.remote(n))),
        )
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _dask() -> Iterator[tuple[Many, One]]:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:

        def many(count: int) -> list[int]:
            return list(client.gather([client.submit(noop, n, pure=False) for n in range(count)]))

        yield many, lambda n: int(client.submit(noop, n, pure=False).result())


PEERS: dict[str, tuple[str, str, Callable[[], Any], int]] = {
    "omnibus": ("Omnibus", "omnibus", _omnibus, 1),
    "executor": ("ProcessPoolExecutor", "concurrent.futures", _executor, 4),
    "pool": ("multiprocessing.Pool, imap", "multiprocessing", _pool, 1),
    "ray": ("Ray", "ray", _ray, 20),
    "dask": ("Dask", "distributed", _dask, 40),
}
"""By name: what people call it, the module that it needs, how it runs, and by what its number of tasks is divided."""


def client(name: str) -> None:
    """Be the client of one peer."""
    with PEERS[name][2]() as (many, one):

        def rate(count: str) -> float:
            began = time.perf_counter()
            results = many(int(count))
            took = time.perf_counter() - began
            if results != list(range(int(count))):
                raise AssertionError("a result is not its own task's")
            return int(count) / took

        def latency(count: str) -> float:
            times = []
            for number in range(int(count)):
                began = time.perf_counter()
                one(number)
                times.append(time.perf_counter() - began)
            return p(times, 0.5) * MICRO

        serve(rate=rate, latency=latency)


def measure(quick: bool) -> list[Result]:
    """Return rate and round trip of the bus as multiples of each peer's."""
    count, asks, rounds = (4_000, 100, 2) if quick else (40_000, 500, 5)
    there = [name for name, (_, module, _, _) in PEERS.items() if importlib.util.find_spec(module.partition(".")[0])]
    skipped = {name: f"{PEERS[name][1]} is not installed" for name in PEERS if name not in there}
    for name, why in skipped.items():
        print(f"peers: {PEERS[name][0]} is skipped: {why}", file=sys.stderr)
    with alone(), contextlib.ExitStack() as stack:
        scripts = [stack.enter_context(script("-m", "benchmarks.peers", "--client", name)) for name in there]

        def both(name: str, peer: Script) -> Callable[[], tuple[float, float]]:
            tasks, calls = count // PEERS[name][3], asks // PEERS[name][3]
            return lambda: (peer.ask(f"rate {tasks}"), peer.ask(f"latency {max(calls, 10)}"))

        measures = [both(name, peer) for name, peer in zip(there, scripts, strict=True)]
        interleave(1, *measures)
        taken = interleave(rounds, *measures)
    results = []
    for column, name in enumerate(there):
        if name == "omnibus":
            continue
        for place, claim, unit, better in (
            (0, "tasks, each tracked", "tasks/s", "more"),
            (1, "one task at a time, p50", "µs", "less"),
        ):
            pairs = [(row[0][place], row[column][place]) for row in taken]
            results.append(
                versus("peers", claim, pairs, against=PEERS[name][0], measured_in=unit, better=better, skipped=skipped)
            )
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2])
    else:
        sys.exit(run_one("peers", measure))
