"""One started process of this host, and the descriptors that it is started and watched with."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from typing import Final

from .base import State, Status, describe_exit

__all__ = ["Child", "memory_file", "pipe", "read_line"]

_TAIL: Final = 16_384
_LAST_LINES: Final = 20
_LINE: Final = 4_096


class Child:
    """One started process: its pidfd, the end of what it said, and how it ended.

    ``stderr`` is where its standard error is read, ``ready`` where its readiness is; ``ended`` is set once it
    is reaped.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], stderr: int, ready: int | None) -> None:
        self.name = name
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.stderr: int | None = stderr
        self.ready = ready
        self._tail = bytearray()
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.reading = threading.Lock()

    def hear(self, said: bytes) -> None:
        """Keep the end of what it says on standard error."""
        self._tail += said
        del self._tail[:-_TAIL]

    def signal_leader(self, number: int) -> None:
        """Send a signal to the process itself, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """Kill the process and all that is left of its group."""
        with self.lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.returncode is None:  # not reaped, so the number is still this group's
                os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect the exit code of a process that has ended."""
        with self.lock:
            self.process.wait()
        self.ended.set()

    def status(self) -> Status:
        """Return whether it runs, else how it ended."""
        if not self.ended.is_set():
            return Status(State.RUNNING)
        code = self.process.returncode
        return Status(State.ENDED, code, f"{self.name} (process {self.process.pid}) {describe_exit(code)}")

    def last_words(self) -> str:
        """Return the end of what it said on standard error, as a clause of an error."""
        lines = bytes(self._tail).decode(errors="replace").splitlines()[-_LAST_LINES:]
        return (
            "its last words:\n" + "\n".join(f"  {line}" for line in lines)
            if lines
            else "it said nothing on standard error"
        )

    def release(self) -> None:
        """Close what is open for it; it may be called again."""
        with self.reading, self.lock:
            for descriptor in (self.pidfd, self.stderr, self.ready):
                if descriptor is not None and descriptor >= 0:
                    os.close(descriptor)
            self.pidfd, self.stderr, self.ready = -1, None, None


def pipe(theirs: contextlib.ExitStack) -> tuple[int, int]:
    """Return a pipe, its reading end non-blocking, its other end closed here once the child has it."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    theirs.callback(os.close, write)
    return read, write


def memory_file(theirs: contextlib.ExitStack, content: bytes) -> int:
    """Return a nameless file to read ``content`` from: unlike a pipe it takes any size at once."""
    descriptor = os.memfd_create("omnibus-stdin", os.MFD_CLOEXEC)
    theirs.callback(os.close, descriptor)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_line(pipe: int, pidfd: int, deadline: float) -> bytes:
    """Return the line that comes through ``pipe``, or what there is of it when the process ends or closes it.

    Raises :class:`TimeoutError` at the deadline.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    line = bytearray()
    while b"\n" not in line and len(line) < _LINE:
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
        if not ready:
            raise TimeoutError
        try:
            said = os.read(pipe, _LINE)
        except BlockingIOError:
            said = b""  # it was the process that ended
        if not said:
            break
        line += said
    return bytes(line.partition(b"\n")[0])
