"""``omnibus``: the command line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from omnibus import __version__
from omnibus.commands import audit, base, doctor, extras, output, processes, status, top, up, work
from omnibus.commands.base import INTERRUPTED, OK, PASS_ON, READER_GONE, UNREACHABLE, USAGE
from omnibus.errors import OmnibusError

__all__ = ["app", "main"]

_MESH: Final = "Run a mesh"
_WORK: Final = "Give it work"
_LOOK: Final = "Look at it"
_REST: Final = "Try it"

_EPILOG = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no mesh could be reached, 130 interrupted."
_ClickError: type[Exception] = typer.BadParameter.__mro__[
    2
]  # whichever click it is that this typer stands on

app = typer.Typer(
    name="omnibus",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"omnibus {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Omnibus: an actor-model message bus over ZeroMQ for machine-learning work.

    Start with `omnibus up` in one terminal, and `omnibus submit builtins:pow 2 10` in another.

    A command finds its mesh by --address, else by $OMNIBUS_ADDRESS, else by the run file that `omnibus up` writes
    into $OMNIBUS_RUN_DIR.
    """


class _ReaderGone(Exception):
    """Whoever read our output is gone."""


def _marked(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command, a closed output told apart from other failures: typer would make it exit code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> int:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise _ReaderGone from None

    return run


_COMMANDS: Final[dict[str, tuple[Callable[..., int], ...]]] = {
    _MESH: (up.up, processes.broker, processes.node),
    _WORK: (work.submit, work.call, work.fetch),
    _LOOK: (status.status, top.top, output.logs, audit.audit, doctor.doctor),
    _REST: (extras.bench, extras.demo),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        _settings = PASS_ON if _command in (work.submit, work.call) else {}
        app.command(rich_help_panel=_panel, epilog=_EPILOG, context_settings=_settings)(_marked(_command))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, and return its exit code; what went wrong is said on standard error, in one line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), "")
    with warnings.catch_warnings():
        # Ours, such as that of the run file of a mesh that is gone.
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *_, **__: base.say(command, f"warning: {message}")
        try:
            code = int(app(arguments or ["--help"], prog_name="omnibus", standalone_mode=False) or OK)
            return code if arguments else USAGE
        except OmnibusError as error:
            base.say(command, base.one_line(error))
            return base.exit_code(error)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except _ReaderGone:
            # What is still buffered would raise again when Python ends.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except TimeoutError as error:
            base.say(command, f"no answer in time: {error}; `omnibus doctor` looks closer")
            return UNREACHABLE
        except _ClickError as error:
            return _say_usage(command, error)


def _say_usage(command: str, error: Any) -> int:
    """Say what is wrong with a command line, and where to read more."""
    known = command if command in {each.__name__ for group in _COMMANDS.values() for each in group} else ""
    text = " ".join(error.format_message().split()).removesuffix(".")
    base.say(known, f"{text}; see `omnibus {known + ' ' if known else ''}--help`")
    return int(getattr(error, "exit_code", USAGE))


if __name__ == "__main__":
    sys.exit(main())
