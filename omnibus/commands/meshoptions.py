"""The options of ``omnibus up``, ``broker`` and ``node``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from omnibus.errors import UsageError

__all__ = [
    "AllowOption",
    "BindOption",
    "BrokerGraceOption",
    "ChildGraceOption",
    "CpusOption",
    "DrainOption",
    "GpusOption",
    "GuardOption",
    "InsecureBindOption",
    "LabelOption",
    "LogJsonOption",
    "LogLevelOption",
    "MemoryOption",
    "NameOption",
    "PreloadOption",
    "QuietOption",
    "RunFileOption",
    "SessionGraceOption",
    "StartOption",
    "StateOption",
    "WindowBytesOption",
    "WindowTasksOption",
    "WorkersOption",
]

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
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        rich_help_panel=_OPEN,
        help="Let this package's functions be called by name, without the key too; then no others. Repeatable.",
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
NameOption = Annotated[str, typer.Option(metavar="NAME", help="The node's name.", show_default="the host's")]
DrainOption = Annotated[
    float,
    typer.Option(
        metavar="S", help="Seconds that queued and running work may take to end, once told to stop."
    ),
]
StartOption = Annotated[
    float, typer.Option("--within", metavar="S", help="Seconds within which the mesh must be up.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Do not show what workers and actors print.")
]
RunFileOption = Annotated[
    bool, typer.Option(help="Write the address and the key to the run file, for others to find.")
]
SessionGraceOption = Annotated[
    float, typer.Option("--grace", metavar="S", help="Seconds for which a lost session may come back.")
]
GuardOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=2, help="Give every N-th dispatch to a lower lane.", show_default="strict order"
    ),
]
WindowTasksOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Unfinished tasks that a client may have in a lane.",
        show_default="1,000,000",
    ),
]
WindowBytesOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="The bytes that these may have.", show_default="1 GiB"),
]
ChildGraceOption = Annotated[
    float, typer.Option("--grace", metavar="S", help="Seconds that a child may take to stop.")
]
BrokerGraceOption = Annotated[
    float, typer.Option(metavar="S", help="Seconds to live on without a broker, for it to come back.")
]


def _refuse_state(directory: str) -> None:
    if directory:
        raise UsageError(
            "--state is not implemented in this version: a broker keeps its queue in memory, and what is queued "
            "ends with it. Leave the option out"
        )


StateOption = Annotated[str, typer.Option(metavar="DIRECTORY", hidden=True, callback=_refuse_state)]
