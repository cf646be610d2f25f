"""``omnibus status``: what the mesh is made of and does, as tables or JSON."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from omnibus.commands.base import (
    OK,
    AddressOption,
    InsecureOption,
    JsonOption,
    WithinOption,
    ask_status,
    open_bus,
    print_json,
)
from omnibus.commands.values import plain

__all__ = ["status"]


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(metavar="S", min=0.05, help="Seconds between two looks.")] = 2.0,
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Show the broker, nodes, workers, actors, lanes, and what became of the work.

    With --json it is one object with `broker`, `nodes`, `workers`, `actors`, `clients`, `lanes`, `waited`, `tasks` and
    `messages`; with --watch too, an object a line.

    **Examples**

    ```sh
    omnibus status
    omnibus status --json | jq .tasks.queued
    omnibus status --watch --interval 5
    ```
    """
    with open_bus(address, insecure, within) as bus:
        try:
            while True:
                found = ask_status(bus, within)
                if json:
                    print_json(plain(found))
                else:
                    from omnibus.commands.tables import make_console, view

                    console = make_console()
                    if watch:
                        console.clear()
                    console.print(view(found))
                if not watch:
                    return OK
                threading.Event().wait(interval)
        except KeyboardInterrupt:
            return OK  # the way to end a watch
