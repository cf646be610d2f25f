"""Terminal sessions in documentation, run as they are shown.

A line that begins with ``$ `` is a command. What stands below it is all that it prints; ``…`` in it is anything within
a line, and ``…`` alone any number of lines. ``^C`` is Ctrl-C to the command above it, or, where a block begins with
it, to the one in an earlier block that still runs. A command that runs on, such as a mesh, is waited for until it has
printed what is shown.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cli import PATIENCE, Lines, interruptible

__all__ = ["Session", "Step", "pattern", "steps"]

INTERRUPT = "^C"


@dataclass
class Step:
    """One command and what it prints, before and after Ctrl-C. Without a command it is the end of an earlier one."""

    command: str
    printed: list[str] = field(default_factory=list)
    interrupted: list[str] | None = None


def steps(block: str) -> list[Step]:
    """Return the steps of one block."""
    found: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:]))
        elif line == INTERRUPT:
            if not found:
                found.append(Step(""))
            found[-1].interrupted = []
        else:
            assert found, f"a block begins with a command, not with {line!r}"
            last = found[-1]
            (last.printed if last.interrupted is None else last.interrupted).append(line)
    return found


def pattern(lines: Sequence[str]) -> re.Pattern[str]:
    """Return what matches text like these lines, whatever the space at the ends of its lines."""
    parts = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            words = [re.sub(r"(?:\\ )+", r"[ ]+", re.escape(part)) for part in line.strip().split("…")]
            parts.append(r"[ ]*" + r"[^\n]*?".join(words) + r"[ ]*\n")
    return re.compile("".join(parts))


class Session:
    """A shell in a directory, and what still runs in it. ``runs_on`` tells which commands do not end by themselves."""

    def __init__(self, folder: Path, environment: Mapping[str, str], runs_on: re.Pattern[str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._runs_on = runs_on
        self._running: list[tuple[str, subprocess.Popen[str], Lines]] = []

    def run(self, step: Step) -> None:
        """Do one step; fail where it prints something else than is shown."""
        if step.command:
            if step.interrupted is None and not self._runs_on.search(step.command):
                self._finish(step)
                return
            self._begin(step)
        if step.interrupted is not None:
            self._interrupt(step)

    def _finish(self, step: Step) -> None:
        ran = subprocess.run(
            ["bash", "-c", step.command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        self._compare(step.command, step.printed, ran.stdout)

    def _begin(self, step: Step) -> None:
        with interruptible():
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {step.command}"],
                cwd=self._folder,
                env={**self._environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert process.stdout is not None
        lines = Lines(process.stdout)
        self._running.append((step.command, process, lines))
        for line in step.printed:
            shown = pattern([line])
            lines.wait_for(lambda text, shown=shown: shown.fullmatch(f"{text}\n") is not None)  # type: ignore[misc]

    def _interrupt(self, step: Step) -> None:
        command, process, lines = self._running.pop()
        seen = len(list(lines))
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        lines.finish()
        assert step.interrupted is not None
        printed = "".join(f"{line}\n" for line in list(lines)[seen:])
        self._compare(f"{command} after {INTERRUPT}", step.interrupted, printed)

    def _compare(self, what: str, expected: Sequence[str], printed: str) -> None:
        shown = "\n".join(expected)
        assert pattern(expected).fullmatch(printed), f"$ {what}\nshould print\n{shown}\nand printed\n{printed}"

    def close(self) -> None:
        """End what still runs, the last first."""
        for _, process, lines in reversed(self._running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
            lines.finish()
        self._running.clear()
