"""A worker's or an actor's DEALER on an asyncio loop, by the socket's descriptor, without ``zmq.asyncio``.

The descriptor is edge-triggered, and any use of the socket may swallow an edge: a turn goes on until nothing is there
to be received and nothing to be sent. It is bounded, so that others on the loop have theirs.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from omnibus.errors import ConnectTimeout, OmnibusError, ProtocolError, Unreachable, by_name
from omnibus.handshake import watch_broker
from omnibus.linkwatch import LinkWatch
from omnibus.protocol import Blob
from omnibus.sockets import Sent, descriptor, receive, send

from .inbox import Inbox

__all__ = ["AsyncLink"]

_TURN: Final = 32
"""Messages taken in one turn of the loop."""
_FULL_RETRY: Final = 0.005
_PATIENCE: Final = 2.0
_WELCOMED, _PARTED = 1, 2
"""Numbers of PINGs."""
_GRACE: Final = 30.0
"""Seconds that a broken link may take to come back."""


class AsyncLink:
    """Moves messages between one :class:`Inbox` and one DEALER, on the running loop.

    ``address`` is where the broker is; given, its end is watched for. ``before`` is called before anything is sent.
    ``ended`` is done when the inbox is to stop; its exception is what went wrong.
    """

    def __init__(
        self,
        inbox: Inbox,
        socket: Any,
        watch: LinkWatch | None = None,
        *,
        address: str = "",
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._inbox = inbox
        self._socket = socket
        self._watch = watch
        self._address = address
        self._before = before
        self._heed: Callable[[], None] = lambda: None
        self._unsent: deque[list[Blob]] = deque()
        self._scheduled = False
        self._open = False
        self._broken = False
        self._retry: asyncio.TimerHandle | None = None
        self._lost: asyncio.TimerHandle | None = None
        self._broker_fd: int | None = None
        self._awaited: tuple[Callable[[], bool], asyncio.Future[None]] | None = None

    def open(self, heed: Callable[[], None]) -> None:
        """Begin; ``heed`` is called after whatever came."""
        self._heed = heed
        self._open = True
        self.loop.add_reader(descriptor(self._socket), self.pump)
        if self._watch is not None:
            self.loop.add_reader(descriptor(self._watch.monitor), self._observe)
            self._observe()  # it is edge-triggered too, and an edge may have gone by
        self.pump()

    async def welcome(self, timeout: float) -> bool:
        """Wait until the broker has let this session in, or refused it; return whether it did in time.

        A name that is taken is said after the WELCOME, so that one is not the last word: the answer to a PING is.
        """
        inbox, deadline = self._inbox, self.loop.time() + timeout
        answered = await self._until(lambda: inbox.ready or self.ended.done(), timeout)
        self._watch_broker()
        if not answered or self.ended.done():
            return answered
        inbox.ping(_WELCOMED)
        self.flush()
        return await self._until(lambda: inbox.heard == _WELCOMED or self.ended.done(), deadline - self.loop.time())

    async def part(self, timeout: float) -> None:
        """Say BYE, and wait until the broker has heard it: until then the actor's name is not free."""
        inbox = self._inbox
        inbox.bye()
        await self.drain()
        inbox.ping(_PARTED)
        self.flush()
        await self._until(lambda: inbox.parted, timeout)

    async def _until(self, came: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``came`` says so, which is asked after each turn; return whether it did in time."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._awaited = came, waiter
        self._look()
        await asyncio.wait([waiter], timeout=timeout)
        self._awaited = None
        return waiter.done()

    async def drain(self) -> None:
        """Wait until all was sent, or the socket has taken nothing for a while."""
        deadline = self.loop.time() + _PATIENCE
        self._send_all()
        while self._unsent and self.loop.time() < deadline:
            await asyncio.sleep(_FULL_RETRY)
            self._send_all()

    def close(self) -> None:
        """Leave the loop alone; the socket is the caller's to close."""
        if not self._open:
            return
        self._open = False
        self.loop.remove_reader(descriptor(self._socket))
        if self._watch is not None:
            self.loop.remove_reader(descriptor(self._watch.monitor))
        for timer in (self._retry, self._lost):
            if timer is not None:
                timer.cancel()
        if not self.ended.done():
            self.ended.cancel()
        self._forget_broker()

    def stop(self) -> None:
        """Have the inbox stop."""
        self._inbox.stopping = True
        self.post()

    def fail(self, error: OmnibusError) -> None:
        """Stop, because of ``error``."""
        self._inbox.stopping = True
        if not self.ended.done():
            self.ended.set_exception(error)
        self._look()

    # ------------------------------------------------------------------ messages

    def post(self) -> None:
        """Have a turn soon: there may be something to send, or to begin."""
        if not self._scheduled and self._open:
            self._scheduled = True
            self.loop.call_soon(self.pump)

    def flush(self) -> None:
        """Send what the inbox has to say, now."""
        if self._send_all():
            self.post()

    def look(self) -> None:
        """Take what has come, and do nothing about it yet: for code that keeps the loop from turning."""
        while self._open and (frames := receive(self._socket, 2)) is not None:
            self._inbox.receive(frames)
        self.post()

    def pump(self) -> None:
        """Take what has come, have it heeded, and send what there is to say, until nothing is left of either."""
        self._scheduled = False
        if not self._open:
            return
        try:
            self._turn()
        except OmnibusError as error:
            self.fail(error)
        except Exception as error:
            self.fail(ProtocolError(f"the broker sent a record that makes no sense: {error!r:.200}"))
        self._look()

    def _turn(self) -> None:
        for _ in range(_TURN):
            frames = receive(self._socket, 2)
            if frames is not None:
                self._inbox.receive(frames)
                continue
            self._heed()
            if not self._send_all():
                return
        self.post()

    def _look(self) -> None:
        """Tell those who wait for something to come, or for the end."""
        self._look_for_end()
        if self._awaited is not None:
            came, waiter = self._awaited
            if came() and not waiter.done():
                waiter.set_result(None)

    def _look_for_end(self) -> None:
        inbox = self._inbox
        if not inbox.stopping or self.ended.done():
            return
        if inbox.refusal is not None:
            error = by_name(str(inbox.refusal.get("error")))
            self.ended.set_exception(error(str(inbox.refusal.get("message"))))
        elif inbox.parted:
            self.ended.set_exception(Unreachable("the broker was stopped"))
        else:
            self.ended.set_result(None)

    def _send_all(self) -> bool:
        """Send while the socket takes it; return whether anything went."""
        unsent = self._unsent
        unsent.extend(self._inbox.take())
        if unsent:
            self._before()
        sent = False
        while unsent:
            if send(self._socket, unsent[0]) is not Sent.OK:
                if self._retry is None or self._retry.when() <= self.loop.time():
                    self._retry = self.loop.call_later(_FULL_RETRY, self.pump)
                return sent
            unsent.popleft()
            sent = True
        return sent

    # ------------------------------------------------------------------ the link

    def _observe(self) -> None:
        """Say HELLO anew over a link that is new; give up one that does not come back."""
        assert self._watch is not None
        for event in self._watch.events():
            if event.what == "up" and self._broken:
                self._broken = False
                if self._lost is not None:
                    self._lost.cancel()
                self._inbox.greet()
                self.post()
            elif event.what == "down" and not self._broken:
                self._broken = True
                if self._address:
                    why = f"the link to {self._address} broke and did not come back within {_GRACE:g} s"
                    self._lost = self.loop.call_later(_GRACE, self.fail, Unreachable(why))

        last = self._watch.last
        if last is not None and last.what == "refused" and not self._inbox.welcome:
            self.fail(ConnectTimeout(f"{self._address} refused this link: {last.why}"))

    def _watch_broker(self) -> None:
        """Have the broker's death seen at once where it runs on this host."""
        self._broker_fd = watch_broker(self._inbox.welcome) if self._address else None
        if self._broker_fd is not None:
            self.loop.add_reader(self._broker_fd, self._broker_ended)

    def _broker_ended(self) -> None:
        self.pump()
        self._forget_broker()
        self.fail(Unreachable(f"the broker at {self._address} ended"))

    def _forget_broker(self) -> None:
        if self._broker_fd is not None:
            self.loop.remove_reader(self._broker_fd)
            os.close(self._broker_fd)
            self._broker_fd = None
