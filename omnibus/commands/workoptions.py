"""The options and arguments of ``omnibus submit``, ``call`` and ``fetch``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = [
    "ActorArgument",
    "ArgumentsArgument",
    "CpusOption",
    "DetachOption",
    "FunctionArgument",
    "GpusOption",
    "KeywordOption",
    "LabelOption",
    "MemoryOption",
    "MethodArgument",
    "NameOption",
    "PriorityOption",
    "RetriesOption",
    "StreamOption",
    "TaskArgument",
    "TimeoutOption",
    "TracebackOption",
    "TtlOption",
    "UntilOption",
    "WaitOption",
]

_HOW: Final = "How it is run"

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
FunctionArgument = Annotated[
    str, typer.Argument(metavar="MODULE:FUNCTION", help="What to run, as the workers can import it.")
]
DetachOption = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Print the task's id and leave; its result is kept for an hour."),
]
WaitOption = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Wait for the result, or not; --no-wait means --detach.",
        show_default="wait unless detached",
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, help="Lost attempts that are made good.", rich_help_panel=_HOW, show_default="3"
    ),
]
CpusOption = Annotated[float, typer.Option(metavar="C", help="CPUs that it needs.", rich_help_panel=_HOW)]
GpusOption = Annotated[
    float, typer.Option(metavar="G", help="GPUs that it needs, or a share of one.", rich_help_panel=_HOW)
]
MemoryOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory that it needs, such as 2G.", rich_help_panel=_HOW),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="A property that its node must have. Repeatable.", rich_help_panel=_HOW
    ),
]
NameOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="For logs and status.", rich_help_panel=_HOW)
]
ActorArgument = Annotated[str, typer.Argument(metavar="ACTOR", help="The actor's name.")]
MethodArgument = Annotated[str, typer.Argument(metavar="METHOD", help="The method that takes the message.")]
StreamOption = Annotated[
    bool,
    typer.Option("--stream", "-s", help="The method is a generator: print each value as it comes."),
]
TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="The id that `omnibus submit --detach` printed.")
]
UntilOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until it has ended.")]
