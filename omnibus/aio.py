"""``AsyncBus``: the face of a mesh for asyncio, on one event loop, with the same verbs, awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from omnibus.address import Target
from omnibus.aiodriver import AsyncDriver
from omnibus.aiostreams import AsyncStream, AsyncSubscription
from omnibus.face import Face, fetch_head, not_embedded
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.options import Options
from omnibus.peer import Lane
from omnibus.protocol import Blob, Verb
from omnibus.refs import ActorRef
from omnibus.requests import Make, Requester
from omnibus.rundir import resolve
from omnibus.streams import STREAM_CREDIT, SUBSCRIPTION_CREDIT, Parts, StreamEnd

__all__ = ["AsyncBus", "AsyncFuture", "AsyncSubmitter", "aconnect"]


class AsyncFuture(asyncio.Future[Any]):
    """The end of one request. Cancelling it asks for the end of the task, and it is cancelled here at once."""

    def __init__(self, driver: AsyncDriver, seq: int) -> None:
        super().__init__(loop=driver.loop)
        self._driver = driver
        self.seq = seq
        self.lane: Lane | None = None
        self.size = 0

    def set_result(self, result: Any, /) -> None:
        """End with a value, unless it was cancelled meanwhile."""
        if not self.done():
            super().set_result(result)

    def set_exception(self, exception: Any, /) -> None:
        """End with an error, unless it was cancelled meanwhile."""
        if not self.done():
            super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask for the end of the task."""
        if self.done():
            return False
        self._driver.post([Verb.CANCEL, self.seq, None, None, 0])
        return super().cancel(msg)


class AsyncSubmitter(Requester):
    """Submits work with one set of options; ``bus.options(...)`` returns one."""

    def __init__(self, bus: AsyncBus, options: Options) -> None:
        super().__init__(bus._peer, bus._kinds, options, code=bus._code)
        self._driver = bus._driver

    def submit(self, fn: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> AsyncFuture:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return the future of its result at once.

        Where the lane's window of unfinished work is full, the request waits inside for its turn. Otherwise as
        :meth:`omnibus.Bus.submit`.
        """
        return self._submit(fn, args, kwargs)  # type: ignore[no-any-return]

    async def map(
        self, fn: Callable[..., Any] | str, *iterables: Iterable[Any], window: int = 4096
    ) -> AsyncIterator[Any]:
        """Yield ``fn``'s results for the items, in their order; at most ``window`` are under way at a time."""
        waiting: deque[AsyncFuture] = deque()
        try:
            for args in zip(*iterables, strict=False):
                waiting.append(self.submit(fn, *args))
                if len(waiting) >= window:
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for future in waiting:
                future.cancel()

    def _start(
        self,
        verb: int,
        head: Any,
        body: bytes | None,
        blobs: Sequence[Blob],
        make: Make | None = None,
        lane: Lane | None = None,
    ) -> Any:
        peer = self._peer
        if peer.failure is not None:
            raise peer.failure
        seq = peer.next_seq()
        future: Any = AsyncFuture(self._driver, seq) if make is None else make(seq)
        future.lane = lane or self._lane
        future.size = (len(body) if body else 0) + sum(memoryview(blob).nbytes for blob in blobs)
        self._driver.begin(future, [verb, seq, head, body, 0], blobs)
        return future


class AsyncBus(Face[AsyncSubmitter]):
    """A session with a mesh on one running event loop, made by :func:`aconnect`; not for other threads."""

    def __init__(self, target: Target, *, mesh: Any = None) -> None:
        super().__init__(target, lambda options: AsyncSubmitter(self, options))
        self._mesh = mesh
        self._context = make_context()
        socket = make_dealer(self._context, target)
        self._driver = AsyncDriver(self._peer, socket, LinkWatch(socket), target.address)

    async def _open(self, timeout: float) -> None:
        await self._driver.open(timeout)
        self._begin()
        self.submit = self._default.submit
        self.map = self._default.map

    async def spawn(self, cls: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> ActorRef:
        """Start an actor and return its handle once it is ready; see :meth:`omnibus.Bus.spawn`."""
        name, ready = self._default.spawn(cls, args, kwargs, name)
        await ready
        return ActorRef(self, name)

    async def subscribe(self, topic: str, since: int | None = None) -> AsyncSubscription:
        """Return an async iterator over what is published under ``topic``; see :meth:`omnibus.Bus.subscribe`."""
        made: list[Parts] = []

        def make(seq: int) -> AsyncFuture:
            made.append(Parts(self._peer, seq, SUBSCRIPTION_CREDIT, self._driver.submitted))
            made[0].open()
            return AsyncFuture(self._driver, seq)

        await self._default.follow(topic, since, make)
        return AsyncSubscription(made[0], Verb.UNSUBSCRIBE, self._driver.loop)

    async def status(self) -> dict[str, Any]:
        """Return the state of the mesh as a plain dict."""
        return await self._default.ask_broker(Verb.STATUS, None)  # type: ignore[no-any-return]

    async def fetch(self, task: str) -> Any:
        """Return the result of a detached task by its id; see :meth:`omnibus.Bus.fetch`."""
        return await self._default.ask_broker(Verb.FETCH, fetch_head(task))

    async def close(self, timeout: float = 5.0) -> int:
        """End the session; see :meth:`omnibus.Bus.close`."""
        if self._driver.closed:
            return 0
        unfinished = self._peer.stop()
        if self._mesh is not None:
            await asyncio.to_thread(self._mesh.stop_node)
            seq = self._peer.next_seq()
            await self._driver.sync(AsyncFuture(self._driver, seq), seq, timeout)
        unfinished += await self._driver.close(timeout)
        await asyncio.to_thread(self._end)
        return unfinished

    def _end(self) -> None:
        self._context.term()
        if self._mesh is not None:
            self._mesh.stop()

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stream(self, start: Callable[[Make], Any]) -> AsyncStream:
        def make(seq: int) -> StreamEnd:
            return StreamEnd(Parts(self._peer, seq, STREAM_CREDIT, self._driver.submitted))

        return AsyncStream(start(make).parts, Verb.CANCEL, self._driver.loop)

    def _finish(self, future: AsyncFuture) -> AsyncFuture:
        return future


class aconnect:  # noqa: N801  # called like a function: awaited, or entered
    """Connect to a mesh, with the arguments and errors of :func:`omnibus.connect`.

    ``bus = await aconnect()``, or ``async with aconnect() as bus``.
    """

    def __init__(
        self, address: str | None = None, *, timeout: float = 10.0, insecure: bool = False, **embedded: Any
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._insecure = insecure
        self._embedded = embedded
        self._bus: AsyncBus | None = None

    async def _connect(self) -> AsyncBus:
        target = resolve(self._address, insecure=self._insecure)
        mesh = None
        if target is None:
            from omnibus.embedded import EmbeddedMesh

            mesh = await asyncio.to_thread(lambda: EmbeddedMesh.start(timeout=self._timeout, **self._embedded))
            target = mesh.target
        elif self._embedded:
            raise not_embedded(self._embedded, target)
        bus = AsyncBus(target, mesh=mesh)
        try:
            await bus._open(self._timeout)
        except BaseException:
            await bus.close(0)
            raise
        if mesh is not None:
            mesh.show_output(bus._peer, bus._driver.submitted)
        return bus

    def __await__(self) -> Any:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncBus:
        self._bus = await self._connect()
        return self._bus

    async def __aexit__(self, *_: object) -> None:
        assert self._bus is not None
        await self._bus.close()
