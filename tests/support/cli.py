"""The command line as a user runs it: processes of their own, ended by signals, read line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

__all__ = ["OMNIBUS", "PATIENCE", "Lines", "Running", "environment", "interruptible", "mesh", "omnibus", "start"]

OMNIBUS = [sys.executable, "-m", "omnibus.cli"]
PATIENCE = 30.0
# What would make the output of a pipe that of a terminal, or lead to another mesh.
UNWANTED = ("CI", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "COLUMNS")


def environment(run_dir: Path, **more: str) -> dict[str, str]:
    """Return the environment of a user whose run directory this is."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in UNWANTED and not name.startswith("OMNIBUS_")
    }
    return {**kept, "OMNIBUS_RUN_DIR": str(run_dir), **more}


def omnibus(
    run_dir: Path, *arguments: str, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*OMNIBUS, *arguments],
        env=environment(run_dir, **more),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


class Lines:
    """What a process prints on one stream, as it comes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._lines))

    @property
    def text(self) -> str:
        """All so far."""
        return "\n".join(self._lines)

    def wait_for(self, wanted: str | Callable[[str], bool], timeout: float = PATIENCE) -> str:
        """Return the first line that begins so, or of which this is true; wait for it."""

        def found() -> str | None:
            begins = (lambda line: line.startswith(wanted)) if isinstance(wanted, str) else wanted
            return next((line for line in self._lines if begins(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, timeout)
            line = found()
        assert line is not None, f"no line {wanted!r} within {timeout:g} s; there were: {self.text!r}"
        return line

    def finish(self) -> None:
        """Wait for the end of the stream, and close it."""
        self._thread.join(PATIENCE)
        assert self._ended, "the stream is still open: somebody holds it"
        self._stream.close()


class Running:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.out = Lines(process.stdout)
        self.err = Lines(process.stderr)

    def signal(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the command alone, as Ctrl-C does to one whose children have sessions of their own."""
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end, and for all that it said; return the exit code."""
        code = self.process.wait(timeout)
        self.out.finish()
        self.err.finish()
        return code


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Have processes that are started in the block heed SIGINT, also where this one ignores it.

    A background job of a shell ignores it, and its children would too.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def start(run_dir: Path, *arguments: str, cwd: Path | None = None, **more: str) -> Iterator[Running]:
    """Give a command that runs; kill it at last."""
    with interruptible():
        process = subprocess.Popen(
            [*OMNIBUS, *arguments],
            env=environment(run_dir, PYTHONUNBUFFERED="1", **more),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def mesh(run_dir: Path, *options: str, cwd: Path | None = None, **more: str) -> Iterator[Running]:
    """Give a mesh of ``omnibus up`` that is ready; drain it at last."""
    with start(run_dir, "up", *options, cwd=cwd, **more) as running:
        running.out.wait_for("ready ")
        yield running
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
            running.wait()
