"""``omnibus submit``, ``call`` and ``fetch``: tasks and messages from the command line."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from omnibus.commands.base import (
    FAILED,
    OK,
    AddressOption,
    InsecureOption,
    JsonOption,
    WithinOption,
    ask_status,
    exit_code,
    one_line,
    open_bus,
    print_json,
    say,
)
from omnibus.commands.values import close_to, for_people, keywords, parse_all, plain
from omnibus.errors import BusClosed, NotFound, OmnibusError, RemoteError, TaskError, Unreachable, UsageError

if TYPE_CHECKING:
    from omnibus.bus import Bus

__all__ = ["call", "fetch", "submit"]

_HOW: Final = "How it is run"
_ENDS: Final = {"TaskTimeout": "failed", "Cancelled": "cancelled", "Expired": "expired", "DeadLetter": "dead"}
_ASK_AGAIN: Final = 0.2

ArgumentsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JSON", help="Its arguments, each as JSON: 3, '\"text\"', '[1, 2]'.", show_default=False
    ),
]
KeywordOption = Annotated[
    list[str] | None,
    typer.Option("--kw", "-k", metavar="NAME=JSON", help="An argument by its name. Repeatable."),
]
TracebackOption = Annotated[
    bool, typer.Option("--traceback", help="Show the remote traceback of an error too.")
]
PriorityOption = Annotated[
    int, typer.Option("--priority", "-p", metavar="N", help="Its lane: higher first.", rich_help_panel=_HOW)
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds that it may run.", rich_help_panel=_HOW, show_default="no bound"),
]
TtlOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Seconds that it may wait in its lane.",
        rich_help_panel=_HOW,
        show_default="no bound",
    ),
]


def submit(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="What to run, as the workers can import it.")
    ],
    arguments: ArgumentsArgument = None,
    kw: KeywordOption = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Print the task's id and leave; its result is kept for an hour."),
    ] = False,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for the result, or not; --no-wait means --detach.",
            show_default="wait unless detached",
        ),
    ] = None,
    priority: PriorityOption = 0,
    retries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Lost attempts that are made good.",
            rich_help_panel=_HOW,
            show_default="3",
        ),
    ] = None,
    timeout: TimeoutOption = None,
    ttl: TtlOption = None,
    cpus: Annotated[float, typer.Option(metavar="C", help="CPUs that it needs.", rich_help_panel=_HOW)] = 1,
    gpus: Annotated[
        float, typer.Option(metavar="G", help="GPUs that it needs, or a share of one.", rich_help_panel=_HOW)
    ] = 0,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that it needs, such as 2G.", rich_help_panel=_HOW),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A property that its node must have. Repeatable.", rich_help_panel=_HOW
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="For logs and status.", rich_help_panel=_HOW)
    ] = None,
    traceback: TracebackOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Have a function run by a worker, and print its result.

    The function goes by its name, MODULE:FUNCTION, and the workers import it: what they can import is what the node was
    started with, its working directory first. Ctrl-C cancels the task, unless it is detached.

    **Examples**

    ```sh
    omnibus submit builtins:pow 2 10                 # prints 1024
    omnibus submit math:fsum '[0.1, 0.2]' --json     # state, result, task id
    omnibus submit builtins:sorted '[3, 1]' --kw reverse=true --priority 5
    omnibus submit --detach time:sleep 60            # prints the task's id
    ```
    """
    from omnibus.functions import ship

    ship(function, code=False)  # its name is looked at before anything is asked
    values, named = parse_all(arguments), keywords(kw)
    waits = not detach if wait is None else wait
    given: dict[str, Any] = {
        "priority": priority,
        "retries": retries,
        "timeout": timeout,
        "ttl": ttl,
        "cpus": cpus,
    }
    given |= {"gpus": gpus, "memory": _bytes(memory), "labels": _labels(label), "name": name}
    detached = detach or not waits
    options = {key: value for key, value in given.items() if value is not None} | {"detached": detached}
    with open_bus(address, insecure, within) as bus:
        future: Any = bus.options(**options).submit(function, *values, **named)
        task = bus.task_id(future)
        if not waits:
            ask_status(bus, within)  # answered behind the task: it is accepted by now, or was refused
            if not future.done() or future.exception() is None:
                print_json({"task": task, "state": "submitted"}) if json else print(task)
                return OK
        return _finish("submit", future, task, json=json, traceback=traceback, leave=detached)


def call(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="The actor's name.")],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="The method that takes the message.")],
    arguments: ArgumentsArgument = None,
    kw: KeywordOption = None,
    stream: Annotated[
        bool, typer.Option("--stream", "-s", help="The method is a generator: print each value as it comes.")
    ] = False,
    priority: PriorityOption = 0,
    timeout: TimeoutOption = None,
    ttl: TtlOption = None,
    traceback: TracebackOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Send an actor a message, and print its answer.

    Actors are started by programs (`bus.spawn(Counter, name="counter")`); `omnibus status` lists them.

    **Examples**

    ```sh
    omnibus call counter add 5
    omnibus call counter countdown 3 --stream        # a line for each value
    omnibus call counter value --json
    ```
    """
    values, named = parse_all(arguments), keywords(kw)
    options = {key: value for key, value in (("timeout", timeout), ("ttl", ttl)) if value is not None}
    with open_bus(address, insecure, within) as bus:
        _check_actor(bus, actor, within)
        ref = bus.actor(actor).options(priority=priority, **options)
        if not stream:
            future = ref.ask(method, *values, **named)
            return _finish("call", future, None, json=json, traceback=traceback, actor=actor)
        try:
            with ref.stream(method, *values, **named) as parts:
                for part in parts:
                    print_json(plain(part)) if json else print(for_people(part), flush=True)
        except OmnibusError as error:
            return _fail("call", error, {"actor": actor}, json=json, traceback=traceback)
        return OK


def fetch(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="The id that `omnibus submit --detach` printed.")
    ],
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it has ended.")] = False,
    traceback: TracebackOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Print the result of a detached task; it is kept for an hour after its end.

    **Example**

    ```sh
    omnibus fetch --wait $(omnibus submit --detach builtins:pow 2 10)
    ```
    """
    from omnibus.face import fetch_head

    fetch_head(task)  # the id is looked at before anything is asked
    with open_bus(address, insecure, within) as bus:
        while True:
            try:
                return _done(bus.fetch(task), {"task": task}, json=json)
            except OmnibusError as error:
                # A plain TaskError says that it has not ended; how a task ended is one of the subclasses.
                if type(error) is not TaskError or not wait:
                    return _fail("fetch", error, {"task": task}, json=json, traceback=traceback)
            threading.Event().wait(_ASK_AGAIN)


# ---------------------------------------------------------------------- options


def _bytes(memory: str | None) -> int | None:
    from omnibus.actors.resources import parse_bytes

    return None if memory is None else parse_bytes(memory)


def _labels(labels: list[str] | None) -> dict[str, str] | None:
    if not labels:
        return None
    pairs = [label.partition("=") for label in labels]
    if not all(name and separator for name, separator, _ in pairs):
        raise UsageError(f"--label {' '.join(labels)}: each is of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _check_actor(bus: Bus, name: str, within: float) -> None:
    """Raise :class:`NotFound` that lists the actors there are, unless ``name`` is one."""
    known = [actor["name"] for actor in ask_status(bus, within)["actors"]]
    if name not in known:
        there = (
            f"there are {', '.join(sorted(known)[:20])}"
            if known
            else "there is none: a program's bus.spawn starts them"
        )
        raise NotFound(f"no actor is named {name!r}{close_to(name, known)}; {there}")


# ---------------------------------------------------------------------- ends


def _finish(
    command: str,
    future: Any,
    task: str | None,
    *,
    json: bool,
    traceback: bool,
    leave: bool = False,
    actor: str = "",
) -> int:
    """Wait for a future and print how it ended; Ctrl-C cancels it, unless it is to be left."""
    about = {"task": task} if task else {"actor": actor}
    try:
        with _waiting(f"waiting for {task or actor}"):
            value = future.result()
    except KeyboardInterrupt:
        if leave:
            say(command, f"interrupted; the task goes on: `omnibus fetch --wait {task}`")
        else:
            future.cancel()
            say(command, "interrupted; it is cancelled")
        raise
    except OmnibusError as error:
        return _fail(command, error, about, json=json, traceback=traceback)
    return _done(value, about, json=json)


def _done(value: Any, about: dict[str, Any], *, json: bool) -> int:
    if json:
        print_json({**about, "state": "done", "result": plain(value)})
    else:
        print(for_people(value), flush=True)
    return OK


def _fail(command: str, error: OmnibusError, about: dict[str, Any], *, json: bool, traceback: bool) -> int:
    """Say how it ended: one line on standard error, and all of it as JSON where that is wanted."""
    remote = error.traceback if isinstance(error, RemoteError) else ""
    name = type(error).__name__
    if json:
        told = {**about, "state": _ENDS.get(name, "failed"), "error": name, "message": one_line(error)}
        print_json(told | ({"traceback": remote} if remote else {}))
    hint = " (--traceback shows where)" if remote and not traceback and not json else ""
    say(command, f"{name}: {one_line(error)}{hint}")
    if traceback and remote:
        print(remote.rstrip(), file=sys.stderr)
    return exit_code(error) if isinstance(error, Unreachable | BusClosed) else FAILED


@contextlib.contextmanager
def _waiting(text: str) -> Iterator[None]:
    """Show on a terminal that something is waited for, and since when."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=None, start_time=time.monotonic())
        yield
