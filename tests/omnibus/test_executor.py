"""``Executor``: what code for ``concurrent.futures`` expects."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnibus
from omnibus.bus import Bus
from tests.support.gates import Gate, pass_gate


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with omnibus.connect(workers=2) as bus:
        yield bus


def test_submit_and_map(bus: Bus) -> None:
    with omnibus.Executor(bus) as pool:
        assert isinstance(pool, concurrent.futures.Executor)
        assert pool.submit(pow, 2, 10).result(10) == 1024
        assert list(pool.map(pow, [1, 2, 3], [2, 2, 2], timeout=10)) == [1, 4, 9]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(pow, 1, 1)
    assert bus.submit(pow, 1, 1).result(10) == 1, "a bus that was given stays open"


def test_run_in_executor(bus: Bus) -> None:
    async def main() -> int:
        with omnibus.Executor(bus, options={"priority": 1}) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, pow, 2, 5)

    assert asyncio.run(main()) == 32


def test_shutdown_cancels_what_waits(bus: Bus, tmp_path: Path) -> None:
    pool = omnibus.Executor(bus)
    with Gate(tmp_path) as gate:
        futures = [pool.submit(pass_gate, gate.path) for _ in range(10)]
        pool.shutdown(wait=True, cancel_futures=True)
        assert all(future.cancelled() for future in futures)


def test_an_executor_with_a_mesh_of_its_own() -> None:
    with omnibus.Executor(workers=1) as pool:
        assert pool.submit(sum, [1, 2, 3]).result(10) == 6
    with pytest.raises(omnibus.UsageError, match="not both"):
        omnibus.Executor(pool._bus, workers=1)


def test_shutdown_without_waiting_lets_the_work_end() -> None:
    pool = omnibus.Executor(workers=1)
    future = pool.submit(sum, [1, 2, 3])
    pool.shutdown(wait=False)
    assert future.result(10) == 6
