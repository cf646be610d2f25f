"""The broker's shell: a ROUTER socket, a clock, and one loop around the core.

Poll until the core's deadline; drain what came, up to a bound; let the core advance; send what it says; report what
could not be sent. The socket never blocks: a peer whose queue is full gets its messages later, from a list of its
own.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque

import zmq

from omnibus.hostid import host_key
from omnibus.protocol import Blob
from omnibus.sockets import Sent, descriptor, receive, send

from .auth import Authenticator
from .core import Broker, Event

__all__ = ["Shell"]

_log = logging.getLogger(__name__)
_DRAIN = 64
_RETRY = 0.01
_STALLED_BYTES = 1 << 30


class Shell:
    """Runs a :class:`Broker` on a bound ROUTER socket until :meth:`stop` or the end of its owner.

    ``wake`` is a file descriptor that becomes readable when a signal came (``signal.set_wakeup_fd``); ``owner`` a
    pidfd whose process takes this broker with it when it ends.
    """

    def __init__(
        self,
        core: Broker,
        router: zmq.Socket[bytes],
        *,
        authenticator: Authenticator | None = None,
        wake: int | None = None,
        owner: int | None = None,
    ) -> None:
        self._core = core
        self._router = router
        self._authenticator = authenticator
        self._wake = wake
        self._owner = owner
        self._running = True
        self._host = host_key()
        self._stalled: dict[bytes, deque[list[Blob]]] = {}
        self._stalled_bytes: dict[bytes, int] = {}
        self._pidfds: dict[int, bytes] = {}
        self._watched: dict[bytes, int] = {}
        self._poll = select.poll()
        self._router_fd = descriptor(router)
        self._zap_fd = descriptor(authenticator.socket) if authenticator is not None else None
        for fd in (self._router_fd, self._zap_fd, wake, owner):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    def stop(self) -> None:
        """End the loop after this turn."""
        self._running = False

    def run(self) -> None:
        """Serve until stopped.

        The socket's descriptor is edge-triggered, and sending may swallow an edge: a turn therefore begins by asking
        the socket itself, and only when nothing is there does the loop wait for the descriptor.
        """
        core = self._core
        poll = self._poll.poll
        while self._running:
            now = time.monotonic()
            if self._turn(now):
                continue
            deadline = core.next_deadline()
            if self._stalled:
                deadline = min(deadline, now + _RETRY)
            ready = poll(max(0.0, (deadline - time.monotonic()) * 1000 + 1))
            if ready and (len(ready) > 1 or ready[0][0] != self._router_fd):
                self._other(ready, time.monotonic())
        for fd in self._watched.values():
            os.close(fd)

    def _turn(self, now: float) -> bool:
        """Take what came, let the core work, send what it says; return whether there may be more."""
        core = self._core
        received = 0
        while received < _DRAIN:
            frames = receive(self._router, 4)
            if frames is None:
                break
            received += 1
            core.receive(frames[0], frames[1:], now)
        if not received and now < core.next_deadline() and not self._stalled and not core.pending():
            return False
        core.advance(now)
        for event in core.events():
            self._note(event, now)
        if self._stalled:
            self._retry(now)
        for route, frames in core.output():
            self._send(route, frames, now)
        return received > 0

    def _send(self, route: bytes, frames: list[Blob], now: float) -> None:
        waiting = self._stalled.get(route)
        if waiting is not None:
            waiting.append(frames)
            self._stalled_bytes[route] += sum(map(len, frames))
            if self._stalled_bytes[route] > _STALLED_BYTES:
                del self._stalled[route], self._stalled_bytes[route]
                _log.warning("peer takes nothing and is given up", extra={"route": route.hex()})
                self._core.send_failed(route, now)
            return
        sent = send(self._router, [route, *frames])
        if sent is Sent.FULL:
            self._stalled[route] = deque([frames])
            self._stalled_bytes[route] = sum(map(len, frames))
        elif sent is Sent.GONE:
            self._core.send_failed(route, now)

    def _retry(self, now: float) -> None:
        """Try the peers whose queues were full once more."""
        for route, waiting in list(self._stalled.items()):
            while waiting:
                sent = send(self._router, [route, *waiting[0]])
                if sent is Sent.FULL:
                    break
                self._stalled_bytes[route] -= sum(map(len, waiting.popleft()))
                if sent is Sent.GONE:
                    waiting.clear()
                    self._core.send_failed(route, now)
            if not waiting:
                del self._stalled[route], self._stalled_bytes[route]

    def _other(self, ready: list[tuple[int, int]], now: float) -> None:
        """Deal with what is no message: signals, the owner's end, authentication, a local peer's death."""
        for source, _ in ready:
            if source == self._wake:
                os.read(self._wake or 0, 4096)
                self.stop()
            elif source == self._owner:
                _log.info("owner ended")
                self.stop()
            elif source in self._pidfds:
                self._bury(source, now)
            elif source == self._zap_fd and self._authenticator is not None:
                self._authenticator.handle()

    def _note(self, event: Event, now: float) -> None:
        """Log an event; watch the process of a peer that lives on this host, forget that of one that left."""
        _log.log(
            logging.WARNING if event.what == "refused" else logging.INFO,
            "peer %s",
            event.what,
            extra={"peer": event.peer, "detail": event.detail},
        )
        if event.what == "joined" and event.pid and event.boot == self._host and event.session not in self._watched:
            try:
                fd = os.pidfd_open(event.pid)
            except ProcessLookupError:
                self._core.peer_died(event.session, now, "its process ended")
                return
            except OSError:
                return
            self._pidfds[fd] = event.session
            self._watched[event.session] = fd
            self._poll.register(fd, select.POLLIN)
        elif event.what == "left" and event.session in self._watched:
            self._forget(self._watched[event.session])

    def _bury(self, fd: int, now: float) -> None:
        session = self._pidfds[fd]
        self._forget(fd)
        self._core.peer_died(session, now, "its process ended")

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._watched[self._pidfds.pop(fd)]
        os.close(fd)
