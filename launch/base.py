"""What every backend offers: command lines started somewhere, looked at many at once, and ended in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from omnibus.errors import UsageError
from omnibus.rundir import KEY_VARIABLE, MeshKey

__all__ = ["Handle", "Launcher", "State", "Status", "describe_exit", "refuse_secrets"]

_SECRET: Final = 40
"""Characters at the end of a key's text that are its secret half."""


class State(StrEnum):
    """Where a command line is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Handle:
    """Names one started command line: ``id`` is the backend's own, ``name`` is for people."""

    backend: str
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Status:
    """What a backend knows of a command line.

    ``code`` is the exit code of one that has ended, negative for a signal, ``None`` where nobody can tell.
    ``why`` is one line for people.
    """

    state: State
    code: int | None = None
    why: str = ""


class Launcher(Protocol):
    """Starts command lines in one kind of place. Its methods may be called from any thread."""

    def submit(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Handle:
        """Start ``command`` with this process's environment plus ``env``, and ``stdin`` as its whole input.

        Secrets go into ``env`` or ``stdin``: a command line shows in everybody's ``ps``. Raises
        :class:`SetupFailed` where it cannot be started, :class:`UsageError` where the command holds the
        mesh's secret.
        """
        ...

    def status(self, handles: Iterable[Handle]) -> dict[Handle, Status]:
        """Return the status of each, looked up together; ``UNKNOWN`` for one of another backend."""
        ...

    def cancel(self, handle: Handle, grace: float) -> Status:
        """Ask it to end, make it end after ``grace`` seconds, and return its last status.

        One that has ended before is no error.
        """
        ...

    def close(self, grace: float) -> None:
        """End all that still run, at the same time, as :meth:`cancel` does."""
        ...


def describe_exit(code: int) -> str:
    """Say how a process ended whose exit code, negative for a signal, is ``code``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def refuse_secrets(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise :class:`UsageError` where the mesh's secret, inherited or in ``env``, is part of the command."""
    for text in {env.get(KEY_VARIABLE, ""), os.environ.get(KEY_VARIABLE, "")} - {""}:
        secret = MeshKey.parse(text, f"${KEY_VARIABLE}").secret
        if any(secret in argument for argument in command):
            raise UsageError(
                f"command {command[0]!r} has the mesh's secret among its arguments, where every user's ps "
                "shows it: pass it in env or stdin"
            )
