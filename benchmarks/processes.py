"""The processes that are measured: a mesh as it ships, its memory, scripts in fresh interpreters."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omnibus.bus import Bus
from omnibus.embedded import interpreter, mesh_environment
from omnibus.launch.local import LocalLauncher
from omnibus.rundir import MeshKey, Target

__all__ = [
    "ROOT",
    "Script",
    "alone",
    "descendants",
    "eventually",
    "mebibytes",
    "pss",
    "python",
    "script",
    "serve",
    "tcp_mesh",
]

ROOT = Path(__file__).resolve().parent.parent
MiB = 1 << 20


@contextlib.contextmanager
def alone() -> Iterator[Path]:
    """Hide every mesh that runs here already, so that ``omnibus.connect()`` starts one; yield a private directory.

    Processes that start meanwhile cache their byte code, whatever the environment says: where a package is installed,
    it is cached already.
    """
    folder = Path(tempfile.mkdtemp(prefix="ob-", dir="/tmp"))
    changes = {"OMNIBUS_RUN_DIR": str(folder)}
    gone = ("OMNIBUS_ADDRESS", "OMNIBUS_WITHIN", "PYTHONDONTWRITEBYTECODE")
    kept = {name: os.environ.pop(name, None) for name in (*changes, *gone)}
    os.environ.update(changes)
    try:
        yield folder
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def tcp_mesh(*, insecure: bool, workers: int = 1) -> Iterator[Bus]:
    """Run a broker on a tcp port of the loopback interface and a node, and yield a bus to them."""
    from omnibus.brokers.auth import new_key

    key: MeshKey | None = None if insecure else new_key()
    with LocalLauncher() as launcher:
        environment = mesh_environment() | ({"OMNIBUS_KEY": key.text()} if key is not None else {})
        how = ["--insecure"] if insecure else []
        command = [*interpreter(), "omnibus.brokers", "--bind", "tcp://127.0.0.1:0", *how]
        broker = launcher.submit(command, name="broker", env=environment, ready=True)
        target = Target(launcher.wait_ready(broker, 30), key=key, insecure=insecure, source="benchmark")
        # Without a key nothing is unpickled: functions go by name, and only those of modules that the node allows.
        command = [
            *interpreter(),
            "omnibus.actors",
            "node",
            "--workers",
            str(workers),
            *(["--allow", "benchmarks"] if insecure else []),
        ]
        node = launcher.submit(command, name="node", env=environment | dict(target.environment()), ready=True)
        launcher.wait_ready(node, 30)
        with Bus(target, timeout=10) as bus:
            yield bus


# ---------------------------------------------------------------------- scripts in fresh interpreters


@contextlib.contextmanager
def script(*arguments: str) -> Iterator[Script]:
    """Run ``python`` so; it is to answer each line with a line of JSON, and to end when its input does."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Script(process)
    finally:
        with contextlib.suppress(OSError):
            process.communicate(timeout=20)
        if process.poll() is None:
            process.kill()
            process.wait()


class Script:
    """A program in an interpreter of its own, of which one may ask things."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, line: str) -> Any:
        """Write it ``line``, and return the JSON of what it answers."""
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None and writer is not None
        with contextlib.suppress(BrokenPipeError):
            writer.write(line + "\n")
            writer.flush()
        answer = reader.readline()
        if not answer:
            raise RuntimeError(
                f"{self._process.args!r} ended with status {self._process.wait()} when it was asked {line!r}"
            )
        return json.loads(answer)


def serve(**answers: Callable[[str], Any]) -> None:
    """Be such a program: answer each line ``verb argument`` by what ``answers[verb](argument)`` returns."""
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        print(json.dumps(answers[verb](argument)), flush=True)


def python(code: str, *arguments: str) -> Any:
    """Run ``code`` in a fresh interpreter in the root of this tree, and return the JSON that it prints."""
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return json.loads(ran.stdout)


def eventually(ready: Callable[[], Any], what: str, timeout: float = 20.0) -> Any:
    """Call ``ready`` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.002)
    return found


# ---------------------------------------------------------------------- memory


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that descend from ``pid``, itself among them, each with its command line."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command's name, in parentheses, may hold anything.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return {each: _command(each) for each in found}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes: its own pages, and its part of those that it shares."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"the kernel tells no PSS of process {pid}")


def mebibytes(pids: Sequence[int]) -> float:
    """Return the proportional set size of several processes together, in MiB."""
    return sum(pss(pid) for pid in pids) / MiB
