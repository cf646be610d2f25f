"""A web service with a model inside: an actor on the service's own event loop, which the whole mesh can ask.

Requests that come while the model computes are put into its next batch, as one would on a GPU. ``pip install starlette
uvicorn``, then ``python examples/embedded_service.py`` and::

    curl -d '[[1, 2, 3, 4], [4, 3, 2, 1]]' http://127.0.0.1:8000/score
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import omnibus

INPUTS = 4


class Scorer(omnibus.Actor):
    """A small network. Its messages overlap, so that they can share a batch."""

    def __init__(self, inputs: int) -> None:
        chance = np.random.default_rng(0)
        self.first = chance.normal(size=(inputs, 32)).astype(np.float32)
        self.second = chance.normal(size=32).astype(np.float32)
        self.waiting: list[tuple[np.ndarray, asyncio.Future[list[float]]]] = []
        self.computing: asyncio.Task[None] | None = None
        self.batches = 0

    async def score(self, rows: list[list[float]]) -> list[float]:
        """Return a score for each row."""
        table = np.array(rows, np.float32).reshape(len(rows), len(self.first))
        scores: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self.waiting.append((table, scores))
        if self.computing is None or self.computing.done():
            self.computing = asyncio.create_task(self._compute())
        return await scores

    async def _compute(self) -> None:
        await asyncio.sleep(0)  # let others join the first batch
        while self.waiting:
            batch, self.waiting = self.waiting, []
            found = await asyncio.to_thread(self._forward, np.concatenate([table for table, _ in batch]))
            for table, scores in batch:
                mine, found = found[: len(table)], found[len(table) :]
                if not scores.done():  # it may have been cancelled meanwhile
                    scores.set_result(mine.tolist())

    def _forward(self, table: np.ndarray) -> np.ndarray:
        """Compute, in a thread, while the loop serves on."""
        self.batches += 1
        return np.maximum(table @ self.first, 0) @ self.second

    async def count_batches(self) -> int:
        return self.batches


async def score(request: Request) -> JSONResponse:
    """Answer a POST of rows by their scores."""
    try:
        return JSONResponse(await request.app.state.scorer.ask("score", await request.json()))
    except (omnibus.RemoteError, ValueError) as error:
        return JSONResponse({"error": str(error).partition("\n")[0]}, status_code=400)


@contextlib.asynccontextmanager
async def mesh(app: Starlette) -> AsyncIterator[None]:
    """Join the mesh of $OMNIBUS_ADDRESS or of the run file, else make one; serve the model in it."""
    async with (
        omnibus.aconnect() as bus,
        omnibus.serve(Scorer, INPUTS, name="scorer", address=bus.address, concurrency=64),
    ):
        app.state.scorer = bus.actor("scorer")
        yield


app = Starlette(routes=[Route("/score", score, methods=["POST"])], lifespan=mesh)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
