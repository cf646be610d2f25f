"""``omnibus broker`` and ``omnibus node``: one process of a mesh each; and the options that ``up`` shares with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from omnibus.commands.base import AddressOption, InsecureOption, find_target, worker_environment
from omnibus.errors import UsageError

__all__ = [
    "BindOption",
    "CpusOption",
    "GpusOption",
    "InsecureBindOption",
    "LabelOption",
    "LogJsonOption",
    "LogLevelOption",
    "MemoryOption",
    "PreloadOption",
    "WorkersOption",
    "broker",
    "logging_environment",
    "mesh_socket",
    "node",
    "node_options",
]

_SOCKET: Final = "broker.sock"
_OPEN: Final = "Who may connect"
_RESOURCES: Final = "What the node gives out"
_LOGGING: Final = "Logging"

BindOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=_OPEN,
        help="Listen there too: tcp://HOST:PORT or ipc:///PATH; `*` as the port means any. Repeatable.",
    ),
]
InsecureBindOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        rich_help_panel=_OPEN,
        help="Let whoever reaches the tcp addresses use the mesh, without a key.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-w",
        metavar="N",
        min=0,
        rich_help_panel=_RESOURCES,
        help="Workers that are always there.",
        show_default="one for each CPU",
    ),
]
CpusOption = Annotated[
    float | None,
    typer.Option(
        metavar="C",
        rich_help_panel=_RESOURCES,
        help="CPUs to give out.",
        show_default="those that this process may use",
    ),
]
GpusOption = Annotated[
    str,
    typer.Option(
        metavar="auto|N|LIST",
        rich_help_panel=_RESOURCES,
        help="GPUs to give out: all, so many, or those with these names.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        rich_help_panel=_RESOURCES,
        help="Memory to give out, such as 64G.",
        show_default="what there is",
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        rich_help_panel=_RESOURCES,
        help="A property that tasks may ask for. Repeatable.",
    ),
]
PreloadOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE", rich_help_panel=_RESOURCES, help="Import this once, for all workers. Repeatable."
    ),
]
LogLevelOption = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        rich_help_panel=_LOGGING,
        help="What to log: debug, info, warning, error or critical.",
    ),
]
LogJsonOption = Annotated[
    bool, typer.Option("--log-json", rich_help_panel=_LOGGING, help="Log as JSON, an object a line.")
]


def mesh_socket(run_dir: Path) -> str:
    """Return the address, in the run directory, where a mesh always listens."""
    return f"ipc://{run_dir}/{_SOCKET}"


def broker(
    bind: BindOption = None,
    insecure: InsecureBindOption = False,
    run_file: Annotated[
        bool, typer.Option(help="Write the address and the key to the run file, for others to find.")
    ] = True,
    grace: Annotated[
        float, typer.Option(metavar="S", help="Seconds for which a lost session may come back.")
    ] = 30.0,
    guard: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Give every N-th dispatch to a lower lane.", show_default="strict order"
        ),
    ] = None,
    window_tasks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Unfinished tasks that a client may have in a lane.",
            show_default="1,000,000",
        ),
    ] = None,
    window_bytes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The bytes that these may have.", show_default="1 GiB"),
    ] = None,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
) -> NoReturn:
    """Run a broker alone; nodes join it from this host or others.

    Prints `ready ADDRESS` once it serves. It always listens on a socket in the run directory, for programs of
    this user. Tcp addresses are sealed with the mesh's key, which is made by itself and stands in the run file,
    mesh.json: give another host a copy of that file, mode 0600, and name it there in $OMNIBUS_KEY_FILE. A key in
    $OMNIBUS_KEY is used instead of a new one.

    TERM or Ctrl-C ends it at once, with what it holds; `omnibus up` drains first.

    **Examples**

    ```sh
    omnibus broker                                # for this host
    omnibus broker --bind 'tcp://10.0.0.1:7890'   # for a cluster too
    ```
    """
    from omnibus.rundir import RUN_FILE, run_dir

    folder = run_dir()
    options = ["--bind", mesh_socket(folder), "--grace", str(grace), "--log-level", log_level]
    for address in bind or ():
        options += ["--bind", address]
    for flag, value in (
        ("--guard", guard),
        ("--window-tasks", window_tasks),
        ("--window-bytes", window_bytes),
    ):
        if value is not None:
            options += [flag, str(value)]
    options += ["--insecure"] * insecure
    options += ["--run-file", str(folder / RUN_FILE)] * run_file
    _become("omnibus.brokers", options, logging_environment(log_level, log_json))


def node(
    workers: WorkersOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = "auto",
    memory: MemoryOption = None,
    label: LabelOption = None,
    preload: PreloadOption = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Its name.", show_default="the host's")] = "",
    grace: Annotated[float, typer.Option(metavar="S", help="Seconds that a child may take to stop.")] = 5.0,
    broker_grace: Annotated[
        float, typer.Option(metavar="S", help="Seconds to live on without a broker, for it to come back.")
    ] = 30.0,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
) -> NoReturn:
    """Add this host to a mesh: start workers and actors here, watch, restart and stop them.

    Prints `ready ADDRESS` once the broker has taken it in. Workers import modules from the working directory too.

    **Examples**

    ```sh
    omnibus node                                  # for this host's mesh
    OMNIBUS_KEY_FILE=mesh.json omnibus node --address tcp://10.0.0.1:7890
    omnibus node --workers 0 --label disk=fast    # workers as they are asked for
    ```
    """
    target = find_target(address, insecure)
    options = ["node", "--grace", str(grace), "--broker-grace", str(broker_grace), "--log-level", log_level]
    options += node_options(workers, cpus, gpus, memory, label, preload, name)
    # The key goes by the environment: a command line shows in everybody's ps.
    _become("omnibus.actors", options, {**logging_environment(log_level, log_json), **target.environment()})


def node_options(
    workers: int | None,
    cpus: float | None,
    gpus: str,
    memory: str | None,
    labels: Sequence[str] | None,
    preload: Sequence[str] | None,
    name: str,
) -> list[str]:
    """Return the options of ``python -m omnibus.actors node`` that these are."""
    options = ["--gpus", gpus]
    for flag, value in (
        ("--workers", workers),
        ("--cpus", cpus),
        ("--memory", memory),
        ("--name", name or None),
    ):
        if value is not None:
            options += [flag, str(value)]
    for flag, values in (("--label", labels), ("--preload", preload)):
        for each in values or ():
            options += [flag, each]
    return options


def logging_environment(level: str, json: bool) -> dict[str, str]:
    """Return what has the mesh's processes log so; raises :class:`omnibus.UsageError` for a level that there is not."""
    from omnibus.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LEVELS

    if level.lower() not in LEVELS:
        raise UsageError(f"--log-level {level!r} is unknown: expected one of {', '.join(LEVELS)}")
    return {LEVEL_VARIABLE: level.lower(), **({FORMAT_VARIABLE: "json"} if json else {})}


def _become(module: str, options: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by one of the mesh, which says ``ready ADDRESS`` on its standard output."""
    from omnibus.embedded import interpreter
    from omnibus.rundir import READY_VARIABLE

    sys.stdout.flush()
    answer = os.dup(sys.stdout.fileno())
    os.set_inheritable(answer, True)
    command = [*interpreter(), module, *options]
    os.execve(
        command[0],
        command,
        {**os.environ, **worker_environment(), **environment, READY_VARIABLE: str(answer)},
    )
