"""The supervisor's side of the zygote: make one, ask it for children, hear how they end."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgpack

from .config import ChildConfig
from .zygote import MESSAGE_BYTES, serve

__all__ = ["Exited", "Nursery", "Preloaded", "Refused", "Report", "Started"]


@dataclass(frozen=True, slots=True)
class Started:
    """A child runs. ``pidfd`` is now the receiver's to close; -1 where it had no descriptor left for it."""

    session: bytes
    pid: int
    pidfd: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A child could not be started."""

    session: bytes
    error: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A child has ended: its status as ``waitpid`` gives it, and the most memory that it had resident, in KiB."""

    session: bytes
    status: int
    resident: int


@dataclass(frozen=True, slots=True)
class Preloaded:
    """A module was loaded in the zygote, or ``error`` says what went wrong."""

    module: str
    seconds: float
    error: str


Report: TypeAlias = Started | Refused | Exited | Preloaded


class Nursery:
    """A zygote and the line to it. Make one with :meth:`fork` or :meth:`spawn`, and :meth:`close` it in the end."""

    def __init__(self, sock: socket.socket, death: int, pid: int) -> None:
        sock.setblocking(False)
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        """Readable once the zygote is gone."""
        self._sock = sock
        self._death = death
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()

    @classmethod
    def fork(cls, preload: Sequence[str] = ()) -> Nursery:
        """Fork this process: only from its main thread, and before it has a second one or a ZeroMQ context.

        What this process has loaded by now is shared with the zygote and all its children.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # a collector that looked at what is shared would write to it, and it would be shared no more
        pid = os.fork()
        if pid == 0:
            serve(theirs, reader, preload=list(preload))
        theirs.close()
        os.close(reader)
        return cls(ours, writer, pid)

    @classmethod
    def spawn(cls, preload: Sequence[str] = ()) -> Nursery:
        """Start a zygote as a new interpreter: at any time, at the price of memory that is not shared."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        inherited = [os.dup(fd) for fd in (theirs.fileno(), reader)]
        for fd in inherited:
            os.set_inheritable(fd, True)
        path = ["-P"] if sys.flags.safe_path else []
        command = [sys.executable, *path, "-m", "omnibus.actors", "zygote", *map(str, inherited), *preload]
        try:
            pid = os.posix_spawn(command[0], command, os.environ)
        finally:
            theirs.close()
            for fd in (reader, *inherited):
                os.close(fd)
        return cls(ours, writer, pid)

    def fileno(self) -> int:
        """Return the descriptor to poll: readable when there are reports, or the zygote is gone."""
        return self._sock.fileno()

    @property
    def unsent(self) -> bool:
        """Whether requests wait until the zygote has read earlier ones: poll for writing, then :meth:`flush`."""
        return bool(self._unsent)

    def start(self, config: ChildConfig, page: int, out: int, err: int) -> None:
        """Ask for a child with these descriptors for its status page, output and error output; they are dup'ed.

        A :class:`Started` or :class:`Refused` will answer. Raises :class:`OSError` where descriptors run out.
        """
        copies: list[int] = []
        try:
            copies.extend(map(os.dup, (page, out, err)))
        except OSError:
            for fd in copies:
                os.close(fd)
            raise
        self._send(["start", config.pack()], tuple(copies))

    def preload(self, modules: Sequence[str]) -> None:
        """Ask the zygote to load modules; a :class:`Preloaded` answers for each. No child starts meanwhile."""
        self._send(["preload", list(modules)], ())

    def _send(self, message: object, fds: tuple[int, ...]) -> None:
        self._unsent.append((msgpack.packb(message), fds))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the zygote takes it; one that is gone takes nothing."""
        while self._unsent:
            message, fds = self._unsent[0]
            try:
                socket.send_fds(self._sock, [message], fds)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)

    def receive(self) -> list[Report] | None:
        """Return the reports that have come, without waiting; ``None`` when the zygote is gone and all were taken."""
        reports: list[Report] = []
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return reports
            except ConnectionResetError:
                message, fds = b"", []
            if not message:
                return reports or None
            reports.append(_report(msgpack.unpackb(message), fds))

    def close(self, timeout: float = 2.0) -> None:
        """End the zygote and every child that is left; return when they are gone.

        The zygote does that by itself when our end closes; where it does not within ``timeout`` seconds it is killed.
        """
        self._sock.close()
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        os.close(self._death)
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(timeout * 1000):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)


def _report(message: list[object], fds: list[int]) -> Report:
    what, *rest = message
    if what == "started":
        return Started(*rest, *(fds or [-1]))  # type: ignore[arg-type]
    kind: type[Refused | Exited | Preloaded] = {"failed": Refused, "exited": Exited, "preloaded": Preloaded}[str(what)]
    return kind(*rest)  # type: ignore[arg-type]
