"""Which host, which boot and which process: what lets a file say whether its writer is still alive.

A process id alone proves little: ids are used again, and two containers on one host count theirs apart. So a
:class:`ProcessMark` has the boot, the pid namespace and the start time beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from omnibus.errors import OmnibusError

__all__ = ["ProcessMark", "boot_id", "host_key", "host_name", "pid_space", "same_host"]

_STATE, _START_TIME = 0, 19
"""Places of the state and the start time among the fields of ``/proc/<pid>/stat`` that follow the command's
name."""


def host_name() -> str:
    """Return this host's name, as the kernel knows it."""
    return os.uname().nodename


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the random id of this boot: equal ids share one kernel, thus memory and unix sockets."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_space() -> str:
    """Return the name of this process's pid namespace; a pid means something only within its own."""
    return os.readlink("/proc/self/ns/pid")


def host_key() -> str:
    """Return what processes have in common that can name each other by pid: boot and pid namespace."""
    return f"{boot_id()}/{pid_space()}"


def same_host(boot: str) -> bool:
    """Return whether ``boot`` is the id of the boot that this process runs under."""
    return boot == boot_id()


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process, named so that no later one is mistaken for it.

    ``started`` is its start in clock ticks since the boot.
    """

    pid: int
    started: int
    boot: str
    space: str
    host: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """Return the mark of the live process ``pid`` of this host.

        Raises :class:`OmnibusError` where there is no such process.
        """
        started = _start_time(pid)
        if started is None:
            raise OmnibusError(f"process {pid} cannot be marked: it is not alive in this pid namespace")
        return cls(pid=pid, started=started, boot=boot_id(), space=pid_space(), host=host_name())

    def alive(self) -> bool | None:
        """Return whether the process is alive, or ``None`` where that cannot be seen from here."""
        if self.boot != boot_id():
            return False if self.host == host_name() else None  # this host has booted since, or it is another host
        if self.space != pid_space():
            return None
        return _start_time(self.pid) == self.started

    def why_gone(self) -> str:
        """Say in a few words why :meth:`alive` is false."""
        if self.boot != boot_id():
            return f"host {self.host} has booted since"
        return f"its process {self.pid} has ended"


def _start_time(pid: int) -> int | None:
    """Return the start time of a process that still runs, ``None`` for one that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[_STATE] in (b"Z", b"X") else int(fields[_START_TIME])
