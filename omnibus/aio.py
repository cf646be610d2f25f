"""``AsyncBus``: the face of a mesh for asyncio, on one event loop, with the same verbs, awaited.

The socket's descriptor sits on the loop and is drained here, without ``zmq.asyncio``, which costs several times as much a message.
Requests that one turn of the loop makes go out together at its end.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import zmq

from omnibus.errors import ConnectTimeout, UsageError
from omnibus.handshake import describe, host_key, new_session
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.options import Options
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import BATCH, INLINE, Blob, Record, Verb
from omnibus.refs import ActorRef
from omnibus.requests import Kinds, Make, Requester
from omnibus.rundir import resolve
from omnibus.sockets import Sent, receive, send
from omnibus.streams import STREAM_CREDIT, SUBSCRIPTION_CREDIT, Parts, StreamEnd

__all__ = ["AsyncBus", "AsyncFuture", "AsyncStream", "AsyncSubmitter", "AsyncSubscription", "aconnect"]

_TURN = 32
"""Messages taken in one turn of the loop before others on it have theirs."""


class AsyncFuture(asyncio.Future[Any]):
    """The end of one request. Cancelling it asks for the end of the task, and it is cancelled here at once."""

    lane: Lane | None = None
    size = 0
    seq = 0
    bus: AsyncBus

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
        self.bus._post([Verb.CANCEL, self.seq, None, None, 0])
        return super().cancel(msg)


class AsyncSubmitter(Requester):
    """Submits work with one set of options; ``bus.options(...)`` returns one."""

    def __init__(self, bus: AsyncBus, options: Options) -> None:
        super().__init__(bus._peer, bus._kinds, options, code=bus._code)
        self._bus = bus
        self._loop = bus._loop

    def submit(self, fn: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> AsyncFuture:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return the future of its result at once.

        Where the lane's window of unfinished work is full, the request waits inside for its turn. Otherwise as :meth:`omnibus.Bus.submit`.
        """
        return self._submit(fn, args, kwargs)  # type: ignore[no-any-return]

    async def map(self, fn: Callable[..., Any] | str, *iterables: Iterable[Any], window: int = 4096) -> AsyncIterator[Any]:
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

    def _start(self, verb: int, head: Any, body: bytes | None, blobs: Sequence[Blob], make: Make | None = None) -> Any:
        bus = self._bus
        peer = self._peer
        if peer.failure is not None:
            raise peer.failure
        seq = peer.next_seq()
        if make is None:
            future: Any = AsyncFuture(loop=self._loop)
            future.bus = bus
            future.seq = seq
        else:
            future = make(seq)
        future.lane = lane = self._lane
        if blobs or (body is not None and len(body) >= INLINE):
            future.size = (len(body) if body else 0) + sum(memoryview(blob).nbytes for blob in blobs)
        if bus._waiting or lane.tasks >= peer.window_tasks or lane.size >= peer.window_bytes:
            bus._waiting.append((future, [verb, seq, head, body, 0], blobs))
        else:
            bus._admit(future, [verb, seq, head, body, 0], blobs)
        return future


class AsyncBus:
    """A session with a mesh on one running event loop, made by :func:`aconnect`; not for other threads."""

    def __init__(self, target: Any, *, mesh: Any = None) -> None:
        self._mesh = mesh
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._code = not target.parsed().is_tcp or target.key is not None
        self._peer = ClientPeer(describe("client", new_session(), code=self._code), code=self._code)
        self._kinds = Kinds(self._peer)
        self._waiting: deque[tuple[Any, Record, Sequence[Blob]]] = deque()
        self._scheduled = False
        self._closed = False
        self._context = make_context()
        self._socket = make_dealer(self._context, target)
        self._watch = LinkWatch(self._socket)
        self._fd = self._socket.getsockopt(zmq.FD)
        self._monitor_fd = self._watch.monitor.getsockopt(zmq.FD)
        self._broker_fd: int | None = None
        self._welcomed = asyncio.Event()
        self._submitters: dict[Options, AsyncSubmitter] = {}
        self._default = self._requester(None)
        self.submit = self._default.submit
        self.map = self._default.map

    # ------------------------------------------------------------------ start and end

    async def _open(self, timeout: float) -> None:
        self._loop.add_reader(self._fd, self._pump)
        self._loop.add_reader(self._monitor_fd, self._observe)
        self._pump()
        try:
            await asyncio.wait_for(self._welcomed.wait(), timeout)
        except TimeoutError:
            refused = self._watch.last
            why = f": {refused.why}" if refused is not None else ""
            raise ConnectTimeout(f"no answer from {self.address} within {timeout:g} s{why}") from None
        if self._peer.failure is not None:
            raise self._peer.failure
        self._watch_broker()

    def _watch_broker(self) -> None:
        welcome = self._peer.welcome
        if welcome.get("boot") != host_key():
            return
        try:
            self._broker_fd = os.pidfd_open(int(welcome["pid"]))
        except (OSError, KeyError, ValueError):
            return
        self._loop.add_reader(self._broker_fd, self._broker_ended)

    def _broker_ended(self) -> None:
        from omnibus.errors import Unreachable

        self._pump()
        self._forget(self._broker_fd)
        self._broker_fd = None
        self._fail(Unreachable(f"the broker at {self.address} ended"))

    def _fail(self, error: BaseException) -> None:
        self._peer.fail(error)
        while self._waiting:
            self._waiting.popleft()[0].set_exception(error)
        self._welcomed.set()

    def _observe(self) -> None:
        self._watch.events()
        if self._watch.last is not None and self._watch.last.what == "refused" and not self._peer.ready:
            self._fail(ConnectTimeout(f"{self.address} refused this link: {self._watch.last.why}"))

    async def close(self, timeout: float = 5.0) -> int:
        """End the session: send what is queued, end what is unfinished in :class:`omnibus.BusClosed`, return how much that was."""
        if self._closed:
            return 0
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        unfinished = self._peer.close() + len(waiting)
        for future, _, _ in waiting:
            future.set_exception(self._peer.failure)
        deadline = self._loop.time() + timeout
        while self._peer.out and self._peer.ready and not self._send_all() and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for fd in (self._fd, self._monitor_fd):
            self._loop.remove_reader(fd)
        self._forget(self._broker_fd)
        self._watch.close()
        self._socket.close(linger=int(max(0.0, deadline - self._loop.time()) * 1000))
        await asyncio.to_thread(self._end)
        return unfinished

    def _end(self) -> None:
        self._context.term()
        if self._mesh is not None:
            self._mesh.stop()

    def _forget(self, fd: int | None) -> None:
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Where the mesh is."""
        return str(self._target.address)

    # ------------------------------------------------------------------ requests

    def options(self, **given: Any) -> AsyncSubmitter:
        """Return a submitter with these options; see :class:`omnibus.options.Options` for their names and meaning."""
        return self._requester(given)

    def _requester(self, given: Mapping[str, Any] | None) -> AsyncSubmitter:
        options = Options.make(given or {})
        found = self._submitters.get(options)
        if found is None:
            found = self._submitters[options] = AsyncSubmitter(self, options)
        return found

    async def spawn(self, cls: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> ActorRef:
        """Start an actor and return its handle once it is ready; see :meth:`omnibus.Bus.spawn`."""
        name, ready = self._default.spawn_with(cls, args, kwargs, name)
        await ready
        return ActorRef(self, name)

    def actor(self, name: str) -> ActorRef:
        """Return a handle on the actor of that name."""
        return ActorRef(self, name)

    def publish(self, topic: str, value: Any) -> AsyncFuture:
        """Publish ``value`` under ``topic``; the future is its number there."""
        return self._default.ask_broker(Verb.PUBLISH, {"topic": topic}, value, carries=True)  # type: ignore[no-any-return]

    async def subscribe(self, topic: str, since: int | None = None) -> AsyncSubscription:
        """Return an async iterator over what is published under ``topic`` from now on, or from number ``since`` on."""
        made: list[Parts] = []

        def make(seq: int) -> Any:
            made.append(Parts(self._peer, seq, SUBSCRIPTION_CREDIT, self._submitted))
            made[0].open()
            return self._future(seq)

        head = {"topic": topic, "since": since, "credit": SUBSCRIPTION_CREDIT}
        await self._default._start(Verb.SUBSCRIBE, head, None, (), make)
        return AsyncSubscription(made[0], Verb.UNSUBSCRIBE, self._loop)

    async def status(self) -> dict[str, Any]:
        """Return the state of the mesh as a plain dict."""
        return await self._default.ask_broker(Verb.STATUS, None)  # type: ignore[no-any-return]

    async def fetch(self, task: str) -> Any:
        """Return the result of a detached task by its id; see :meth:`omnibus.Bus.fetch`."""
        session, _, number = task.rpartition("-")
        try:
            head = {"session": bytes.fromhex(session), "seq": int(number)}
        except ValueError:
            raise UsageError(f"{task!r} is no task id; one looks like 0f3c...-17, and bus.task_id(future) gives it") from None
        return await self._default.ask_broker(Verb.FETCH, head)

    def task_id(self, future: Any) -> str:
        """Return the id of a task in the whole mesh."""
        return f"{self._peer.session.hex()}-{future.seq}"

    def _stream(self, start: Callable[[Make], Any]) -> AsyncStream:
        def make(seq: int) -> StreamEnd:
            return StreamEnd(Parts(self._peer, seq, STREAM_CREDIT, self._submitted))

        return AsyncStream(start(make).parts, Verb.CANCEL, self._loop)

    def _finish(self, future: AsyncFuture) -> AsyncFuture:
        return future

    def _future(self, seq: int) -> AsyncFuture:
        future = AsyncFuture(loop=self._loop)
        future.bus = self
        future.seq = seq
        return future

    # ------------------------------------------------------------------ the socket

    def _admit(self, future: Any, record: Record, blobs: Sequence[Blob]) -> None:
        peer = self._peer
        lane = future.lane
        lane.tasks += 1
        lane.size += future.size
        peer.pending[record[1]] = future
        if future.size:
            peer.request(record, blobs)
        else:
            peer.out.append(record)
        self._submitted()

    def _post(self, record: Record) -> None:
        if self._peer.failure is None:
            self._peer.out.append(record)
            self._submitted()

    def _submitted(self) -> None:
        """See that what was queued goes out: at once when a batch is full, else at the end of this turn of the loop."""
        if len(self._peer.out) >= BATCH:
            self._send_all()
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._closed:
            self._pump()

    def _pump(self) -> None:
        """Send what is queued and take what has come, up to a bound; the descriptor is edge-triggered, so look until nothing is there."""
        peer = self._peer
        for _ in range(_TURN):
            self._send_all()
            frames = receive(self._socket, 2)
            if frames is None:
                break
            peer.receive(frames)
        else:
            self._schedule()
        if peer.ready or peer.failure is not None:
            self._welcomed.set()
        while self._waiting and peer.failure is None:
            future, record, blobs = self._waiting[0]
            lane = future.lane
            if lane.tasks >= peer.window_tasks or lane.size >= peer.window_bytes:
                break
            self._waiting.popleft()
            if not (isinstance(future, AsyncFuture) and future.done()):
                self._admit(future, record, blobs)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _send_all(self) -> bool:
        peer = self._peer
        while (frames := peer.take()) is not None:
            if send(self._socket, frames) is not Sent.OK:
                peer.untake(frames)
                self._loop.call_later(0.005, self._flush)
                return False
        return True


class AsyncStream:
    """Iterates with ``async for`` over parts as they come; ``aclose()``, or leaving an ``async with`` block, ends it early."""

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
    """What is published under a topic, without end. ``missed`` counts events that were no longer kept when this reader came for them."""

    @property
    def missed(self) -> int:
        """Events lost to this reader so far."""
        return self._parts.missed


class aconnect:  # noqa: N801  # it is called like a function, awaited or entered
    """Connect to a mesh: ``bus = await aconnect()``, or ``async with aconnect() as bus``. Arguments and errors as :func:`omnibus.connect`."""

    def __init__(self, address: str | None = None, *, timeout: float = 10.0, insecure: bool = False, **embedded: Any) -> None:
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
            raise UsageError(f"{', '.join(self._embedded)}: only an embedded mesh is sized by aconnect(); {target.source} names one that runs")
        bus = AsyncBus(target, mesh=mesh)
        try:
            await bus._open(self._timeout)
        except BaseException:
            await bus.close(0)
            raise
        if mesh is not None:
            mesh.show_output(bus)
        return bus

    def __await__(self) -> Any:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncBus:
        self._bus = await self._connect()
        return self._bus

    async def __aexit__(self, *_: object) -> None:
        assert self._bus is not None
        await self._bus.close()
