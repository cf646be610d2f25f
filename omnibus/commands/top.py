"""``omnibus top``: the mesh live, with rates."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnibus.commands.base import OK, AddressOption, InsecureOption, WithinOption, ask_status, open_bus

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["frame", "rates", "top"]


def top(
    interval: Annotated[float, typer.Option(metavar="S", min=0.05, help="Seconds between two looks.")] = 1.0,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Watch the mesh live: tasks and messages a second, lanes and how long they wait, workers, actors.

    Ctrl-C leaves it, and the terminal is as it was. Where the output is no terminal it prints one frame, with the rates
    of one interval, and ends.

    **Examples**

    ```sh
    omnibus top
    omnibus top --interval 0.2
    omnibus top | cat      # one frame
    ```
    """
    from omnibus.commands.tables import make_console

    console = make_console()
    with open_bus(address, insecure, within) as bus:
        before = ask_status(bus, within)
        if not sys.stdout.isatty():
            threading.Event().wait(interval)
            console.print(frame(before, ask_status(bus, within)))
            return OK
        from rich.live import Live

        # The frame is cut at the terminal's height, so what changes most stands first.
        with (
            contextlib.suppress(KeyboardInterrupt),
            _terminable(),
            Live(
                frame(before, before),
                console=console,
                screen=True,
                auto_refresh=False,
                vertical_overflow="crop",
            ) as live,
        ):
            while True:
                threading.Event().wait(interval)
                after = ask_status(bus, within)
                live.update(frame(before, after), refresh=True)
                before = after
    return OK


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what happened between two looks: a second's tasks and messages, and each lane's.

    ``lanes`` maps a priority to how many went out a second, and to their mean wait in seconds.
    """
    passed = after["broker"]["uptime"] - before["broker"]["uptime"]
    per = 1 / passed if passed > 0 else 0.0
    lanes = {}
    for lane, seen in after["waited"].items():
        earlier = before["waited"].get(lane, {"dispatched": 0, "waited": 0.0})
        count = seen["dispatched"] - earlier["dispatched"]
        lanes[lane] = (count * per, (seen["waited"] - earlier["waited"]) / count if count else 0.0)
    told: dict[str, Any] = {"lanes": lanes}
    for book in ("tasks", "messages"):
        told[book] = {
            name: (after[book][name] - before[book][name]) * per for name in ("submitted", "done", "failed")
        }
    return told


def frame(before: dict[str, Any], after: dict[str, Any]) -> RenderableType:
    """Return what is shown: rates between the two looks, and the state at the second."""
    from rich.console import Group
    from rich.text import Text

    from omnibus.commands.tables import actors, brief, nodes, overview, table, workers

    told = rates(before, after)
    work = [
        (
            book, *[f"{told[book][name]:,.0f}" for name in ("submitted", "done", "failed")],
            f"{after[book]['queued']:,}", f"{after[book]['running']:,}", f"{after[book]['done']:,}",
            f"{after[book]['redelivered']:,}",
        )
        for book in ("tasks", "messages")
    ]  # fmt: skip
    depths = after["lanes"]
    lanes = []
    for lane in sorted({*told["lanes"], *depths}, reverse=True):
        rate, wait = told["lanes"].get(lane, (0.0, 0.0))
        lanes.append((lane, f"{depths.get(lane, 0):,}", f"{rate:,.0f}", brief(wait)))
    parts: list[RenderableType] = [
        overview(after),
        Text(""),
        table(
            "Work",
            ("", ">in/s", ">done/s", ">failed/s", ">queued", ">running", ">done", ">redelivered"),
            work,
        ),
    ]
    if lanes:
        parts.append(table("Lanes", (">priority", ">queued", ">out/s", ">mean wait"), lanes))
    parts += [workers(after), *([actors(after)] if after["actors"] else []), nodes(after)]
    return Group(*parts)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let TERM end the block as Ctrl-C does, so that it leaves the terminal as it was."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
