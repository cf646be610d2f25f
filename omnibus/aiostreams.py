"""Streams and subscriptions for ``async for``."""

from __future__ import annotations

import asyncio
from typing import Any

from omnibus.streams import Parts

__all__ = ["AsyncStream", "AsyncSubscription"]


class AsyncStream:
    """Iterates with ``async for`` over parts as they come.

    ``aclose()``, or leaving an ``async with`` block, ends it early. ``leave`` is the verb that tells the other side so.
    """

    def __init__(self, parts: Parts, leave: int, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._leave = leave
        self._loop = loop
        self._next: asyncio.Future[None] | None = None
        parts.notify = self._wake

    def _wake(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        parts = self._parts
        while not parts.waiting and not parts.ended:
            self._next = self._loop.create_future()
            await self._next
        if parts.waiting:
            return parts.take()[0]
        if parts.error is not None:
            error, parts.error = parts.error, None
            raise error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Want no more."""
        if not self._parts.ended:
            self._parts.close(self._leave)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncSubscription(AsyncStream):
    """What is published under a topic, without end."""

    @property
    def missed(self) -> int:
        """Events that were no longer kept when this reader came for them."""
        return self._parts.missed
