"""``omnibus submit``, ``call`` and ``fetch``: tasks and messages from the command line."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

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
from omnibus.commands.workoptions import (
    ActorArgument,
    ArgumentsArgument,
    CpusOption,
    DetachOption,
    FunctionArgument,
    GpusOption,
    KeywordOption,
    LabelOption,
    MemoryOption,
    MethodArgument,
    NameOption,
    PriorityOption,
    RetriesOption,
    StreamOption,
    TaskArgument,
    TimeoutOption,
    TracebackOption,
    TtlOption,
    UntilOption,
    WaitOption,
)
from omnibus.errors import BusClosed, NotFound, OmnibusError, RemoteError, TaskError, Unreachable, UsageError

if TYPE_CHECKING:
    from omnibus.bus import Bus

__all__ = ["call", "fetch", "submit"]

_ENDS: Final = {"TaskTimeout": "failed", "Cancelled": "cancelled", "Expired": "expired", "DeadLetter": "dead"}
_ASK_AGAIN: Final = 0.2


def submit(
    function: FunctionArgument,
    arguments: ArgumentsArgument = None,
    kw: KeywordOption = None,
    detach: DetachOption = False,
    wait: WaitOption = None,
    priority: PriorityOption = 0,
    retries: RetriesOption = None,
    timeout: TimeoutOption = None,
    ttl: TtlOption = None,
    cpus: CpusOption = 1,
    gpus: GpusOption = 0,
    memory: MemoryOption = None,
    label: LabelOption = None,
    name: NameOption = None,
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
    detached = detach or not waits
    options: dict[str, Any] = {
        "priority": priority,
        "retries": retries,
        "timeout": timeout,
        "ttl": ttl,
        "cpus": cpus,
        "gpus": gpus,
    }
    options |= {"memory": _bytes(memory), "labels": _labels(label), "name": name, "detached": detached}
    options = {key: value for key, value in options.items() if value is not None}
    with open_bus(address, insecure, within) as bus:
        future: Any = bus.options(**options).submit(function, *values, **named)
        task = bus.task_id(future)
        if not waits and _is_accepted(bus, future, within):
            print_json({"task": task, "state": "submitted"}) if json else print(task)
            return OK
        return _finish("submit", future, task, json=json, traceback=traceback, leave=detached)


def call(
    actor: ActorArgument,
    method: MethodArgument,
    arguments: ArgumentsArgument = None,
    kw: KeywordOption = None,
    stream: StreamOption = False,
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
    task: TaskArgument,
    wait: UntilOption = False,
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


def _is_accepted(bus: Bus, future: Any, within: float) -> bool:
    """Return whether the broker has taken a task, however that goes on, or has gone already."""
    ask_status(bus, within)  # the answer comes behind a refusal
    return not future.done() or isinstance(future.exception(), TaskError | None)


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
