"""The local backend: command lines as processes of this host, each the leader of a session of its own.

One thread watches them all, by pidfd, and reads what they say on standard error, so that an error can quote
it. When a process ends, by itself or not, whatever is left of its process group is killed before it is
reaped: until then its process id, and so the group's, cannot have been given to anybody else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from omnibus.errors import ConnectTimeout, ForkedError, NotFound, SetupFailed, UsageError
from omnibus.rundir import READY_VARIABLE

from .base import Handle, State, Status, refuse_secrets
from .child import Child, memory_file, pipe, read_line

__all__ = ["LocalLauncher"]

_CHUNK: Final = 65_536
_TURNS: Final = 16
"""Chunks that one process may have read before the others have their turn."""
_KILL_WAIT: Final = 5.0
"""Seconds that a killed process gets: only one that hangs in the kernel needs them."""


class LocalLauncher:
    """Starts processes on this host; a :class:`~omnibus.launch.base.Launcher`, and a context manager.

    What they say on standard error is written on to the descriptor ``echo`` too, unless it is ``None``. They
    outlive neither :meth:`close` nor, where they watch it themselves, this process.
    """

    backend = "local"

    def __init__(self, *, echo: int | None = 2) -> None:
        self._echo = echo
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._children: dict[Handle, Child] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0)
        self._watched: dict[int, Child] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> LocalLauncher:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End all that still run."""
        self.close()

    def submit(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        stdout: int | None = None,
        ready: bool = False,
    ) -> Handle:
        """Start a process; see :meth:`Launcher.submit <omnibus.launch.base.Launcher.submit>`.

        ``stdout`` is a descriptor for its standard output, by default this process's own. With ``ready`` it
        gets a pipe on which :func:`omnibus.rundir.announce_ready` answers; call :meth:`wait_ready` then.
        """
        self._check_owner()
        additions = dict(env or {})
        if not command:
            raise UsageError(f"command of {name!r} is empty: give a program and its arguments")
        refuse_secrets(command, additions)
        environment = {**os.environ, **additions}
        environment.pop(READY_VARIABLE, None)
        with contextlib.ExitStack() as theirs:
            heard, stderr = pipe(theirs)
            answer = None
            passed: tuple[int, ...] = ()
            if ready:
                answer, write = pipe(theirs)
                environment[READY_VARIABLE] = str(write)
                passed = (write,)
            try:
                process = subprocess.Popen(
                    list(command),
                    env=environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL if stdin is None else memory_file(theirs, stdin),
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=passed,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                for descriptor in (heard, answer):
                    if descriptor is not None:
                        os.close(descriptor)
                raise SetupFailed(f"{name} cannot be started: {command[0]!r}: {error}") from None
        return self._adopt(Child(name, process, heard, answer))

    def status(self, handles: Iterable[Handle]) -> dict[Handle, Status]:
        """Return the status of each of them; it makes no system call."""
        unknown = Status(State.UNKNOWN, why="this launcher did not start it, or has forgotten it")
        children = self._children
        return {handle: children[handle].status() if handle in children else unknown for handle in handles}

    def pid(self, handle: Handle) -> int:
        """Return its process id, which stays its own until :meth:`status` says that it has ended."""
        return self._child(handle).process.pid

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        """Wait until it ends by itself, or ``timeout`` seconds, and return its status."""
        child = self._child(handle)
        child.ended.wait(timeout)
        return child.status()

    def wait_ready(self, handle: Handle, timeout: float) -> str:
        """Wait until a process that was started with ``ready`` serves, and return the address that it says.

        Raises :class:`SetupFailed` with its last words where it ends first or says something else,
        :class:`ConnectTimeout` where ``timeout`` seconds pass; it runs on then, and the caller decides. It
        may be called once.
        """
        child = self._child(handle)
        with child.lock:
            answer, child.ready = child.ready, None
        if answer is None:
            raise UsageError(f"{child.name} was not started with ready=True, or was waited for before")
        try:
            line = read_line(answer, child.pidfd, time.monotonic() + timeout)
        except TimeoutError:
            raise ConnectTimeout(
                f"{child.name} (process {child.process.pid}) runs, but was not ready within {timeout:g} s; "
                f"{child.last_words()}"
            ) from None
        finally:
            os.close(answer)
        word, _, address = line.decode(errors="replace").partition(" ")
        if word == "ready" and address:
            return address
        if not line and child.ended.wait(_KILL_WAIT):
            raise SetupFailed(f"{child.status().why} before it was ready; {child.last_words()}")
        raise SetupFailed(f"{child.name} said {line!r} where 'ready ADDRESS' was expected; {child.last_words()}")

    def cancel(self, handle: Handle, grace: float) -> Status:
        """Send TERM to the process, after ``grace`` seconds KILL to its group; return its last status."""
        self._check_owner()
        child = self._child(handle)
        self._end([child], grace)
        return child.status()

    def forget(self, handle: Handle) -> None:
        """Drop what is kept of a process that has ended; :class:`UsageError` for one that has not."""
        child = self._child(handle)
        if not child.ended.is_set():
            raise UsageError(f"{child.name} still runs: cancel it first")
        with self._lock:
            del self._children[handle]
            if child.stderr is not None:
                self._drop(child.stderr)
        child.release()

    def close(self, grace: float = 5.0) -> None:
        """End all that still run, at the same time, then stop watching. Statuses can still be asked for.

        In a forked copy of the launcher it does nothing.
        """
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        with self._lock:
            children = list(self._children.values())
        self._end(children, grace)
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for child in children:
            child.release()
        self._epoll.close()
        os.close(self._wake)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise ForkedError("this launcher was made before os.fork(): make another one in the child")
        if self._closed:
            raise UsageError("this launcher is closed: make another one")

    def _child(self, handle: Handle) -> Child:
        try:
            return self._children[handle]
        except KeyError:
            raise NotFound(
                f"{handle.name} ({handle.id}) is not known: this launcher did not start it, or has forgotten it"
            ) from None

    def _adopt(self, child: Child) -> Handle:
        handle = Handle(self.backend, child.name, f"{child.process.pid}.{next(self._numbers)}")
        with self._lock:
            self._children[handle] = child
            for descriptor in (child.pidfd, child.stderr):
                assert descriptor is not None
                self._watched[descriptor] = child
                self._epoll.register(descriptor, select.EPOLLIN)
            if self._thread is None:
                self._epoll.register(self._wake, select.EPOLLIN)
                self._thread = threading.Thread(target=self._watch, name="omnibus-launch", daemon=True)
                self._thread.start()
        return handle

    def _end(self, children: Sequence[Child], grace: float) -> None:
        """Bring all to their end: TERM to the leaders, which end theirs in order, then KILL to the groups."""
        for child in children:
            child.signal_leader(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for child in children:
            child.ended.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            if not child.ended.is_set():
                child.kill_group()
        for child in children:
            child.ended.wait(_KILL_WAIT)

    def _watch(self) -> None:
        """Read standard errors and bury the dead until woken: the body of the one thread."""
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    return
                with self._lock:
                    child = self._watched.get(descriptor)
                    if child is None:
                        continue  # forgotten since
                    ended = descriptor == child.pidfd
                    if ended:
                        self._drop(descriptor)
                if ended:
                    child.kill_group()
                self._pump(child)
                if ended:
                    child.reap()

    def _pump(self, child: Child) -> None:
        """Take what is to be read of a standard error now, without waiting; close it at its end."""
        with child.reading:
            for _ in range(_TURNS):
                if child.stderr is None:
                    return
                try:
                    said = os.read(child.stderr, _CHUNK)
                except BlockingIOError:
                    return
                if said:
                    self._say(child, said)
                else:
                    with self._lock:
                        self._drop(child.stderr)
                    os.close(child.stderr)
                    child.stderr = None

    def _say(self, child: Child, said: bytes) -> None:
        child.hear(said)
        if self._echo is not None:
            with contextlib.suppress(OSError):  # our own standard error is closed, or takes nothing now
                while said:
                    said = said[os.write(self._echo, said) :]

    def _drop(self, descriptor: int) -> None:
        """Stop watching a descriptor, before it is closed; call it under the lock."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
