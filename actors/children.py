"""A node's children: what is wanted, what lives, and how one ended, in words.

A :class:`Want` is a child that should be there; a :class:`Child` is one life of it. A life's states::

    starting ──started──▶ running ──stop──▶ stopping
        │ └──────stop──────────────────────────▲ │
        └──ended──▶ ended ◀──ended── (running, stopping)
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from omnibus.errors import AlreadyExists
from omnibus.sharedmem import Reason

from .restart import Restarts

__all__ = [
    "TRANSITIONS",
    "Child",
    "Children",
    "Exit",
    "Ladder",
    "Page",
    "State",
    "Want",
    "birth_of",
    "death_of",
    "explain",
]


class State(Enum):
    """Where a child's life stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[tuple[State, str], State]] = {
    (State.STARTING, "started"): State.RUNNING,
    (State.STARTING, "stop"): State.STOPPING,
    (State.STARTING, "ended"): State.ENDED,
    (State.RUNNING, "stop"): State.STOPPING,
    (State.RUNNING, "ended"): State.ENDED,
    (State.STOPPING, "started"): State.STOPPING,
    (State.STOPPING, "stop"): State.STOPPING,
    (State.STOPPING, "ended"): State.ENDED,
}
"""Every move of a life; what is not here cannot happen."""


class Page(Protocol):
    """What the supervisor does with a :class:`omnibus.sharedmem.StatusPage`."""

    @property
    def last(self) -> int:
        """The newest attempt that was begun."""

    def running(self) -> tuple[int, int] | None:
        """Return the attempt that runs, and since which nanosecond."""

    def over(self, aid: int) -> bool:
        """Return whether an attempt was begun and is over."""

    def cancel(self, aid: int, reason: Reason) -> None:
        """Ask for the end of an attempt."""

    def revoke(self, aid: int) -> bool:
        """Return true if the attempt will never begin."""


@dataclass(slots=True)
class Want:
    """A child that should be there.

    ``command`` is the START that asked for it (0: it is one of the node's own workers). ``restarts`` decides what
    follows a death; ``None``: nothing does. ``lives`` counts those begun so far.
    """

    name: str
    role: str
    command: int = 0
    cpus: float = 1.0
    devices: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    credits: int = 1
    restarts: Restarts | None = None
    lives: int = 0


@dataclass(slots=True)
class Ladder:
    """The steps by which one attempt is brought to its end.

    ``rung`` is how many were taken: 0 none (it has not begun), 1 the page asks, 2 SIGTERM, 3 SIGKILL.
    """

    aid: int
    reason: Reason
    grace: float
    rung: int = 0


class Child:
    """One life of a wanted child. ``watches`` are its attempts with a timeout, in order: id, timeout, grace."""

    __slots__ = ("incarnation", "ladders", "page", "pid", "session", "state", "want", "watches")

    def __init__(self, want: Want, session: bytes, page: Page) -> None:
        self.want = want
        self.session = session
        self.page = page
        self.incarnation = want.lives
        self.pid = 0
        self.state = State.STARTING
        self.watches: deque[tuple[int, float, float]] = deque()
        self.ladders: dict[int, Ladder] = {}

    def become(self, event: str) -> None:
        """Make the move that ``event`` means; a move that is not in :data:`TRANSITIONS` is a fault of ours."""
        after = TRANSITIONS.get((self.state, event))
        assert after is not None, f"child {self.want.name} is {self.state.value}: {event!r} cannot happen to it"
        self.state = after

    def inside(self) -> int:
        """Return the attempt that the child is in, 0 when it is idle."""
        running = self.page.running()
        return running[0] if running else 0


class Children:
    """All living children, by session and by name; a name has one life at a time."""

    __slots__ = ("_names", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[bytes, Child] = {}
        self._names: dict[str, Child] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._sessions.values()))

    def add(self, child: Child) -> None:
        """Take a child in; raises :class:`AlreadyExists` where its name lives already."""
        name = child.want.name
        if name in self._names:
            raise AlreadyExists(f"child {name!r} is {self._names[name].state.value}: one life at a time")
        self._sessions[child.session] = self._names[name] = child

    def remove(self, child: Child) -> None:
        """Take out a child that has ended."""
        child.become("ended")
        del self._sessions[child.session]
        del self._names[child.want.name]

    def by_session(self, session: object) -> Child | None:
        """Return the living child of that session."""
        return self._sessions.get(session) if isinstance(session, bytes) else None

    def by_name(self, name: object) -> Child | None:
        """Return the living child of that name."""
        return self._names.get(name) if isinstance(name, str) else None

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the two indexes differ, or hold a child that has ended."""
        assert {id(child) for child in self._sessions.values()} == {id(child) for child in self._names.values()}
        for session, child in self._sessions.items():
            assert child.session == session
            assert self._names[child.want.name] is child
            assert child.state is not State.ENDED, f"{child.want.name} has ended and is still listed"
            assert (child.pid != 0) or child.state in (State.STARTING, State.STOPPING)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: with a ``code``, or by a ``signal``; neither where nobody could see it.

    ``oom``: memory was why. ``words`` is the line of its error output that says most; ``resident`` the most bytes that
    it had in memory.
    """

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    words: str = ""
    resident: int = 0


def explain(how: Exit, ended: Ladder | None, stopped: bool) -> str:
    """Return one line for people: why a child is gone.

    ``ended`` is the ladder that was being climbed for the attempt that it was in; ``stopped``: its end was asked for.
    """
    status = _status(how)
    if how.oom:
        size = f"; it had {how.resident / 2**30:.2f} GiB resident at most" if how.resident else ""
        return _join(f"out of memory: {status}{size}", how.words)
    if ended is not None and ended.rung >= 2:
        why = "ran past its timeout" if ended.reason is Reason.TIMEOUT else "was cancelled and did not stop"
        return f"ended by its supervisor: attempt {ended.aid} {why} ({status})"
    if stopped:
        return f"stopped by its supervisor ({status})"
    if how.signal == signal.SIGKILL:
        return f"{status}, and not by its supervisor"
    return _join(status, how.words if how.code != 0 else "")


def birth_of(child: Child) -> dict[str, Any]:
    """Return what CHILD says of a child that runs."""
    want = child.want
    about = {"event": "started", "incarnation": child.incarnation, "cpus": want.cpus, "devices": list(want.devices)}
    return {**_identity(child), **about}


def death_of(child: Child, how: Exit, reason: str, delay: float | None, aborted: Ladder | None) -> dict[str, Any]:
    """Return what CHILD says of a child that has ended: why, what it was in, and in how many seconds it lives again.

    ``aborted`` is the ladder that ended it, where one did.
    """
    return {
        **_identity(child),
        "event": "exited",
        "code": how.code,
        "signal": how.signal,
        "oom": how.oom,
        "begun": child.inside(),
        "last": child.page.last,
        "reason": reason,
        "restart_in": delay,
        "cause": aborted.reason.name.lower() if aborted is not None else None,
        "aborted": aborted.aid if aborted is not None else 0,
    }


def _identity(child: Child) -> dict[str, Any]:
    return {"session": child.session, "name": child.want.name, "role": child.want.role, "pid": child.pid}


def _status(how: Exit) -> str:
    if how.signal is not None:
        try:
            name = f" ({signal.Signals(how.signal).name})"
        except ValueError:
            name = ""
        return f"killed by signal {how.signal}{name}"
    if how.code is not None:
        return f"exited with status {how.code}"
    return "ended unseen"


def _join(status: str, words: str) -> str:
    return f"{status}: {words}" if words else status
