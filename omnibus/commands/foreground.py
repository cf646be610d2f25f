"""A mesh in the foreground: a broker and a node as children of this process, drained when it is told to end."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from omnibus.actors.restart import RestartPolicy, Restarts
from omnibus.address import Target
from omnibus.bus import Bus
from omnibus.commands.base import FAILED, OK, ask_status, say, worker_environment
from omnibus.commands.lines import TOPIC, next_number, show_line
from omnibus.embedded import interpreter
from omnibus.errors import AlreadyExists, MeshError, NotFound, OmnibusError
from omnibus.face import WITHIN_VARIABLE
from omnibus.launch.base import Handle, Status
from omnibus.launch.local import LocalLauncher
from omnibus.rundir import RUN_FILE
from omnibus.runfile import RunFile

__all__ = ["Foreground", "Plan", "refuse_second"]

_POLICY: Final = RestartPolicy(most=5, window=60.0)
_STEP: Final = 0.1
_FLUSH: Final = 1.0
_NODE_GRACE: Final = 8.0
"""More than a node's own, within which it ends its children."""
_BROKER_GRACE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``address`` is the mesh's own, ``broker`` and ``node`` are further options of the two.

    ``drain`` is how long running and queued work may take to end once the mesh is told to stop, ``within`` how long the
    mesh may take to start.
    """

    run_dir: Path
    address: str
    broker: list[str] = field(default_factory=list)
    node: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    drain: float = 30.0
    within: float = 20.0
    quiet: bool = False

    @property
    def run_file(self) -> Path:
        """Where the broker tells others of itself."""
        return self.run_dir / RUN_FILE


def refuse_second(run_file: Path) -> None:
    """Raise :class:`AlreadyExists` where the run file is that of a mesh which lives, or may live on another host."""
    try:
        other = RunFile.read(run_file)
    except (MeshError, NotFound):
        return  # none, or a damaged one: the broker replaces it
    if not other.stale():
        raise AlreadyExists(
            f"a mesh is up here already, at {other.address} (process {other.process.pid} on {other.process.host}): "
            "look at it with `omnibus status`, stop it with Ctrl-C where it runs, or start this one elsewhere with "
            "OMNIBUS_RUN_DIR=DIRECTORY"
        )


class _Process:
    """One of the two children; ``status`` is set once it has ended."""

    def __init__(self, handle: Handle, pid: int) -> None:
        self.handle = handle
        self.pid = pid
        self.status: Status | None = None
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended, and was reaped, already
            self.pidfd = -1


class Foreground:
    """Runs the mesh of a :class:`Plan`: :meth:`start`, then :meth:`run` to its end, and :meth:`close` in any case."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._launcher = LocalLauncher()
        self._environment = worker_environment() | plan.environment | {WITHIN_VARIABLE: ""}
        self._poll = select.poll()
        self._watched: dict[int, _Process] = {}
        self._wake = -1
        self._signals = 0
        self._restarts = Restarts(_POLICY, random.random)
        self._restart_at: float | None = None
        self._bus: Bus | None = None
        self._seen = 0
        self._epoch = ""

    def start(self) -> tuple[str, ...]:
        """Start both, and return the mesh's addresses once both serve.

        Raises :class:`omnibus.SetupFailed` or :class:`omnibus.ConnectTimeout` where one does not.
        """
        plan = self._plan
        deadline = time.monotonic() + plan.within
        options = ["--bind", plan.address, "--run-file", str(plan.run_file), *plan.broker]
        self._broker = self._launch("broker", "omnibus.brokers", options)
        self._node = self._launch_node()
        for process in (self._broker, self._node):
            self._launcher.wait_ready(process.handle, max(0.1, deadline - time.monotonic()))
        run = RunFile.read(plan.run_file)
        self._epoch = run.epoch
        self._watch_signals()
        self._bus = Bus(Target(plan.address, source="omnibus up"), timeout=plan.within)
        if not plan.quiet:
            threading.Thread(target=self._forward, name="omnibus-output", daemon=True).start()
        return run.addresses

    def _launch_node(self) -> _Process:
        return self._launch("node", "omnibus.actors", ["node", *self._plan.node])

    def _launch(self, name: str, module: str, options: list[str]) -> _Process:
        environment = self._environment
        if name == "node":  # the broker takes the user's key; the node reaches it by the private socket
            environment = environment | dict(Target(self._plan.address).environment())
        command = [*interpreter(), module, *options, "--owner", str(os.getpid())]
        handle = self._launcher.submit(command, name=name, env=environment, ready=True)
        process = _Process(handle, self._launcher.pid(handle))
        if process.pidfd >= 0:
            self._watched[process.pidfd] = process
            self._poll.register(process.pidfd, select.POLLIN)
        else:
            process.status = self._launcher.wait(handle, _BROKER_GRACE)
        return process

    # ------------------------------------------------------------------ serving

    def run(self) -> int:
        """Serve until a signal comes or the mesh cannot go on; return the exit code: whether anything was lost."""
        while True:
            if self._signals:
                return self._stop()
            if self._broker.status is not None:
                say("up", f"{self._broker.status.why}: what it held is lost")
                self._end(self._node, _NODE_GRACE)
                return FAILED
            if not self._keep_node(time.monotonic()):
                return self._give_up()
            self._wait(None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic()))

    def _keep_node(self, now: float) -> bool:
        """Start a node that has ended again, after its delay; false where it ends too often."""
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at = None
                self._node = self._launch_node()
        elif self._node.status is not None:
            delay = self._restarts.after(now)
            if delay is None:
                return False
            say(
                "up",
                f"{self._node.status.why}; it is started again in {delay:.1f} s, and its work is done anew",
            )
            self._restart_at = now + delay
        return True

    def _give_up(self) -> int:
        say(
            "up",
            f"the node ended {_POLICY.most or 0} times within {_POLICY.window:g} s, and is not started again",
        )
        self._report(self._unfinished())
        self._end(self._broker, _BROKER_GRACE)
        return FAILED

    # ------------------------------------------------------------------ the end

    def _stop(self) -> int:
        """Drain, end both, and say what was lost."""
        RunFile.remove(self._plan.run_file, self._epoch)  # nobody new finds it
        left = self._drain()
        self._end(self._node, _NODE_GRACE)
        self._flush()
        if self._bus is not None:
            self._bus.close(_FLUSH)
        self._end(self._broker, _BROKER_GRACE)
        return self._report(left)

    def _drain(self) -> dict[str, int] | None:
        """Wait until nothing is queued or running, within bounds; return what is left, ``None`` if nobody knows."""
        deadline = time.monotonic() + self._plan.drain
        left = self._unfinished()
        if not left or not sum(left.values()):
            return left
        text = "draining, {} left; Ctrl-C again stops at once"
        with _progress(text.format(_count(left))) as show:
            while left and sum(left.values()) and self._signals < 2 and time.monotonic() < deadline:
                show(text.format(_count(left)))
                self._wait(_STEP)
                left = self._unfinished()
        if left and sum(left.values()) and self._signals < 2:
            say("up", f"drained for {self._plan.drain:g} s and no longer, with {_count(left)} left: stopping")
        return left

    def _unfinished(self) -> dict[str, int] | None:
        """Return how many tasks and messages have not ended."""
        if self._bus is None or self._broker.status is not None:
            return None
        try:
            status = ask_status(self._bus, 5.0)
        except OmnibusError:
            return None
        return {
            "task": status["tasks"]["queued"] + status["tasks"]["running"],
            "message": status["messages"]["queued"] + status["messages"]["running"],
        }

    def _report(self, left: dict[str, int] | None) -> int:
        if left is None:
            say("up", "stopped; the broker had ended before, so what was lost nobody can say")
            return FAILED
        if sum(left.values()):
            say("up", f"stopped with {_count(left)} unfinished: they are lost")
            return FAILED
        say("up", "stopped; nothing was lost")
        return OK

    def _end(self, process: _Process, grace: float) -> None:
        """End a child: TERM, and KILL when its time is over or a second signal comes."""
        with contextlib.suppress(ProcessLookupError):
            if process.status is None:
                signal.pidfd_send_signal(process.pidfd, signal.SIGTERM)
        deadline = time.monotonic() + (grace if self._signals < 2 else 0.5)
        hurried = self._signals
        while process.status is None and time.monotonic() < deadline and self._signals == hurried:
            self._wait(max(0.0, deadline - time.monotonic()))
        self._launcher.cancel(process.handle, 0.0)

    def close(self) -> None:
        """End what still runs, at once."""
        with contextlib.suppress(OmnibusError):
            if self._bus is not None:
                self._bus.close(0)
        self._launcher.close(grace=1.0)

    # ------------------------------------------------------------------ events

    def _watch_signals(self) -> None:
        """Turn signals into bytes that :meth:`_wait` sees. Until now they ended this process, and so its children."""
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                signal.signal(number, lambda *_: None)
        self._poll.register(self._wake, select.POLLIN)

    def _wait(self, timeout: float | None) -> None:
        """Wait for a signal, the end of a child, or ``timeout`` seconds."""
        for fd, _ in self._poll.poll(None if timeout is None else timeout * 1000 + 1):
            if fd == self._wake:
                self._signals += len(os.read(fd, 64))
                continue
            process = self._watched.pop(fd)
            self._poll.unregister(fd)
            process.status = self._launcher.wait(process.handle, _BROKER_GRACE)
            os.close(fd)

    # ------------------------------------------------------------------ output

    def _forward(self) -> None:
        """Show what children print, until the bus ends: the body of a thread."""
        assert self._bus is not None
        with contextlib.suppress(OmnibusError):
            lines = self._bus.subscribe(TOPIC, since=1)
            missed = 0
            for line in lines:
                if lines.missed > missed:
                    say("up", f"{lines.missed - missed} lines of output were dropped")
                    missed = lines.missed
                _show(line)
                self._seen = lines.number

    def _flush(self) -> None:
        """Let the last lines be shown."""
        if self._plan.quiet or self._bus is None:
            return
        with contextlib.suppress(OmnibusError, TimeoutError):
            last = next_number(self._bus, _FLUSH) - 1
            deadline = time.monotonic() + _FLUSH
            while self._seen < last and time.monotonic() < deadline and self._broker.status is None:
                self._wait(0.01)


def _show(line: Any) -> None:
    """Show a line; anybody may publish under the topic, so it may be anything."""
    if isinstance(line, dict):
        show_line(line)


def _count(left: dict[str, int]) -> str:
    """Return counts as words."""
    told = [f"{count:,} {what}{'' if count == 1 else 's'}" for what, count in left.items() if count]
    return " and ".join(told) or "nothing"


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show ``text`` and then what the given function is told: a moving line on a terminal, one line elsewhere."""
    if not sys.stderr.isatty():
        say("up", text)
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status(text) as status:
        yield status.update
