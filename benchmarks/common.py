"""What the benchmarks share: results, interleaved rounds, percentiles, and their output for people and for programs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Result", "absolute", "interleave", "machine", "p", "run", "run_one", "show", "versus"]

Measure = Callable[[bool], "list[Result]"]


@dataclass(frozen=True, slots=True)
class Result:
    """One figure, what it is set against, and what it must reach.

    ``figure`` is what ``floor`` and ``aim`` bound: the median over the rounds, of a ratio or of an absolute value in
    ``unit``. ``ours`` and ``reference`` are the medians of what was measured, ``rounds`` the pairs themselves, in
    ``measured_in``. A result without a floor is there for comparison.
    """

    benchmark: str
    claim: str
    figure: float
    unit: str
    better: str
    floor: float | None
    aim: float | None
    measured_in: str
    ours: float
    against: str
    reference: float | None
    rounds: list[tuple[float, ...]]
    details: dict[str, Any] = field(default_factory=dict)

    def holds(self, bound: float | None) -> bool | None:
        """Tell whether the figure reaches ``bound``; ``None`` where there is none."""
        if bound is None:
            return None
        return self.figure >= bound if self.better == "more" else self.figure <= bound

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it, with what it reaches."""
        return {**dataclasses.asdict(self), "floor_holds": self.holds(self.floor), "aim_holds": self.holds(self.aim)}


def versus(
    benchmark: str,
    claim: str,
    pairs: Sequence[tuple[float, float]],
    *,
    against: str,
    measured_in: str,
    better: str = "more",
    floor: float | None = None,
    aim: float | None = None,
    **details: Any,
) -> Result:
    """Return the result whose figure is the median of the ratios of ``pairs``, each (ours, reference)."""
    return Result(
        benchmark=benchmark,
        claim=claim,
        figure=statistics.median(ours / reference for ours, reference in pairs),
        unit="×",
        better=better,
        floor=floor,
        aim=aim,
        measured_in=measured_in,
        ours=statistics.median(ours for ours, _ in pairs),
        against=against,
        reference=statistics.median(reference for _, reference in pairs),
        rounds=list(pairs),
        details=details,
    )


def absolute(
    benchmark: str,
    claim: str,
    values: Sequence[float],
    *,
    unit: str,
    against: str,
    references: Sequence[float],
    floor: float | None = None,
    aim: float | None = None,
    **details: Any,
) -> Result:
    """Return the result whose figure is the median of ``values``, the less the better."""
    ours = statistics.median(values)
    reference = statistics.median(references) if references else None
    rounds: list[tuple[float, ...]] = (
        list(zip(values, references, strict=True)) if references else [(v,) for v in values]
    )
    return Result(benchmark, claim, ours, unit, "less", floor, aim, unit, ours, against, reference, rounds, details)


def interleave(rounds: int, *measures: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """Call the measures in turn, A B A B …, and return one tuple for each round.

    A machine has fast and slow minutes: what is to be compared has to be measured side by side.
    """
    return [tuple(measure() for measure in measures) for _ in range(rounds)]


def p(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    """Return what the figures depend on: the processor, the system, versions, and what else the machine was doing."""
    import zmq

    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def run(measures: dict[str, Measure], argv: Sequence[str] | None, prog: str) -> int:
    """Run those benchmarks that the command line names, or all, and print what came of them; return the exit status.

    The status says whether they ran, not whether the figures reach their floors: that is in the output.
    """
    parser = _parser(prog)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(measures)} (default: all)")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in measures:
            parser.error(f"no benchmark is called {name!r}; there are {', '.join(measures)}")
    return _run({name: measures[name] for name in options.names or measures}, options)


def run_one(name: str, measure: Measure) -> int:
    """Run one benchmark, as the command line of its script says."""
    return _run({name: measure}, _parser(f"python -m benchmarks.{name}").parse_args())


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Measure Omnibus, each claim beside its reference.")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--quick", action="store_true", help="take some seconds: shows that all works, and rough figures"
    )
    return parser


def _run(measures: dict[str, Measure], options: argparse.Namespace) -> int:
    about = machine()
    results: list[Result] = []
    with _orderly():
        for name, measure in measures.items():
            if not options.json:
                print(f"{name} …", file=sys.stderr, flush=True)
            results += measure(options.quick)
    if options.json:
        found = [result.as_dict() for result in results]
        print(json.dumps({"machine": about, "quick": options.quick, "results": found}, indent=1))
    else:
        show(results, about, quick=options.quick)
    return 0


@contextlib.contextmanager
def _orderly() -> Iterator[None]:
    """Have SIGTERM end this program as an exception does, so that the processes that it started end too."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(results: Sequence[Result], about: dict[str, Any], *, quick: bool) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Omnibus, beside what it is measured against", caption=_caption(about, quick))
    for heading in ("benchmark", "claim"):
        table.add_column(heading, overflow="fold")
    for heading in ("measured", "floor", "aim", "ours", "reference"):
        table.add_column(heading, justify="right")
    table.add_column("against", overflow="fold")
    for result in results:
        sign = "≥" if result.better == "more" else "≤"
        table.add_row(
            result.benchmark,
            result.claim,
            f"{_short(result.figure)} {result.unit}",
            _bound(result, result.floor, sign),
            _bound(result, result.aim, sign),
            f"{_short(result.ours)} {result.measured_in}",
            "" if result.reference is None else f"{_short(result.reference)} {result.measured_in}",
            result.against,
        )
    console = Console()
    console.print(table) if console.is_terminal else Console(width=160).print(table)


def _caption(about: dict[str, Any], quick: bool) -> str:
    text = f"{about['cpus']} CPUs ({about['processor']}), Python {about['python']}, libzmq {about['libzmq']}"
    text += f", load {about['load_before']} before"
    return f"{text}; a quick run, so the figures are rough" if quick else text


def _bound(result: Result, bound: float | None, sign: str) -> str:
    if bound is None:
        return ""
    return f"{sign} {_short(bound)} {'[green]holds[/]' if result.holds(bound) else '[red]missed[/]'}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
