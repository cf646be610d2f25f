"""The state of a mesh as tables for people."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = [
    "actors",
    "brief",
    "duration",
    "lanes",
    "make_console",
    "nodes",
    "overview",
    "size",
    "table",
    "tasks",
    "view",
    "workers",
]

_PIPED_WIDTH = 200
_STYLES = {
    **dict.fromkeys(("up", "idle", "ready", "done", "ok"), "green"),
    **dict.fromkeys(("busy", "lent", "starting", "setup", "stopping"), "cyan"),
    **dict.fromkeys(("restarting", "warn"), "yellow"),
    **dict.fromkeys(("lost", "fail"), "bold red"),
}


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or as wide as needed where there is none."""
    # Columns that a script cuts out of a pipe must not be cut by the width of a terminal that is not there.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(highlight=False, width=width)


def duration(seconds: float) -> str:
    """Return a time for people, in two units at most."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def brief(seconds: float) -> str:
    """Return a time for people that is often short."""
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else duration(seconds)


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table; a column whose name begins with ``>`` is set to the right, and states have their colours."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, expand=False
    )
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        made.add_row(
            *[Text("–" if cell is None else str(cell), style=_STYLES.get(str(cell), "")) for cell in row]
        )
    return made


def overview(status: dict[str, Any]) -> Text:
    """Return a line on the broker."""
    broker = status["broker"]
    text = Text("broker ", style="bold")
    text.append(str(broker.get("address", "")), style="cyan")
    clients = len(status["clients"])
    where = f"  pid {broker.get('pid')} on {broker.get('host')}"
    return text.append(
        f"{where}, up {duration(broker['uptime'])}, {clients} client{'' if clients == 1 else 's'}",
        style="default",
    )


def nodes(status: dict[str, Any]) -> Table:
    """Return the hosts and what is free on them."""
    rows = [
        (
            node["name"], node["host"], node["pid"], node["state"], f"{node['free_cpus']:g} of {node['cpus']:g}",
            " ".join(f"{name}:{free:.0%}" for name, free in node["gpus"].items()) or None, size(node["memory"]),
            " ".join(f"{name}={value}" for name, value in node["labels"].items()) or None,
        )
        for node in _sorted(status["nodes"])
    ]  # fmt: skip
    return table(
        "Nodes", ("name", "host", ">pid", "state", ">free CPUs", "free GPUs", ">memory", "labels"), rows
    )


def workers(status: dict[str, Any]) -> Table:
    """Return the workers."""
    rows = [
        (
            worker["name"],
            worker["host"],
            worker["pid"],
            worker["state"],
            worker["running"],
            worker["restarts"],
        )
        for worker in _sorted(status["workers"])
    ]
    return table("Workers", ("name", "host", ">pid", "state", ">running", ">restarts"), rows)


def _sorted(members: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return members by name, the numbers in their names as numbers."""

    def key(member: dict[str, Any]) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", str(member["name"]))
        return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted(members, key=key)


def actors(status: dict[str, Any]) -> Table:
    """Return the actors."""
    rows = [
        (
            each["name"],
            each["host"],
            each["pid"],
            each["state"],
            each["running"],
            each["queued"],
            each["restarts"],
        )
        for each in _sorted(status["actors"])
    ]
    return table("Actors", ("name", "host", ">pid", "state", ">running", ">queued", ">restarts"), rows)


def lanes(status: dict[str, Any]) -> Table:
    """Return the lanes: what waits, what went out, and how long it had waited."""
    waited: dict[int, dict[str, float]] = status["waited"]
    depths: dict[int, int] = status["lanes"]
    rows = []
    for lane in sorted({*waited, *depths}, reverse=True):
        seen = waited.get(lane, {"dispatched": 0, "waited": 0.0, "longest": 0.0})
        mean = seen["waited"] / seen["dispatched"] if seen["dispatched"] else 0.0
        dispatched = f"{int(seen['dispatched']):,}"
        rows.append((lane, f"{depths.get(lane, 0):,}", dispatched, brief(mean), brief(seen["longest"])))
    return table("Lanes", (">priority", ">queued", ">dispatched", ">mean wait", ">longest wait"), rows)


def tasks(status: dict[str, Any]) -> Table:
    """Return the books: tasks, and messages to actors."""
    names = [name for name in status["tasks"] if name != "balance"]
    shown = [
        name for name in names if name in _ALWAYS or any(status[book][name] for book in ("tasks", "messages"))
    ]
    rows = [(book, *[f"{status[book][name]:,}" for name in shown]) for book in ("tasks", "messages")]
    return table("Work", ("", *[f">{name}" for name in shown]), rows)


_ALWAYS = ("submitted", "queued", "running", "done", "failed")


def view(status: dict[str, Any]) -> RenderableType:
    """Return all of it; what there is none of is left out, but for workers: that there are none matters."""
    parts: list[RenderableType] = [overview(status), Text(""), nodes(status), workers(status)]
    if status["actors"]:
        parts.append(actors(status))
    if status["lanes"] or status["waited"]:
        parts.append(lanes(status))
    return Group(*parts, tasks(status))
