"""What the commands share: their common options, their exit codes, finding a mesh, and how errors are said."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from omnibus.errors import OmnibusError, RemoteError, Unauthorized, Unreachable, UsageError

if TYPE_CHECKING:
    from omnibus.address import Target
    from omnibus.bus import Bus

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "OK",
    "PASS_ON",
    "READER_GONE",
    "UNREACHABLE",
    "USAGE",
    "AddressOption",
    "InsecureOption",
    "JsonOption",
    "WithinOption",
    "ask_status",
    "exit_code",
    "find_target",
    "one_line",
    "open_bus",
    "print_json",
    "say",
    "worker_environment",
]

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130
READER_GONE: Final = 141
"""As a shell sees a command that SIGPIPE ended."""

PASS_ON: Final = {"ignore_unknown_options": True}
"""For commands whose arguments may begin with a dash, such as ``-3``."""

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="ADDRESS",
        help="Where the mesh is: ipc:///PATH or tcp://HOST:PORT. [default: $OMNIBUS_ADDRESS, then the run file]",
        rich_help_panel="Which mesh",
        show_default=False,
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Reach a tcp address without the mesh's key.", rich_help_panel="Which mesh"
    ),
]
WithinOption = Annotated[
    float,
    typer.Option(
        "--within",
        metavar="S",
        help="Give up after S seconds without an answer.",
        rich_help_panel="Which mesh",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def find_target(address: str | None, insecure: bool) -> Target:
    """Return the mesh that is meant; never starts one. Raises :class:`Unreachable` where none is named or up."""
    from omnibus.rundir import resolve, run_file_path

    target = resolve(address, insecure=insecure)
    if target is None:
        raise Unreachable(
            f"no mesh is up here ({run_file_path()} names none): start one with `omnibus up`, or name one with "
            "--address or $OMNIBUS_ADDRESS"
        )
    return target


@contextlib.contextmanager
def open_bus(address: str | None, insecure: bool, within: float) -> Iterator[Bus]:
    """Give a bus to the mesh that is meant, and close it."""
    from omnibus.bus import Bus

    with Bus(find_target(address, insecure), timeout=within) as bus:
        yield bus


def ask_status(bus: Bus, within: float = 10.0) -> dict[str, Any]:
    """Return ``bus.status()``; raises :class:`Unreachable` where the broker does not answer in time."""
    from omnibus.protocol import Verb

    try:
        return bus.options().ask_broker(Verb.STATUS, None).result(within)  # type: ignore[no-any-return]
    except TimeoutError:
        raise Unreachable(
            f"the broker at {bus.address} has not answered for {within:g} s: it is busy or hangs; "
            "`omnibus doctor` looks closer"
        ) from None


def exit_code(error: OmnibusError) -> int:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, UsageError):
        return USAGE
    return UNREACHABLE if isinstance(error, Unreachable | Unauthorized) else FAILED


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line: what quotes others below it is left out."""
    # A remote error's text goes on with the traceback, which has options of its own.
    text = str(error.args[0]) if isinstance(error, RemoteError) and error.args else str(error)
    first = text.strip().partition("\n")[0].removesuffix("; its last words:")
    # The library's messages name its arguments; on the command line they are options.
    return first.replace("pass insecure=True", "give --insecure") or type(error).__name__


def say(command: str, text: str) -> None:
    """Print one line for people, on standard error."""
    with contextlib.suppress(OSError):
        print(f"omnibus {command}: {text}" if command else f"omnibus: {text}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def worker_environment() -> dict[str, str]:
    """Return what a mesh's processes are started with by a command.

    Workers import from where this interpreter does and, before all else, from the working directory, as ``python -m``
    does: a module beside you is found by its name.
    """
    from omnibus.embedded import mesh_environment

    environment = mesh_environment()
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    here = str(Path.cwd())
    paths = [
        path
        for path in json.loads(environment["OMNIBUS_SYS_PATH"])
        if os.path.realpath(path) not in (script, here)
    ]
    return environment | {"OMNIBUS_SYS_PATH": json.dumps([here, *paths])}
