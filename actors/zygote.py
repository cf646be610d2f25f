"""The zygote: a small process that exists to be forked.

A supervisor has a ZeroMQ context, and a process with threads must not fork. So before it makes one it forks the zygote:
single-threaded, with all modules that children need loaded already, and no socket of ZeroMQ's. A child is a fork of
the zygote: it shares those modules' memory and starts in milliseconds, however long their import took. The zygote is
the parent of all children, fresh interpreters too, so it reaps them and reports how they ended; what a dead
child left in its process group it ends before it reaps, while nobody else can have the group's number.

Supervisor and zygote talk over a ``SOCK_SEQPACKET`` pair: one msgpack array a message, descriptors beside it.
When the supervisor's end closes, orderly or not, the zygote ends all children and itself.

This module is the zygote's side. :mod:`omnibus.actors.nursery` is the supervisor's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Final, NoReturn

import msgpack

from . import birth, bonds
from .config import CHILD_MAIN, ChildConfig

__all__ = ["MESSAGE_BYTES", "REQUEST_FDS", "serve", "serve_spawned"]

MESSAGE_BYTES: Final = 1 << 18
"""The longest message over the socket pair."""
REQUEST_FDS: Final = 3
"""Descriptors beside a START: the status page, the child's output, its error output."""


class _Zygote:
    """The zygote's loop and its children. ``parent`` is the supervisor's pid."""

    def __init__(self, sock: socket.socket, death: int, parent: int) -> None:
        self._sock = sock
        self._death = death
        self._parent = parent
        self._pid = os.getpid()
        self._children: dict[int, bytes] = {}
        self._unforkable = ""
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Serve until the supervisor's end of the socket closes."""
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        try:
            while True:
                for fd, _ in poller.poll():
                    if fd == self._wake:
                        os.read(self._wake, 512)
                        self._reap()
                    elif not self._take():
                        return
        except (BrokenPipeError, ConnectionResetError):
            return  # the supervisor died while we spoke
        finally:
            self._end_all()

    def _take(self) -> bool:
        """Serve one request; false when there will be no more."""
        message, fds, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES, REQUEST_FDS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        what, *rest = msgpack.unpackb(message)
        if what == "start":
            self._start(ChildConfig.unpack(rest[0]), fds)
        elif what == "preload":
            for module in rest[0]:
                self.preload(module)
        return True

    def _tell(self, *message: object, fd: int = -1) -> None:
        socket.send_fds(self._sock, [msgpack.packb(message)], [fd] if fd >= 0 else [])

    # ------------------------------------------------------------------ preloading

    def preload(self, module: str) -> None:
        """Import ``module`` and report how that went.

        What makes forking unsafe is noticed, and from then on every child is a fresh interpreter.
        """
        began = time.monotonic()
        error = ""
        # Nothing here can answer while a module loads, so then the kernel watches the supervisor for us.
        bonds.die_with_parent(self._parent)
        try:
            importlib.import_module(module)
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        finally:
            bonds.die_with_parent(None, 0)
        self._unforkable = self._unforkable or _why_unforkable(module)
        gc.collect()
        gc.freeze()
        self._tell("preloaded", module, time.monotonic() - began, error or self._unforkable)

    # ------------------------------------------------------------------ children

    def _start(self, config: ChildConfig, fds: list[int]) -> None:
        """Fork a child, and report its pid and pidfd, or why there is none."""
        try:
            pid = os.fork()
        except OSError as error:
            self._tell("failed", config.session, f"fork failed: {error.strerror}")
        else:
            if pid == 0:
                self._be_born(config, fds)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # by either side, so that it holds for whoever is first to need it
            self._children[pid] = config.session
            pidfd = os.pidfd_open(pid)  # it cannot have been reaped yet, so this is the child and nobody else
            self._tell("started", config.session, pid, fd=pidfd)
            os.close(pidfd)
        finally:
            for fd in fds:
                os.close(fd)

    def _be_born(self, config: ChildConfig, fds: list[int]) -> NoReturn:
        """Be the child, to its end."""
        status = 1
        try:
            page, out, err = fds
            drop = (self._sock.detach(), self._wake, self._waker)
            death = birth.after_fork(self._pid, self._death, (out, err), drop)
            if config.fresh or self._unforkable:
                birth.exec_fresh(config, page, death)
            status = birth.run(birth.settle(config, page))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Report every child that has ended, after ending what it left in its group."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            _end_group(ended.si_pid)
            _, status, usage = os.wait4(ended.si_pid, 0)
            session = self._children.pop(ended.si_pid, None)
            if session is not None:
                self._tell("exited", session, status, usage.ru_maxrss)

    def _end_all(self) -> None:
        signal.set_wakeup_fd(-1)
        for pid in self._children:
            _end_group(pid)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _end_group(pid: int) -> None:
    """Kill the process group that a child leads; its leader is not reaped yet, so the number is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _why_unforkable(module: str) -> str:
    """Say why a fork of this process would be unsafe after ``module`` was loaded; nothing if it is safe."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return (
            f"importing {module} started {threads - 1} threads, which a fork would lose: "
            "children start as fresh interpreters"
        )
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return (
            f"importing {module} initialised CUDA, which does not survive a fork: "
            "children start as fresh interpreters"
        )
    return ""


def serve(sock: socket.socket, death: int, *, preload: list[str]) -> NoReturn:
    """Be the zygote, to its end: for a process with one thread that was made for this.

    ``sock`` is its end of the socket pair, ``death`` the read end of the supervisor's death pipe. The children's
    own main module is loaded first, then ``preload``.
    """
    status = 1
    try:
        with contextlib.suppress(PermissionError):
            os.setsid()  # no Ctrl-C of the terminal's: what it means is the supervisor's to say
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_inherited({0, 1, 2, sock.fileno(), death})
        os.environ.update(birth.ONE_THREAD)
        os.environ.pop("OMNIBUS_READY_FD", None)  # that is between the supervisor and its launcher
        birth.adopt_sys_path()
        bonds.name_process("omnibus-zygote")
        gc.disable()
        zygote = _Zygote(sock, death, os.getppid())
        for module in (CHILD_MAIN.partition(":")[0], *preload):
            zygote.preload(module)
        zygote.run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def serve_spawned(sock: int, death: int, preload: list[str]) -> NoReturn:
    """Be a zygote that was started as a new interpreter, with these inherited descriptors."""
    serve(socket.socket(fileno=sock), death, preload=preload)


def _close_inherited(keep: set[int]) -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep:
            with contextlib.suppress(OSError):  # that of the listing itself is closed by now
                os.close(fd)
