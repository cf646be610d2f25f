"""The service with a model inside, over real HTTP and on a real mesh."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import uvicorn

import omnibus
from tests.repo.tree import ROOT
from tests.support.events import aeventually
from tests.support.mesh import started_mesh

ROWS = [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]


@pytest.fixture(scope="module")
def mesh() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder,
        started_mesh(Path(folder), f"ipc://{folder}/b") as target,
    ):
        yield target.address


@pytest.fixture
def example(mesh: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("OMNIBUS_ADDRESS", mesh)
    spec = importlib.util.spec_from_file_location("embedded_service", ROOT / "examples" / "embedded_service.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def served(example: ModuleType) -> AsyncIterator[httpx.AsyncClient]:
    """Run the service on a free port of this host; give a client of it."""
    server = uvicorn.Server(uvicorn.Config(example.app, host="127.0.0.1", port=0, log_level="warning"))
    serving = asyncio.get_running_loop().create_task(server.serve())
    try:
        await aeventually(lambda: server.started or serving.done(), timeout=20)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


def with_service(example: ModuleType, use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served(example) as client:
            await use(client)

    asyncio.run(main())


def expected(example: ModuleType) -> list[float]:
    scorer = example.Scorer(4)
    scores: list[float] = scorer._forward(example.np.array(ROWS, example.np.float32)).tolist()
    return scores


def test_requests_are_answered_by_the_model(example: ModuleType) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        answer = await client.post("/score", json=ROWS)
        assert answer.status_code == 200
        assert answer.json() == pytest.approx(expected(example), rel=1e-5)

    with_service(example, use)


def test_requests_that_come_together_share_batches(example: ModuleType, mesh: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(client.post("/score", json=ROWS) for _ in range(64)))
        assert {answer.status_code for answer in answers} == {200}
        async with omnibus.aconnect(mesh) as bus:
            assert 1 <= await bus.actor("scorer").ask("count_batches") < 64

    with_service(example, use)


def test_what_makes_no_sense_is_the_caller_s_error(example: ModuleType) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for body in ("[[1, 2]]", "no JSON"):
            answer = await client.post("/score", content=body)
            assert answer.status_code == 400 and "error" in answer.json()
        assert (await client.post("/score", json=ROWS)).status_code == 200

    with_service(example, use)


def ask_from_a_task(rows: list[list[float]]) -> list[float]:
    with omnibus.connect() as bus:
        scores: list[float] = bus.actor("scorer").ask("score", rows).result(20)
        return scores


def test_the_whole_mesh_can_ask_the_model_and_it_is_gone_with_the_service(example: ModuleType, mesh: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        async with omnibus.aconnect(mesh) as bus:
            assert await bus.submit(ask_from_a_task, ROWS) == pytest.approx(expected(example), rel=1e-5)

    with_service(example, use)
    with omnibus.connect(mesh) as bus, pytest.raises(omnibus.NotFound):
        bus.actor("scorer").ask("score", ROWS).result(20)
