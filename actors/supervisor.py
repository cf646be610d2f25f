"""The node supervisor's shell: one DEALER to the broker, a zygote, children's output pipes, signals; one loop.

It runs no user code and no thread of its own, so it is always there to see, to stop and to report. What it decides is
decided in :mod:`omnibus.actors.nodecore`.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgpack
import zmq

from omnibus.errors import ProtocolError
from omnibus.handshake import new_session
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.protocol import BATCH, Blob, Verb
from omnibus.rundir import announce_ready
from omnibus.sharedmem import StatusPage
from omnibus.sockets import Sent, descriptor, receive, send

from .children import Exit
from .commands import Finish, Fork, NodeSpec, Signal
from .config import ChildConfig
from .nodecore import NodeCore
from .nodelink import NodeLink
from .nursery import Exited, Nursery, Refused, Report, Started
from .output import LineReader, Outputs, say_most
from .resources import OomWatch

__all__ = ["Supervisor"]

_log = logging.getLogger(__name__)
_QUEUED: Final = 8
_FILES: Final = 65536
_ZYGOTES: Final = 5
"""Zygotes that may die in a row without having started a child."""
_RETRY: Final = 0.02
_LINGER_MS: Final = 500


class _Handle:
    """What the supervisor holds of one child: its page, its pidfd, its output."""

    def __init__(self, page: StatusPage) -> None:
        self.page = page
        self.name = ""
        self.pid = 0
        self.pidfd = -1
        self.streams: list[LineReader] = []


class Supervisor:
    """Runs one node until it is told to stop, its owner ends, or its broker stays away.

    Make it before any ZeroMQ context and thread: it forks. ``owner`` is a pidfd.
    """

    def __init__(self, spec: NodeSpec, *, owner: int | None = None, preload: Sequence[str] = ()) -> None:
        self._spec = spec
        self._preload = tuple(preload)
        self._nursery = Nursery.fork(self._preload)
        self._poll = select.poll()
        self._on: dict[int, Callable[[float], None]] = {}
        self._handles: dict[bytes, _Handle] = {}
        self._pages: deque[_Handle] = deque()
        self._orphans: dict[int, bytes] = {}
        self._outputs = Outputs(self._listen, self._ignore)
        self._link = NodeLink(resume=spec.target.parsed().is_tcp)
        self._unsent: deque[list[Blob]] = deque()
        self._oom = OomWatch()
        self._signals = 0
        self._zygotes_lost = 0
        self._owner = owner
        self._finish: Finish | None = None
        _allow_many_files()
        self._context = make_context()
        self._socket = make_dealer(self._context, spec.target)
        self._links = LinkWatch(self._socket)
        self._core = NodeCore(spec, new_session=new_session, new_page=self._new_page, jitter=random.random)
        self._watch_signals()
        self._listen(descriptor(self._socket), self._on_messages)
        self._listen(descriptor(self._links.monitor), self._on_links)
        self._listen(self._nursery.fileno(), self._on_reports)
        if owner is not None:
            self._listen(owner, self._on_owner)

    def run(self) -> int:
        """Serve to the end; return the process's exit status."""
        core = self._core
        core.start(time.monotonic())
        try:
            while self._finish is None:
                now = time.monotonic()
                self._on_messages(now)
                self._on_links(now)
                core.on_time(now)
                self._outputs.on_time(now)
                self._carry_out(now)
                self._send()
                if self._finish is None:
                    self._wait(now)
        finally:
            self._close()
        if self._finish.status:
            print(f"omnibus node: {self._finish.why}", file=sys.stderr)
        return self._finish.status

    # ------------------------------------------------------------------ waiting

    def _listen(self, fd: int, handler: Callable[[float], None]) -> None:
        self._on[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _ignore(self, fd: int) -> None:
        if self._on.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _wait(self, now: float) -> None:
        """Wait for an event or the next deadline, and handle what came."""
        deadlines = [when for when in (self._core.next_deadline(), self._outputs.next_deadline()) if when is not None]
        if self._unsent:
            deadlines.append(now + _RETRY)
        if self._nursery.unsent:
            deadlines.append(now + _RETRY)
            self._nursery.flush()
        timeout = None if not deadlines else max(0.0, (min(deadlines) - time.monotonic()) * 1000 + 1)
        # ZeroMQ's descriptors are edge-triggered: what sending took in meanwhile would not wake us.
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            timeout = 0
        for fd, _ in self._poll.poll(timeout):
            handler = self._on.get(fd)
            if handler is not None:
                handler(time.monotonic())

    # ------------------------------------------------------------------ signals and the owner

    def _watch_signals(self) -> None:
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup means it
                signal.signal(signum, lambda *_: None)
        self._listen(wake, lambda now: self._on_signals(os.read(wake, 64), now))

    def _on_signals(self, signums: bytes, now: float) -> None:
        """Stop in order at the first signal, at once at the second."""
        for signum in signums:
            self._signals += 1
            grace = None if self._signals == 1 else 0.0
            self._core.stop(signal.Signals(signum).name, now, grace=grace)

    def _on_owner(self, now: float) -> None:
        assert self._owner is not None
        self._ignore(self._owner)
        self._core.stop("its owner has ended", now, grace=0.5)

    # ------------------------------------------------------------------ the broker

    def _on_messages(self, now: float) -> None:
        while (frames := receive(self._socket, 2)) is not None:
            try:
                records = self._link.receive(frames)
            except ProtocolError as error:
                _log.error("message not understood", extra={"error": str(error)})
                continue
            for record in records:
                self._core.on_record(record, now)
            if self._core.welcomed and not self._outputs.taken:
                announce_ready(self._spec.target.address)
            self._outputs.taken = self._core.welcomed

    def _on_links(self, now: float) -> None:
        for event in self._links.events():
            if event.what in ("up", "down"):
                _log.info("link changed", extra={"link": event.what, "why": event.why})
                self._core.on_link(event.what == "up", now)
            elif event.what == "refused":
                self._core.stop(f"the broker at {event.endpoint} refuses us: {event.why}", now, status=1)

    def _send(self) -> None:
        """Send what the core says, then what children printed, as far as the socket takes it."""
        self._unsent += self._link.pack(self._core.records())
        lines = self._outputs.lines
        while self._core.welcomed and lines and len(self._unsent) < _QUEUED and not self._link.full:
            self._unsent += self._link.pack([lines.popleft() for _ in range(min(len(lines), BATCH))])
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._unsent and send(self._socket, self._unsent[0]) is Sent.OK:
            self._unsent.popleft()

    # ------------------------------------------------------------------ the zygote

    def _carry_out(self, now: float) -> None:
        for command in self._core.commands():
            if isinstance(command, Fork):
                self._fork(command, now)
            elif isinstance(command, Signal):
                self._signal(command)
            else:
                self._finish = command

    def _new_page(self) -> StatusPage:
        try:
            page = StatusPage.create()
        except OSError:
            page = StatusPage(-1)  # no descriptor is left, so no child can be started on it either
        self._pages.append(_Handle(page))
        return page

    def _fork(self, command: Fork, now: float) -> None:
        config = command.config
        handle = self._pages.popleft()
        assert handle.page is command.page, "a Fork comes for each page, in order"
        handle.name = config.name
        self._handles[config.session] = handle
        try:
            self._ask_zygote(config, handle, now)
        except OSError as error:
            self._core.on_refused(config.session, f"{error.strerror} (see `ulimit -n`)", now)
            self._bury(config.session)

    def _ask_zygote(self, config: ChildConfig, handle: _Handle, now: float) -> None:
        """Have the zygote start a child, with pipes for what it prints."""
        writers = []
        try:
            for stream in ("out", "err"):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                writers.append(writer)
                handle.streams.append(LineReader(reader, self._printer(handle, stream), now))
                self._outputs.open(handle.streams[-1])
            self._nursery.start(config, handle.page.fd, *writers)
        finally:
            for writer in writers:
                os.close(writer)
            handle.page.close_fd()

    def _signal(self, command: Signal) -> None:
        handle = self._handles.get(command.session)
        if handle is None:
            return
        try:
            if handle.pidfd >= 0:
                signal.pidfd_send_signal(handle.pidfd, command.signum)
            else:
                os.kill(handle.pid, command.signum)
        except ProcessLookupError:
            return  # it has just ended; its exit is on the way

    def _on_reports(self, now: float) -> None:
        reports = self._nursery.receive()
        for report in reports or ():
            self._on_report(report, now)
        if reports is None:
            self._replace_zygote(now)

    def _on_report(self, report: Report, now: float) -> None:
        if isinstance(report, Started):
            handle = self._handles[report.session]
            handle.pid, handle.pidfd = report.pid, report.pidfd
            self._zygotes_lost = 0
            self._core.on_started(report.session, report.pid, now)
        elif isinstance(report, Exited):
            self._on_exited(report, now)
        elif isinstance(report, Refused):
            self._core.on_refused(report.session, report.error, now)
            self._bury(report.session)
        elif report.error:
            _log.warning("preload failed", extra={"what": report.module, "error": report.error})

    def _on_exited(self, report: Exited, now: float) -> None:
        code = os.waitstatus_to_exitcode(report.status)
        words = self._last_words(report.session)
        oom = (code == -signal.SIGKILL and self._oom.struck()) or (code != 0 and words.startswith("MemoryError"))
        how = Exit(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            oom=oom,
            words=words,
            resident=report.resident * 1024,
        )
        self._core.on_exited(report.session, how, now)
        self._bury(report.session)

    def _replace_zygote(self, now: float) -> None:
        """Make a new zygote, as a new interpreter, for this process may not fork any more; its children died too."""
        _log.error("zygote died", extra={"pid": self._nursery.pid})
        self._zygotes_lost += 1
        if self._zygotes_lost > _ZYGOTES:
            self._core.stop("its zygote dies as often as it is made", now, status=1)
        self._ignore(self._nursery.fileno())
        self._nursery.close()
        self._nursery = Nursery.spawn(self._preload)
        self._listen(self._nursery.fileno(), self._on_reports)
        for session, handle in list(self._handles.items()):
            if handle.pidfd < 0:
                self._core.on_refused(session, "its zygote died", now)
                self._bury(session)
            else:
                self._signal(Signal(session, signal.SIGKILL))
                self._orphans[handle.pidfd] = session
                self._listen(handle.pidfd, self._on_orphans)

    def _on_orphans(self, now: float) -> None:
        """Learn from their pidfds that children of a dead zygote are gone; how they ended nobody can say."""
        poll = select.poll()
        for pidfd in self._orphans:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0):
            session = self._orphans.pop(pidfd)
            self._last_words(session)
            self._core.on_exited(session, Exit(words="its zygote died"), now)
            self._bury(session)

    def _bury(self, session: bytes) -> None:
        handle = self._handles.pop(session)
        handle.page.close()
        for stream in handle.streams:
            self._outputs.close(stream)
        if handle.pidfd >= 0:
            self._ignore(handle.pidfd)
            os.close(handle.pidfd)

    # ------------------------------------------------------------------ output

    def _printer(self, handle: _Handle, stream: str) -> Callable[[str], None]:
        """Return what queues one line that a child printed."""
        head = {"topic": "log"}

        def emit(text: str) -> None:
            said = {"source": handle.name, "stream": stream, "pid": handle.pid, "text": text, "time": time.time()}
            self._outputs.lines.append([Verb.PUBLISH, 0, head, msgpack.packb(said), 0])

        return emit

    def _last_words(self, session: bytes) -> str:
        """Take in all that a dead child has printed; return the line that says most about its end."""
        streams = self._handles[session].streams
        for stream in streams:
            stream.drain()
        return say_most(streams[1].tail)

    # ------------------------------------------------------------------ the end

    def _close(self) -> None:
        """End the zygote and what is left of the children; give the last messages a moment to leave."""
        self._nursery.close()
        for session in list(self._handles):
            self._bury(session)
        self._drain()
        self._links.close()
        self._socket.close(_LINGER_MS)
        self._context.term()


def _allow_many_files() -> None:
    """Raise the soft limit of descriptors, of which each child takes four; the zygote and the children keep theirs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
