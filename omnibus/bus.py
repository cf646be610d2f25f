"""``Bus``: the synchronous face of a mesh, safe to use from many threads."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from omnibus.driver import Driver
from omnibus.errors import CapacityExceeded, ForkedError, UsageError
from omnibus.functions import is_stable, ship
from omnibus.futures import Future
from omnibus.handshake import describe, new_session
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.options import Options
from omnibus.payload import encode_call
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import INLINE, Verb
from omnibus.rundir import resolve

__all__ = ["Bus", "Submitter", "connect"]

R = TypeVar("R")
_SUBMIT = int(Verb.SUBMIT)
_KINDS = 1024
_buses: weakref.WeakSet[Bus] = weakref.WeakSet()


def connect(address: str | None = None, *, timeout: float = 10.0, insecure: bool = False, **embedded: Any) -> Bus:
    """Return a bus to a mesh: at ``address``, else at ``$OMNIBUS_ADDRESS``, else the run file's, else one embedded in this process.

    ``embedded`` sizes an embedded mesh: ``workers``, ``cpus``, ``gpus``, ``memory``, ``preload``. Close the bus, or use it as a context manager.

    Raises :class:`omnibus.ConnectTimeout` with the address when nobody answers within ``timeout`` seconds,
    :class:`omnibus.Unauthorized` without the mesh's key, :class:`omnibus.UsageError` for a malformed address.
    """
    target = resolve(address, insecure=insecure)
    if target is None:
        from omnibus.embedded import EmbeddedMesh

        mesh = EmbeddedMesh.start(timeout=timeout, **embedded)
        try:
            return Bus(mesh.target, timeout=timeout, mesh=mesh)
        except BaseException:
            mesh.stop()
            raise
    if embedded:
        raise UsageError(f"{', '.join(embedded)}: only an embedded mesh is sized by connect(), and {target.source} names one that runs")
    return Bus(target, timeout=timeout)


class Submitter:
    """Submits work with one set of options. ``bus.options(...)`` returns one."""

    def __init__(self, bus: Bus, options: Options) -> None:
        self._bus = bus
        self._options = options
        self._peer = bus._peer
        self._driver = bus._driver
        self._lane: Lane = bus._peer.lane(options.priority)
        self._kinds: dict[Any, int] = {}
        self._code = bus._code

    def submit(self, fn: Callable[..., R] | str, /, *args: Any, **kwargs: Any) -> Future[R]:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return the future of its result.

        ``fn`` is a callable, or ``"package.module:function"``. It is pickled once and kept by identity, so what it refers to should not change
        between submissions. Arguments are copied before this returns, but for large tensors and buffers: leave those alone until the future is done.
        Waits while the lane's window of unfinished work is full.

        Raises :class:`omnibus.NotPicklable` for what cannot be sent, and why nothing can be sent any more once the bus is closed or lost.
        """
        try:
            kind = self._kinds[fn]
        except (KeyError, TypeError):
            kind = self._declare(fn)
        body, blobs = encode_call(args, kwargs, code=self._code)
        peer = self._peer
        lane = self._lane
        if lane.tasks >= peer.window_tasks or lane.size >= peer.window_bytes:
            self._driver.make_room(lane)
        seq = peer.next_seq()
        future: Future[R] = Future(self._driver, seq)
        future.lane = lane
        lane.tasks += 1
        peer.pending[seq] = future
        if blobs or len(body) >= INLINE:
            future.size = len(body) + sum(memoryview(blob).nbytes for blob in blobs)
            lane.size += future.size
            peer.request([_SUBMIT, seq, kind, body, 0], blobs)
        else:
            peer.out.append([_SUBMIT, seq, kind, body, 0])
        if peer.failure is not None:
            self._bus._refuse(seq)
        self._driver.submitted()
        return future

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

    def _declare(self, fn: Callable[..., Any] | str) -> int:
        """Return the number of the kind that ``fn`` and these options make, declared on first use."""
        shipped = ship(fn, code=self._code)
        key = fn if is_stable(fn) else shipped.digest
        kind = self._kinds.get(key)
        if kind is None:
            head = self._options.wire()
            head |= {"code": shipped.digest} if shipped.pickle is not None else {"fn": shipped.name}
            kind = self._bus._define(head, shipped.pickle)
            self._kinds[key] = kind
        return kind


class Bus:
    """A session with a mesh.

    Made by :func:`connect`. Its methods may be called from any thread. Closing it ends what is unfinished.
    """

    def __init__(self, target: Any, *, timeout: float = 10.0, mesh: Any = None) -> None:
        self._mesh = mesh
        self._target = target
        self._code = not target.parsed().is_tcp or target.key is not None
        self._context = make_context()
        self._peer = ClientPeer(describe("client", new_session(), code=self._code), code=self._code)
        watched: list[LinkWatch] = []
        socket = make_dealer(self._context, target)
        watched.append(LinkWatch(socket))
        self._driver = Driver(self._peer, socket, watched[0], target.address)
        self._default = Submitter(self, Options())
        self._submitters: dict[Any, Submitter] = {}
        self._last_kind = 0
        try:
            self._driver.start(timeout)
        except BaseException:
            self._driver.close(0)
            self._context.term()
            raise
        self.submit = self._default.submit
        self.map = self._default.map
        _buses.add(self)

    def options(self, **given: Any) -> Submitter:
        """Return a submitter with these options; see :class:`omnibus.options.Options` for their names and meaning."""
        key = tuple(sorted((name, repr(value)) for name, value in given.items()))
        found = self._submitters.get(key)
        if found is None:
            found = self._submitters[key] = Submitter(self, Options.make(given))
        return found

    def close(self, timeout: float = 5.0) -> int:
        """End the session: send what is queued, end what is unfinished in :class:`omnibus.BusClosed`, return how much that was.

        Takes ``timeout`` seconds at most; an embedded mesh ends too. Closing twice does nothing.
        """
        _buses.discard(self)
        unfinished = self._driver.close(timeout)
        if not self._context.closed:
            self._context.term()
        if self._mesh is not None:
            self._mesh.stop()
        return unfinished

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _define(self, head: dict[str, Any], code: bytes | None) -> int:
        self._last_kind += 1
        self._peer.request([Verb.DEFINE, self._last_kind, head, code, 0], ())
        return self._last_kind

    def _refuse(self, seq: int) -> None:
        """End a request that came too late, in the session's failure, and raise that."""
        failure = self._peer.failure
        assert failure is not None
        self._peer._end(seq)
        raise failure


def _forked() -> None:
    error = ForkedError("this bus was made before os.fork(), and a child must not use its sockets: call connect() in the child")
    for bus in _buses:
        bus._peer.failure = error


os.register_at_fork(after_in_child=_forked)
