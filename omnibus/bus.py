"""``Bus``: the synchronous face of a mesh, safe to use from many threads."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from omnibus.address import Target
from omnibus.driver import FORKED, Driver
from omnibus.errors import ForkedError
from omnibus.face import Face, fetch_head, not_embedded
from omnibus.futures import Future
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.options import Options
from omnibus.peer import Lane
from omnibus.protocol import INLINE, Blob, Verb
from omnibus.refs import ActorRef
from omnibus.requests import Make, Requester
from omnibus.rundir import resolve
from omnibus.streams import STREAM_CREDIT, SUBSCRIPTION_CREDIT, Parts, Stream, StreamEnd, Subscription

__all__ = ["Bus", "Submitter", "connect"]

R = TypeVar("R")
_buses: weakref.WeakSet[Bus] = weakref.WeakSet()


def connect(address: str | None = None, *, timeout: float = 10.0, insecure: bool = False, **embedded: Any) -> Bus:
    """Return a bus to a mesh.

    That is the one at ``address``, else at ``$OMNIBUS_ADDRESS``, else the run file's, else one embedded in this
    process. ``embedded`` sizes an embedded mesh: ``workers``, ``cpus``, ``gpus``, ``memory``, ``preload``. Close the
    bus, or use it as a context manager.

    Raises :class:`omnibus.ConnectTimeout` with the address when nobody answers within ``timeout`` seconds,
    :class:`omnibus.Unauthorized` without the mesh's key, :class:`omnibus.UsageError` for a malformed address.
    """
    target = resolve(address, insecure=insecure)
    if target is None:
        from omnibus.embedded import EmbeddedMesh

        mesh = EmbeddedMesh.start(timeout=timeout, **embedded)
        try:
            bus = Bus(mesh.target, timeout=timeout, mesh=mesh)
        except BaseException:
            mesh.stop()
            raise
        mesh.show_output(bus._peer, bus._driver.submitted)
        return bus
    if embedded:
        raise not_embedded(embedded, target)
    return Bus(target, timeout=timeout)


class Submitter(Requester):
    """Submits work with one set of options; ``bus.options(...)`` returns one."""

    def __init__(self, bus: Bus, options: Options) -> None:
        super().__init__(bus._peer, bus._kinds, options, code=bus._code)
        self._bus = bus
        self._driver = bus._driver

    def submit(self, fn: Callable[..., R] | str, /, *args: Any, **kwargs: Any) -> Future[R]:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return the future of its result.

        ``fn`` is a callable, or ``"package.module:function"``. It is pickled once and kept by identity, so what it
        refers to should not change between submissions. Arguments are copied before this returns, but for large
        tensors and buffers: leave those alone until the future is done. Waits while the lane's window of unfinished
        work is full.

        Raises :class:`omnibus.NotPicklable` for what cannot be sent, and why nothing can be sent any more once the
        bus is closed or lost.
        """
        return self._submit(fn, args, kwargs)  # type: ignore[no-any-return]

    def map(self, fn: Callable[..., R] | str, *iterables: Iterable[Any], window: int = 4096) -> Iterator[R]:
        """Yield ``fn``'s results for the items, in their order; at most ``window`` are under way at a time.

        An item that failed raises where its result would have come; leaving the iterator cancels what is left.
        """
        waiting: deque[Future[R]] = deque()
        try:
            for args in zip(*iterables, strict=False):
                waiting.append(self.submit(fn, *args))
                if len(waiting) >= window:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
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
        if lane is None:
            lane = self._lane
            if lane.tasks >= peer.window_tasks or lane.size >= peer.window_bytes:
                self._driver.make_room(lane)
        seq = peer.next_seq()
        future: Any = Future(self._driver, seq) if make is None else make(seq)
        future.lane = lane
        lane.tasks += 1
        peer.pending[seq] = future
        size = len(body) if body else 0
        if blobs or size >= INLINE:
            future.size = size + sum(memoryview(blob).nbytes for blob in blobs)
            lane.size += future.size
            peer.request([verb, seq, head, body, 0], blobs)
        else:
            future.size = size
            lane.size += size
            peer.out.append([verb, seq, head, body, 0])
        if peer.failure is not None:
            self._bus._refuse(seq)
        self._driver.submitted()
        return future


class Bus(Face[Submitter]):
    """A session with a mesh, made by :func:`connect`.

    Its methods may be called from any thread. Closing it ends what is unfinished.
    """

    def __init__(self, target: Target, *, timeout: float = 10.0, mesh: Any = None) -> None:
        super().__init__(target, lambda options: Submitter(self, options))
        self._mesh = mesh
        self._context = make_context()
        socket = make_dealer(self._context, target)
        self._driver = Driver(self._peer, socket, LinkWatch(socket), target.address, lends=bool(self.within))
        try:
            self._driver.start(timeout)
        except BaseException:
            self._driver.close(0)
            self._context.term()
            raise
        self._begin()
        self.submit = self._default.submit
        self.map = self._default.map
        _buses.add(self)

    # ------------------------------------------------------------------ actors

    def spawn(self, cls: Any, /, *args: Any, name: str | None = None, **kwargs: Any) -> ActorRef:
        """Start an actor, ``cls(*args, **kwargs)`` in a process of its own, and return its handle once it is ready.

        ``name`` makes it known to all and lets it outlive this session, until ``ref.stop()``; without one it ends
        with this bus. Of ``kwargs``, ``cpus``, ``gpus``, ``memory``, ``labels``, ``mailbox``, ``concurrency``,
        ``env`` and ``restart`` are options, the rest is the class's.

        Raises :class:`omnibus.SetupFailed` where making it or its ``setup`` raised, :class:`omnibus.AlreadyExists`
        where the name is taken, :class:`omnibus.CapacityExceeded` where no node has room.
        """
        name, ready = self._default.spawn(cls, args, kwargs, name)
        ready.result()
        return ActorRef(self, name)

    def _stream(self, start: Callable[[Make], Any]) -> Stream:
        def make(seq: int) -> StreamEnd:
            return StreamEnd(Parts(self._peer, seq, STREAM_CREDIT, self._driver.submitted))

        return Stream(start(make).parts, lambda seq: Future(self._driver, seq))

    # ------------------------------------------------------------------ topics

    def subscribe(self, topic: str, since: int | None = None) -> Subscription:
        """Return an iterator over what is published under ``topic``.

        It begins with what comes next, or with number ``since`` as far as that is kept. When this returns, nothing
        published from then on is missed.
        """
        made: list[Parts] = []

        def make(seq: int) -> Future[Any]:
            made.append(Parts(self._peer, seq, SUBSCRIPTION_CREDIT, self._driver.submitted))
            made[0].open()
            return Future(self._driver, seq)

        self._default.follow(topic, since, make).result()
        return Subscription(topic, made[0], lambda seq: Future(self._driver, seq))

    # ------------------------------------------------------------------ the mesh

    def status(self) -> dict[str, Any]:
        """Return the state of the mesh as a plain dict: broker, nodes, workers, actors, lanes, tasks."""
        return self._default.ask_broker(Verb.STATUS, None).result()  # type: ignore[no-any-return]

    def fetch(self, task: str) -> Any:
        """Return the result of a detached task by its id, or raise how it ended.

        Raises :class:`omnibus.NotFound` where no such result is kept, :class:`omnibus.TaskError` while it has not
        ended.
        """
        return self._default.ask_broker(Verb.FETCH, fetch_head(task)).result()

    def close(self, timeout: float = 5.0) -> int:
        """End the session, and return how many requests were unfinished; those end in :class:`omnibus.BusClosed`.

        Takes ``timeout`` seconds at most; an embedded mesh ends too. Closing twice does nothing.
        """
        _buses.discard(self)
        if self._driver.closed or not self._driver.mine:
            return 0
        self._driver._refuse_inside()
        unfinished = self._peer.stop()
        if self._mesh is not None:
            self._mesh.stop_node()
            self._driver.sync(timeout)
        self._driver.close(timeout)
        if not self._context.closed and self._driver.mine:
            self._context.term()
        if self._mesh is not None and self._driver.mine:
            self._mesh.stop()
        return unfinished

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._driver.closed else "lost" if self._peer.failure is not None else "open"
        return f"<Bus {state} {self.address}>"

    def _finish(self, future: Future[Any]) -> Any:
        return future.result()

    def _refuse(self, seq: int) -> None:
        """End a request that came too late, in the session's failure, and raise that."""
        failure = self._peer.failure
        assert failure is not None
        self._peer._end(seq)
        raise failure


def _forked() -> None:
    error = ForkedError(FORKED)
    for bus in _buses:
        bus._peer.failure = error


os.register_at_fork(after_in_child=_forked)
