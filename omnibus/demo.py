"""``omnibus demo``: a network learns handwritten digits on a mesh of its own, and one worker is killed on the way."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from omnibus.bus import Bus
from omnibus.demo_run import EVALUATION, TRAINING, Listener, Plan, Report, Training, load_data
from omnibus.embedded import EmbeddedMesh
from omnibus.errors import OmnibusError

__all__ = ["main", "run", "show"]

WORKERS = 2
PRELOAD = ("torch", "omnibus.demo_work")
START_WITHIN = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, or 1 where a task was lost, the books do not add up, or it could not run."""
    options = _parse(argv)
    console = Console(quiet=options.json)
    missing = _missing()
    if missing:
        print(f"omnibus demo: {missing} is not installed: pip install 'omnibus[demo]'", file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        report = run(_plan(options), console)
    except OmnibusError as error:
        print(f"omnibus demo: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(dataclasses.asdict(report) | {"ok": not report.problems}))
    else:
        show(report, console, time.monotonic() - began)
    return 1 if report.problems else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="omnibus demo", description=__doc__.partition(": ")[2])
    parser.add_argument("--quick", action="store_true", help="a few rounds only")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same accuracy")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object, and nothing else")
    return parser.parse_args(argv)


def _plan(options: argparse.Namespace) -> Plan:
    if options.quick:
        return Plan(seed=options.seed, rounds=28, shards=12, copies=1)
    return Plan(seed=options.seed)


def _missing() -> str:
    """Return the libraries of the extra ``demo`` that are not installed."""
    from importlib.util import find_spec

    libraries = {"torch": "torch", "sklearn": "scikit-learn"}
    return " and ".join(name for module, name in libraries.items() if find_spec(module) is None)


def run(plan: Plan, console: Console) -> Report:
    """Start a mesh, train on it as ``plan`` says, and show on ``console`` how that goes.

    The mesh is always the demo's own, whatever the environment or a run file names: it kills one of its workers.
    """
    cpus = max(WORKERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(load_data, plan)
        console.print("Starting a broker and two workers …")
        mesh = EmbeddedMesh.start(workers=WORKERS, cpus=cpus, preload=PRELOAD, timeout=START_WITHIN)
        try:
            bus = Bus(mesh.target, timeout=START_WITHIN, mesh=mesh)
        except BaseException:
            mesh.stop()
            raise
        with bus:
            data = loading.result()
            with _View(plan, console) as view:
                return Training(bus, plan, data, view).run()


class _View(Listener):
    """A progress bar on a terminal; elsewhere a line now and then."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._told = 0
        self._task = TaskID(0)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("accuracy [green]{task.fields[accuracy]:.1%}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal or console.quiet,
        )

    def __enter__(self) -> _View:
        self._bar.start()
        self._task = self._bar.add_task("round 1", total=self._plan.tasks, accuracy=0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begun(self, status: dict[str, Any]) -> None:
        """Say who takes part."""
        workers = " and ".join(str(worker["pid"]) for worker in status["workers"])
        server = " ".join(str(actor["pid"]) for actor in status["actors"])
        text = f"Broker pid {status['broker']['pid']}, workers pid {workers}, parameter server pid {server}"
        self._console.print(text, highlight=False)

    def advanced(self, done: int, round_: int, accuracy: float) -> None:
        """Move the bar."""
        title = f"round {min(round_ + 1, self._plan.rounds)} of {self._plan.rounds}"
        self._bar.update(self._task, completed=done, description=title, accuracy=accuracy)
        if self._bar.disable and done * 10 // self._plan.tasks > self._told:
            self._told = done * 10 // self._plan.tasks
            text = f"{title}: {done} of {self._plan.tasks} tasks, accuracy {accuracy:.1%}"
            self._console.print(text, highlight=False)

    def killed(self, name: str, pid: int, waiting: int) -> None:
        """Say who died."""
        text = f"[bold red]SIGKILL[/] to {name} (pid {pid}) in mid-task, with {waiting} tasks waiting"
        self._console.print(text, highlight=False)

    def replaced(self, name: str, pid: int, seconds: float) -> None:
        """Say who lives."""
        text = f"[bold green]Replaced[/] by {name} (pid {pid}) after {seconds * 1000:.0f} ms"
        self._console.print(text, highlight=False)


def show(report: Report, console: Console, whole: float) -> None:
    """Print the report as tables; ``whole`` is the time in seconds that all of it took."""
    lanes = Table(box=SIMPLE_HEAD, title="Lanes", title_justify="left")
    for title in ("lane", "work"):
        lanes.add_column(title, justify="right" if title == "lane" else "left")
    for title in ("tasks", "mean wait", "longest wait"):
        lanes.add_column(title, justify="right")
    for lane in report.lanes:
        style = {EVALUATION: "cyan", TRAINING: "yellow"}.get(lane.priority, "")
        waits = (f"{1000 * wait:.1f} ms" for wait in (lane.mean_wait, lane.longest_wait))
        lanes.add_row(str(lane.priority), lane.title, f"{lane.tasks:,}", *waits, style=style)
    console.print()
    console.print(lanes)
    console.print(_facts(report, whole))
    if report.problems:
        for problem in report.problems:
            console.print(f"[bold red]Wrong:[/] {problem}", highlight=False)
        return
    console.print(
        f"[bold green]Nothing was lost:[/] {report.tasks:,} tasks submitted, {report.books['done']:,} done, each once.",
        highlight=False,
    )


def _facts(report: Report, whole: float) -> Table:
    facts = Table.grid(padding=(0, 2))
    add = facts.add_row
    add("killed", f"{report.killed} (pid {report.killed_pid}), replaced after {1000 * report.replaced_seconds:.0f} ms")
    add("redeliveries", f"{report.redelivered}")
    add("lost", f"{report.lost}")
    add("throughput", f"{report.tasks_per_second:,.0f} tasks/s over {report.seconds:.1f} s; {whole:.1f} s in all")
    add("tensors", f"{report.tensors:,} sent and received, {report.tensor_bytes / 1e6:,.0f} MB, as Arrow frames")
    add("accuracy", f"{report.accuracy_before:.1%} → [bold]{report.accuracy:.1%}[/] of the digits held out")
    return facts


if __name__ == "__main__":
    sys.exit(main())
