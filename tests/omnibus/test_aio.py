"""``AsyncBus`` against a real mesh."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnibus
from omnibus.aio import AsyncBus
from tests.support.gates import Gate, pass_gate


class Adder(omnibus.Actor):
    """Adds, one message at a time, in coroutines."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    async def add(self, n: int) -> int:
        value = self.value
        await asyncio.sleep(0)
        self.value = value + n
        return self.value

    async def count(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with omnibus.connect(workers=2) as bus:
        yield bus.address


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 50))


def add(a: int, b: int = 0) -> int:
    return a + b


def test_tasks_one_by_one_and_many(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            assert await bus.submit(add, 2, b=3) == 5
            futures = [bus.submit(add, number, 1) for number in range(5_000)]
            assert [await future for future in futures] == list(range(1, 5_001))
            assert await asyncio.gather(*[bus.submit(add, number) for number in range(100)]) == list(range(100))

    run(main())


def test_map_and_options(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            mapped = bus.options(priority=3).map(add, range(300), range(300), window=16)
            assert [value async for value in mapped] == [2 * number for number in range(300)]
            with pytest.raises(omnibus.UsageError, match="preemptible"):
                bus.options(preemptible=True)

    run(main())


def test_errors(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            with pytest.raises(omnibus.RemoteError) as caught:
                await bus.submit("math:sqrt", -1)
            assert isinstance(caught.value.__cause__, ValueError)
            with pytest.raises(omnibus.NotFound):
                await bus.actor("nobody").ask("anything")

    run(main())


def test_actors_streams_and_tells(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            ref = await bus.spawn(Adder, 10, name="adder")
            assert await ref.ask("add", 5) == 15
            for _ in range(100):
                ref.tell("add", 1)
            assert await bus.actor("adder").ask("add", 0) == 115
            assert [value async for value in ref.stream("count", 200)] == list(range(200))
            async with ref.stream("count", 10_000_000) as stream:
                assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
            assert await ref.ask("add", 0) == 115
            await ref.stop()
            with pytest.raises(omnibus.NotFound):
                await ref.ask("add", 0)

    run(main())


def test_publish_and_subscribe(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            events = await bus.subscribe("aio-news")
            for number in range(500):
                bus.publish("aio-news", number)
            assert [await anext(events) for _ in range(500)] == list(range(500))
            await events.aclose()
            late = await bus.subscribe("aio-news", since=500)
            assert await anext(late) == 499 and late.missed == 0

    run(main())


def test_cancelling_the_future_ends_the_task(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            with Gate(tmp_path) as gate:
                held = asyncio.ensure_future(wait_for(bus, gate.path))
                await running(bus, 1)
                held.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await held
                await running(bus, 0)

    async def wait_for(bus: AsyncBus, path: str) -> str:
        found: str = await bus.submit(pass_gate, path)
        return found

    async def running(bus: AsyncBus, count: int) -> None:
        while (await bus.status())["tasks"]["running"] != count:
            await asyncio.sleep(0)

    run(main())


def test_a_full_window_admits_inside(address: str) -> None:
    async def main() -> None:
        async with omnibus.aconnect(address) as bus:
            bus._peer.window_tasks = 10
            futures = [bus.submit(add, number) for number in range(500)]
            assert bus._peer.lanes[0].tasks <= 10
            assert [await future for future in futures] == list(range(500))

    run(main())


def test_the_broker_dies_under_waiting_futures() -> None:
    async def main() -> None:
        bus = await omnibus.aconnect(workers=1)
        try:
            futures = [bus.submit("signal:pause") for _ in range(50)]
            os.kill((await bus.status())["broker"]["pid"], signal.SIGKILL)
            for future in futures:
                with pytest.raises(omnibus.Unreachable):
                    await asyncio.wait_for(future, 5)
        finally:
            await bus.close()

    run(main())


def test_a_wrong_address_and_a_closed_bus(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(omnibus.ConnectTimeout, match="nobody"):
            await omnibus.aconnect(f"ipc://{tmp_path}/nobody", timeout=0.2)
        with pytest.raises(omnibus.UsageError, match="workers"):
            await omnibus.aconnect(address, workers=1)
        bus = await omnibus.aconnect(address)
        future = bus.submit("signal:pause")
        assert await bus.close() == 1 and await bus.close() == 0
        with pytest.raises(omnibus.BusClosed):
            await future
        with pytest.raises(omnibus.BusClosed):
            bus.submit(add, 1)

    run(main())
