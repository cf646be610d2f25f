"""Ties between processes that no held GIL, handler or endless loop can loosen: a process dies with the one above it.

There are two, for either alone has a gap. The kernel's parent-death signal fires when the forking *thread* ends, so
it must be set under a main thread, and it knows only the parent. A death pipe spans generations: its write end
is open in the supervisor alone, and when that is gone the kernel itself signals each holder of a read end that
asked for it (``F_SETSIG``), whether it reads or not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

__all__ = ["die_with_parent", "die_with_pipe", "name_process", "prefer_for_oom"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_F_SETSIG = 10  # the fcntl module does not name it
_OOM_STEP = 200


def _prctl(option: int, argument: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(parent: int | None, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send ``signum`` to this process when its parent's forking thread ends; 0 undoes it.

    ``parent`` is who the parent should be: if it died before the call, this process ends at once. It lasts through
    ``exec`` and is not inherited by children.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def die_with_pipe(reader: int) -> int:
    """Have the kernel kill this process when the last write end of the pipe behind ``reader`` is closed.

    Returns the descriptor that must stay open for that, a new one: who is signalled belongs to the open file, which
    processes that inherited ``reader`` share. It lasts through ``exec`` if the descriptor is made inheritable.
    """
    own = os.open(f"/proc/self/fd/{reader}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        if os.read(own, 1) == b"":
            os._exit(128 + signal.SIGKILL)  # it was closed before we asked
    except BlockingIOError:
        pass
    return own


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def prefer_for_oom() -> None:
    """Have the kernel's out-of-memory killer choose this process before the mesh's own: it runs the user's code."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            adjustment = min(int(file.read()) + _OOM_STEP, 1000)
            file.seek(0)
            file.write(str(adjustment))
    except OSError:
        pass  # not allowed here: then it is chosen by its size alone
