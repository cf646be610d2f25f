"""What runs here now: ``omnibus.current()``, for the code of a task or an actor.

A worker process runs one attempt at a time, and all its threads may ask: a module's variable says what it is. Where
messages interleave, or the process is somebody else's, each attempt has a context of its own, which its asyncio tasks
and ``asyncio.to_thread`` inherit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

from omnibus.errors import UsageError

__all__ = ["Running", "Scope", "current", "enter", "enter_context", "leave"]


Scope: TypeAlias = tuple[Any, Callable[[int], bool]]
"""A job, and how to learn whether its end is wanted, given its attempt's number."""

_now: Scope | None = None
_context: ContextVar[Scope] = ContextVar("omnibus.running")


class Running:
    """The attempt that runs here.

    ``id`` names the task in the whole mesh, as ``bus.task_id(future)`` does for its submitter; ``attempt`` counts from
    1; ``name`` is the one given in its options. While an actor is set up, ``id`` is empty and ``name`` the actor's.
    """

    __slots__ = ("_aid", "_wanted", "attempt", "id", "name")

    def __init__(self, id: str, attempt: int, name: str | None, aid: int, wanted: Callable[[int], bool]) -> None:
        self.id = id
        self.attempt = attempt
        self.name = name
        self._aid = aid
        self._wanted = wanted

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for, or its time is over: return soon, or raise :class:`omnibus.Cancelled`."""
        return self._wanted(self._aid)

    def __repr__(self) -> str:
        return f"<Running {self.id or self.name} attempt {self.attempt}>"


def current() -> Running:
    """Return the running attempt; raises :class:`omnibus.UsageError` outside of one."""
    scope = _context.get(None) or _now
    if scope is None:
        raise UsageError("nothing of Omnibus runs here: current() is for the code of tasks and actors")
    job, wanted = scope
    head = job.work.head
    session = head.get("session")
    return Running(f"{session.hex()}-{job.seq}" if session else "", job.attempt, head.get("name"), job.aid, wanted)


def enter(scope: Scope) -> None:
    """Note what runs in this process now."""
    global _now
    _now = scope


def leave() -> None:
    """Note that nothing runs in this process."""
    global _now
    _now = None


def enter_context(scope: Scope) -> None:
    """Note what runs in this context."""
    _context.set(scope)
