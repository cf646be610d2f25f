"""Who drives an ``AsyncBus``'s socket: its event loop, by the socket's descriptor, without ``zmq.asyncio``.

Requests that one turn of the loop makes go out together at its end, a full batch at once. The descriptor is
edge-triggered, so a turn looks until nothing is there; a turn is bounded, so that others on the loop have theirs.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from omnibus.errors import ConnectTimeout, Unreachable
from omnibus.handshake import watch_broker
from omnibus.linkwatch import LinkWatch
from omnibus.peer import ClientPeer
from omnibus.protocol import BATCH, INLINE, Blob, Record, Verb
from omnibus.sockets import Sent, descriptor, receive, send

__all__ = ["AsyncDriver"]

_TURN = 32
"""Messages taken in one turn of the loop."""
_FULL_RETRY = 0.005
_LINK_GRACE = 30.0


class AsyncDriver:
    """Moves messages between one :class:`ClientPeer` and one DEALER, on a running loop."""

    def __init__(self, peer: ClientPeer, socket: zmq.Socket[bytes], watch: LinkWatch, address: str) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._socket = socket
        self._watch = watch
        self._address = address
        self._fd = descriptor(socket)
        self._monitor_fd = descriptor(watch.monitor)
        self._broker_fd: int | None = None
        self._welcomed = asyncio.Event()
        self._waiting: deque[tuple[Any, Record, Sequence[Blob]]] = deque()
        self._scheduled = False
        self._lost = False

    # ------------------------------------------------------------------ start and end

    async def open(self, timeout: float) -> None:
        """Greet the broker and wait for its welcome.

        Raises :class:`ConnectTimeout` with the address, and why where that is known; or the broker's refusal.
        """
        self.loop.add_reader(self._fd, self._pump)
        self.loop.add_reader(self._monitor_fd, self._observe)
        self._observe()  # its descriptor is edge-triggered: what came before is not told again
        self._pump()
        try:
            await asyncio.wait_for(self._welcomed.wait(), timeout)
        except TimeoutError:
            refused = self._watch.last
            why = f": {refused.why}" if refused is not None else ""
            raise ConnectTimeout(f"no answer from {self._address} within {timeout:g} s{why}") from None
        if self.peer.failure is not None:
            raise self.peer.failure
        self._broker_fd = watch_broker(self.peer.welcome)
        if self._broker_fd is not None:
            self.loop.add_reader(self._broker_fd, self._broker_ended)

    def _broker_ended(self) -> None:
        self._pump()
        self._forget_broker()
        self._fail(Unreachable(f"the broker at {self._address} ended"))

    def _observe(self) -> None:
        for event in self._watch.events():
            if event.what == "up" and self._lost:
                self._lost = False
                self.peer.greet()
                self._schedule()
            elif event.what == "down":
                self._lost = True
                self.loop.call_later(_LINK_GRACE, self._give_up)
        last = self._watch.last
        if last is not None and last.what == "refused" and not self.peer.ready:
            self._fail(ConnectTimeout(f"{self._address} refused this link: {last.why}"))

    def _give_up(self) -> None:
        if self._lost and not self.closed:
            self._fail(Unreachable(f"the link to {self._address} broke and did not come back within {_LINK_GRACE:g} s"))

    def _fail(self, error: BaseException) -> None:
        self.peer.fail(error)
        while self._waiting:
            self._waiting.popleft()[0].set_exception(error)
        self._welcomed.set()

    async def sync(self, future: asyncio.Future[Any], seq: int, timeout: float) -> None:
        """Wait until all that the broker had to say up to now has arrived; ``future`` takes the answer."""
        self.peer.pending[seq] = future  # type: ignore[assignment]
        self.peer.out.append([Verb.PING, seq, None, None, 0])
        self.submitted()
        if self.peer.ready:
            await asyncio.wait([future], timeout=timeout)

    async def close(self, timeout: float) -> int:
        """Send what is queued and a BYE, and let go of the socket, all within ``timeout`` seconds.

        Returns how many requests were unfinished.
        """
        self.closed = True
        waiting, self._waiting = self._waiting, deque()
        unfinished = self.peer.close() + len(waiting)
        for future, _, _ in waiting:
            future.set_exception(self.peer.failure)
        deadline = self.loop.time() + timeout
        while self.peer.unsent and self.peer.ready and not self._send_all() and self.loop.time() < deadline:
            await asyncio.sleep(_FULL_RETRY)
        for fd in (self._fd, self._monitor_fd):
            self.loop.remove_reader(fd)
        self._forget_broker()
        self._watch.close()
        self._socket.close(linger=int(max(0.0, deadline - self.loop.time()) * 1000))
        return unfinished

    def _forget_broker(self) -> None:
        if self._broker_fd is not None:
            self.loop.remove_reader(self._broker_fd)
            os.close(self._broker_fd)
            self._broker_fd = None

    # ------------------------------------------------------------------ requests

    def begin(self, future: Any, record: Record, blobs: Sequence[Blob]) -> None:
        """Send a request, or keep it until those before it were sent and its lane has room."""
        if future.lane is not self.peer.control and (self._waiting or not self._has_room(future)):
            self._waiting.append((future, record, blobs))
        else:
            self._admit(future, record, blobs)

    def _has_room(self, future: Any) -> bool:
        lane, peer = future.lane, self.peer
        return bool(lane.tasks < peer.window_tasks and lane.size < peer.window_bytes)

    def _admit(self, future: Any, record: Record, blobs: Sequence[Blob]) -> None:
        peer = self.peer
        lane = future.lane
        lane.tasks += 1
        lane.size += future.size
        peer.pending[record[1]] = future
        if blobs or future.size >= INLINE:
            peer.request(record, blobs)
        else:
            peer.out.append(record)
        self.submitted()

    def submitted(self) -> None:
        """Learn that something was appended to the peer's ``out``; see that it is sent."""
        if len(self.peer.out) >= BATCH:
            self._send_all()
        self._schedule()

    def post(self, record: Record) -> None:
        """Send a record that has no answer, if anything can be sent."""
        if self.peer.failure is None:
            self.peer.out.append(record)
            self.submitted()

    # ------------------------------------------------------------------ the socket

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self.closed:
            self._pump()

    def _pump(self) -> None:
        """Send what is queued, take what has come, and let in what waits for room."""
        peer = self.peer
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
        while self._waiting and peer.failure is None and self._has_room(self._waiting[0][0]):
            future, record, blobs = self._waiting.popleft()
            if not (isinstance(future, asyncio.Future) and future.done()):
                self._admit(future, record, blobs)

    def _send_all(self) -> bool:
        """Send what is queued while the socket takes it; return whether all went."""
        peer = self.peer
        while (frames := peer.take()) is not None:
            if send(self._socket, frames) is not Sent.OK:
                peer.untake(frames)
                self.loop.call_later(_FULL_RETRY, self._flush)
                return False
        return True
