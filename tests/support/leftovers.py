"""What a test module leaves behind: processes, shared memory, socket files.

A process belongs to this session when it descends from it, or when its environment names the session's run
directory: a process whose parents are dead is found by the latter alone. A file in ``/dev/shm`` names no
session, so one that a process outside of this session has mapped or open is somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Traces", "clear", "new_traces"]

SHARED_MEMORY = Path("/dev/shm")
# The standard library's own helpers live as long as the process that first needed them.
LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Traces:
    """What is there now: processes by pid and start time, files by path."""

    processes: dict[tuple[int, float], str]
    segments: frozenset[Path]
    sockets: frozenset[Path]

    @classmethod
    def take(cls, run_dir: Path) -> Traces:
        """Look at the machine; ``run_dir`` is the session's run directory."""
        return cls(dict(_processes(run_dir)), frozenset(_segments()), frozenset(_sockets(run_dir)))

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.processes or self.segments or self.sockets)

    def __str__(self) -> str:
        """List all of it, one thing a line."""
        lines = [f"process {pid}: {command}" for (pid, _), command in sorted(self.processes.items())]
        lines += [f"shared memory {path}" for path in sorted(self.segments)]
        lines += [f"socket {path}" for path in sorted(self.sockets)]
        return "\n".join(f"  {line}" for line in lines)


def new_traces(before: Traces, run_dir: Path) -> Traces:
    """Return what is there now, was not there before, and is this session's."""
    now = Traces.take(run_dir)
    processes = {key: command for key, command in now.processes.items() if key not in before.processes}
    segments = now.segments - before.segments
    if segments:
        segments -= _held_by_others(segments, {pid for pid, _ in now.processes} | {os.getpid()})
    return Traces(processes, segments, now.sockets - before.sockets)


def clear(traces: Traces) -> None:
    """End the processes by id and remove the files, so that one module's fault does not fail the next."""
    for pid, started in traces.processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == started:
                process.kill()      # and not reaped: its exit status belongs to whoever started it
    for path in traces.segments | traces.sockets:
        path.unlink(missing_ok=True)


def _processes(run_dir: Path) -> Iterator[tuple[tuple[int, float], str]]:
    me = psutil.Process()
    ancestors = {me.pid, *(parent.pid for parent in me.parents())}
    below = {child.pid for child in me.children(recursive=True)}
    mark = f"OMNIBUS_RUN_DIR={run_dir}".encode()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in ancestors or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.pid in below or mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                command = " ".join(process.cmdline())
                if not any(name in command for name in LASTING):
                    yield (process.pid, process.create_time()), command


def _segments() -> Iterator[Path]:
    return SHARED_MEMORY.glob("omnibus*")


def _sockets(run_dir: Path) -> Iterator[Path]:
    for path in run_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                yield path


def _held_by_others(segments: frozenset[Path], ours: set[int]) -> frozenset[Path]:
    held: set[Path] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            opened = {os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
            held |= {path for path in segments if str(path) in maps or str(path) in opened}
    return frozenset(held)
