"""Who drives a client's socket: the thread that waits, where there is one.

A hand-over to an I/O thread costs a wake-up each way, so a thread that waits for a result takes the lock, and sends
and receives by itself (the *leader*); others that wait meanwhile are told by it. A thread that submits sends its own
full batches. A background thread sees to what is left: answers that nobody waits for, and requests that were queued
while nobody drove. It stands by while others drive, and looks again every few milliseconds.

The socket is used under the lock only. Its file descriptor is edge-triggered, and any use of the socket may swallow
the edge: whoever used it therefore receives until nothing is left before letting go.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any

import zmq

from omnibus.errors import ConnectTimeout, ForkedError, Unreachable, UsageError
from omnibus.futures import Future
from omnibus.handshake import watch_broker
from omnibus.linkwatch import LinkWatch
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import BATCH, Verb
from omnibus.sockets import Sent, descriptor, receive, send

__all__ = ["FORKED", "Driver"]

FORKED = "this bus was made before os.fork(), and a child must not use its sockets: call connect() in the child"
_STAND_BY_MS = 2
_LINK_GRACE = 30.0
_PATIENCE = 0.002


class Driver:
    """Moves messages between one :class:`ClientPeer` and one DEALER, for threads."""

    def __init__(
        self, peer: ClientPeer, socket: zmq.Socket[bytes], watch: LinkWatch, address: str, *, lends: bool = False
    ) -> None:
        self.peer = peer
        self.lock = threading.Lock()
        self.closed = False
        self._socket = socket
        self._watch = watch
        self._address = address
        self._pid = os.getpid()
        self._lends = lends
        self._kick_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rouse_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._fd = descriptor(socket)
        self._monitor_fd = descriptor(watch.monitor)
        self._broker_fd: int | None = None
        self._leading = select.poll()
        self._idling = select.poll()
        self._standby = select.poll()
        for poll, fds in (
            (self._leading, (self._fd, self._kick_fd, self._monitor_fd)),
            (self._idling, (self._fd, self._rouse_fd, self._monitor_fd)),
            (self._standby, (self._rouse_fd,)),
        ):
            for fd in fds:
                poll.register(fd, select.POLLIN)
        self._leads = 0
        self._burst = 0
        self._idle = False
        self._roused = False
        self._kicked = False
        self._pumping = 0
        self._followers = 0
        self._lost: float | None = None
        self._thread = threading.Thread(target=self._background, name="omnibus-bus", daemon=True)

    def start(self, timeout: float) -> None:
        """Greet the broker and wait for its welcome.

        Raises :class:`ConnectTimeout` with the address, and why where that is known; or the broker's refusal.
        """
        deadline = time.monotonic() + timeout
        peer = self.peer
        with self.lock:
            self._pump()
            while not peer.ready and peer.failure is None:
                left = deadline - time.monotonic()
                refused = self._watch.last
                if left <= 0 or (refused is not None and refused.what == "refused"):
                    why = f": {refused.why}" if refused is not None else ""
                    raise ConnectTimeout(f"no answer from {self._address} within {timeout:g} s{why}")
                self._leading.poll(min(left, 0.25) * 1000)
                self._watch.events()
                self._pump()
        if peer.failure is not None:
            raise peer.failure
        self._broker_fd = watch_broker(peer.welcome)
        if self._broker_fd is not None:
            self._leading.register(self._broker_fd, select.POLLIN)
            self._idling.register(self._broker_fd, select.POLLIN)
        self._thread.start()

    @property
    def mine(self) -> bool:
        """Whether this is the process that made it, and not a fork of that."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise why nothing can be asked any more: a lost session, a closed bus, a forked child."""
        if not self.mine:
            raise ForkedError(FORKED)
        if self.peer.failure is not None:
            raise self.peer.failure

    def sync(self, timeout: float) -> bool:
        """Wait until all that the broker had to say up to now has arrived; return whether it has."""
        seq = self.peer.next_seq()
        future: Future[None] = Future(self, seq)
        self.peer.pending[seq] = future
        self.peer.out.append([Verb.PING, seq, None, None, 0])
        self._burst = 0
        self.submitted()
        return self.peer.ready and self._wait(future, timeout)

    def close(self, timeout: float) -> int:
        """Send what is queued and a BYE, and let go of the socket, all within ``timeout`` seconds.

        Returns how many requests were unfinished.
        """
        if self.closed or not self.mine:
            return 0
        self._refuse_inside()
        self.closed = True
        deadline = time.monotonic() + timeout
        os.eventfd_write(self._rouse_fd, 1)
        os.eventfd_write(self._kick_fd, 1)
        with self.lock:
            unfinished = self.peer.close()
            while self.peer.unsent and self.peer.ready and not self._pump_out() and time.monotonic() < deadline:
                self._socket.poll(10, zmq.POLLOUT)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        self._watch.close()
        self._socket.close(linger=int(max(0.0, deadline - time.monotonic()) * 1000))
        for fd in (self._kick_fd, self._rouse_fd, self._broker_fd):
            if fd is not None:
                os.close(fd)
        return unfinished

    def submitted(self) -> None:
        """Learn that something was appended to the peer's ``out``; see that it is sent.

        The first request after a wait goes out at once, so that asking one at a time costs no hand-over. Later ones
        collect; whoever fills a batch sends it.
        """
        self._burst += 1
        if self._burst == 1 or len(self.peer.out) >= BATCH:
            if self.lock.acquire(False):
                try:
                    self._leads += 1
                    if self._burst == 1 and not self._idle:
                        self._pump_out()
                    else:
                        self._pump()
                finally:
                    self._release()
            else:
                self._kick()
                if self.lock.acquire(False):  # its holder let go before it could see the kick
                    self._release()
        elif self._idle and not self._roused:
            self._rouse()

    def cancel(self, seq: int) -> None:
        """Ask for the end of request ``seq``; without effect once it ended, or when nothing can be sent any more."""
        if self.peer.failure is None:
            self.peer.out.append([Verb.CANCEL, seq, None, None, 0])
            self.submitted()

    def _kick(self) -> None:
        """Have the thread that holds the lock look again; once is enough until it has."""
        if self._kicked:
            return
        self._kicked = True
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(self._kick_fd, 1)

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Drive, or wait while another thread drives, until ``future`` is done; return whether it is."""
        if not self.mine:
            self.check()
        self._refuse_inside()
        if self._lends and (timeout is None or timeout > _PATIENCE):
            return self._wait_lending(future, timeout)
        return self._wait(future, timeout)

    def _wait_lending(self, future: Future[Any], timeout: float | None) -> bool:
        """Wait inside a task, and lend its worker's slot to others unless the answer comes at once.

        Otherwise tasks that wait for each other would fill the pool and wait for ever.
        """
        if self._wait(future, _PATIENCE):
            return True
        self.peer.out.append([Verb.LEND, 0, 1, None, 0])
        try:
            return self._wait(future, None if timeout is None else timeout - _PATIENCE)
        finally:
            self.peer.out.append([Verb.LEND, 0, 0, None, 0])
            self._burst = 0
            self.submitted()

    def _wait(self, future: Future[Any], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not future.done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self.lock.acquire(False):
                self._burst = 0
                try:
                    self._lead(future, deadline)
                finally:
                    self._release()
            else:
                self._follow(future, left)
        return True

    def _refuse_inside(self) -> None:
        """Raise :class:`UsageError` in the thread that receives results, which would wait for itself."""
        if self._pumping == threading.get_ident():
            raise UsageError("a callback of a future runs in the thread that receives results, and cannot wait there")

    def make_room(self, lane: Lane) -> None:
        """Drive until ``lane`` has room for one more request; raise what ended the session if that came first."""
        self._refuse_inside()
        peer = self.peer
        while (lane.tasks >= peer.window_tasks or lane.size >= peer.window_bytes) and peer.failure is None:
            if self.lock.acquire(timeout=0.05):
                try:
                    self._leads += 1
                    if not self._pump():
                        self._rest(self._leading, 0.05)
                finally:
                    self._release()
        self.check()

    def _lead(self, future: Future[Any], deadline: float | None) -> None:
        """Send and receive, holding the lock, until ``future`` is done."""
        self._leads += 1
        while not self._pump(future) and not future.done() and not self.closed:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._rest(self._leading, left)

    def _follow(self, future: Future[Any], left: float | None) -> None:
        """Wait for another thread to end ``future``; should that one stop, the background thread takes over."""
        self._followers += 1
        try:
            condition = future._condition
            with condition:
                if not future.done():
                    condition.wait(left)
        finally:
            self._followers -= 1

    def _release(self) -> None:
        """Let go of the lock, and hand what was queued meanwhile, or others wait for, to the background thread."""
        self.lock.release()
        if self._followers:
            self.attend()
        elif self._kicked and self.lock.acquire(False):
            self._kicked = False
            try:
                self._pump()
            finally:
                self.lock.release()

    def attend(self) -> None:
        """Have the background thread drive at once, until somebody waits again."""
        self._rouse()

    def _rouse(self) -> None:
        self._roused = True
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(self._rouse_fd, 1)

    # ------------------------------------------------------------------ the socket, under the lock

    def _pump(self, future: Future[Any] | None = None) -> bool:
        """Send all that is queued and receive all that is there; return whether anything was received.

        With ``future``, stop once that is done, unless the background thread waits for the socket and would miss some.
        """
        received = False
        peer = self.peer
        while True:
            sent = self._pump_out()
            frames = receive(self._socket, 2)
            if frames is None:
                if not peer.out or not sent or not peer.ready:
                    return received
                continue
            received = True
            self._pumping = threading.get_ident()
            try:
                peer.receive(frames)
            finally:
                self._pumping = 0
            if future is not None and not self._idle and future.done() and not peer.out:
                return True

    def _pump_out(self) -> bool:
        """Send what is queued while the socket takes it; return whether all went."""
        peer = self.peer
        while (frames := peer.take()) is not None:
            if send(self._socket, frames) is not Sent.OK:
                self._socket.poll(1, zmq.POLLOUT)
                if send(self._socket, frames) is not Sent.OK:
                    peer.untake(frames)
                    return False
        return True

    def _rest(self, poll: select.poll, left: float | None) -> None:
        """Wait until something comes, ``left`` seconds at most, and deal with all that is not a message."""
        if self._lost is not None:
            left = min(left or _LINK_GRACE, 0.1)
        self._handle(poll.poll(None if left is None else max(1, int(left * 1000))))

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        for fd, _ in ready:
            if fd == self._kick_fd:
                self._kicked = False
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._kick_fd)
            elif fd == self._broker_fd:
                self._fail(Unreachable(f"the broker at {self._address} ended"))
            elif fd == self._monitor_fd:
                self._observe()
        if self._lost is not None and time.monotonic() - self._lost > _LINK_GRACE:
            self._fail(Unreachable(f"the link to {self._address} broke and did not come back within {_LINK_GRACE:g} s"))

    def _observe(self) -> None:
        for event in self._watch.events():
            if event.what == "up" and self._lost is not None:
                self._lost = None
                self.peer.greet()
            elif event.what == "down" and self._lost is None:
                self._lost = time.monotonic()

    def _fail(self, error: Exception) -> None:
        while (frames := receive(self._socket, 2)) is not None:
            self.peer.receive(frames)
        self.peer.fail(error)
        if self._broker_fd is not None:
            for poll in (self._leading, self._idling):
                poll.unregister(self._broker_fd)
            os.close(self._broker_fd)
            self._broker_fd = None

    # ------------------------------------------------------------------ the background thread

    def _background(self) -> None:
        """Drive while nobody else does.

        ``_idle`` says that this thread waits for the socket itself; it is set under the lock, after a pump, so that
        whoever holds the lock and finds it unset may leave messages unreceived: this thread looks again before it
        waits.
        """
        leads = -1
        while not self.closed:
            ready: list[tuple[int, int]] = []
            if leads == self._leads and self._idle:
                ready = self._wait_roused(self._idling, None)
                self._idle = False
            elif leads != self._leads:
                leads = self._leads
                if not self._wait_roused(self._standby, _STAND_BY_MS) and self._leads != leads:
                    continue
            if not self.closed and self.lock.acquire(False):
                try:
                    self._handle(ready)
                    self._pump()
                    self._idle = self._leads == leads
                finally:
                    self.lock.release()
            else:
                leads = -1

    def _wait_roused(self, poll: select.poll, timeout: int | None) -> list[tuple[int, int]]:
        """Wait for what ``poll`` watches; take note of having been roused."""
        ready = poll.poll(timeout)
        if any(fd == self._rouse_fd for fd, _ in ready):
            self._roused = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._rouse_fd)
        return ready
