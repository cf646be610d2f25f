"""``omnibus logs``: what workers and actors print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnibus.commands.base import (
    FAILED,
    OK,
    AddressOption,
    InsecureOption,
    JsonOption,
    WithinOption,
    ask_status,
    open_bus,
    print_json,
    say,
)
from omnibus.commands.lines import TOPIC, next_number, show_line
from omnibus.commands.values import close_to, plain

if TYPE_CHECKING:
    from omnibus.bus import Bus

__all__ = ["logs"]


def logs(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A worker or an actor; all of them without.", show_default=False),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    since: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Begin with line number N of the mesh; --json shows the numbers."
        ),
    ] = 1,
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Show what workers and actors print, marked with its source: all that the broker keeps, the last 10,000 lines.

    What went to their standard error comes out on standard error. With --json an object a line: `number`, `source`,
    `stream` (out or err), `pid`, `time` (seconds since 1970), `text`.

    **Examples**

    ```sh
    omnibus logs                     # what is kept of all
    omnibus logs counter --follow    # one actor, and what it will print
    omnibus logs --json | jq -r 'select(.stream == "err").text'
    ```
    """
    with open_bus(address, insecure, within) as bus:
        last = next_number(bus, within) - 1
        shown = 0
        try:
            for number, line in _lines(bus, since, None if follow else last, within):
                if name in ("", line.get("source")):
                    shown += 1
                    _show(line, number, json)
        except KeyboardInterrupt:
            return OK  # the way to stop following
        if name and not shown:
            return _explain(bus, name, within)
    return OK


def _lines(bus: Bus, since: int, last: int | None, within: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield numbers and lines from ``since`` to ``last``, without end where that is ``None``."""
    if last is not None and since > last:
        return
    with bus.subscribe(TOPIC, since=since) as lines:
        missed = 0
        while last is None or lines.number < last:
            line = lines.get(None if last is None else within)
            if lines.missed > missed and (missed or since > 1):
                say("logs", f"{lines.missed - missed} lines are not kept any more")
            missed = lines.missed
            if isinstance(line, dict):  # anybody may publish anything under the topic
                yield lines.number, line


def _show(line: dict[str, Any], number: int, json: bool) -> None:
    if json:
        print_json({"number": number, **plain(line)})
    elif not show_line(line):
        raise BrokenPipeError


def _explain(bus: Bus, name: str, within: float) -> int:
    """Say why nothing of ``name`` is to be shown: it printed nothing, or is not there."""
    status = ask_status(bus, within)
    known = [each["name"] for each in (*status["workers"], *status["actors"])]
    if name in known:
        print(f"{name} has printed nothing that is kept", file=sys.stderr)
        return OK
    there = f"there are {', '.join(known[:20])}" if known else "there are none"
    say("logs", f"no worker or actor is named {name!r}{close_to(name, known)}; {there}")
    return FAILED
