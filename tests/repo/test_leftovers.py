"""The guard that looks for what a module leaves behind finds it, and clears it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.events import eventually
from tests.support.leftovers import SHARED_MEMORY, Traces, clear, new_traces

WAIT = "import signal; signal.pause()"


@contextlib.contextmanager
def orphan(script: str, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Run ``script`` in a process whose parent is dead, and yield its pid; end it at last."""
    parent = (
        "import subprocess, sys\n"
        "quiet = subprocess.DEVNULL\n"
        f"print(subprocess.Popen([sys.executable, '-c', {script!r}], stdout=quiet, stderr=quiet).pid)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", parent], check=True, capture_output=True, env=environment
    )
    pid = int(ran.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def before(run_dir: Path) -> Traces:
    return Traces.take(run_dir)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", WAIT]) as process:
        yield process
        process.kill()


def test_a_child_is_found_and_ended(before: Traces, run_dir: Path, child: subprocess.Popen[bytes]) -> None:
    left = new_traces(before, run_dir)
    assert [pid for pid, _ in left.processes] == [child.pid]
    assert f"process {child.pid}: " in str(left)
    clear(left)
    assert child.wait(5) == -signal.SIGKILL
    assert not new_traces(before, run_dir)


def test_a_process_whose_parent_is_dead_is_found(before: Traces, run_dir: Path) -> None:
    with orphan(WAIT) as pid:
        assert [found for found, _ in new_traces(before, run_dir).processes] == [pid]
    eventually(lambda: not new_traces(before, run_dir), what="the orphan is gone")


def test_a_socket_in_the_run_directory_is_found_and_removed(before: Traces, run_dir: Path) -> None:
    path = run_dir / "left.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        left = new_traces(before, run_dir)
    assert left.sockets == {path}
    clear(left)
    assert not path.exists()


def test_a_segment_is_found_unless_another_session_holds_it(before: Traces, run_dir: Path) -> None:
    path = SHARED_MEMORY / f"omnibus-test-{os.getpid()}"
    path.touch()
    try:
        assert new_traces(before, run_dir).segments == {path}
        environment = {name: value for name, value in os.environ.items() if name != "OMNIBUS_RUN_DIR"}
        with orphan(f"held = open({str(path)!r}); {WAIT}", environment):
            eventually(lambda: not new_traces(before, run_dir), what="the segment is seen as the other's")
        eventually(lambda: new_traces(before, run_dir).segments == {path}, what="it is nobody's again")
    finally:
        path.unlink()
