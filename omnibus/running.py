"""What runs here now: ``omnibus.current()``, for the code of a task or an actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnibus.errors import UsageError

__all__ = ["Running", "current", "leave"]

_now: tuple[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """The attempt that runs in this process.

    ``id`` names the task in the whole mesh, ``attempt`` counts from 1, ``name`` is the one given in its options.
    """

    id: str
    attempt: int
    name: str | None
    _aid: int
    _page: Any

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for: return soon, or be ended."""
        return self._page is not None and bool(self._page.cancelled(self._aid))


def current() -> Running:
    """Return the running attempt; raises :class:`omnibus.UsageError` outside of one."""
    if _now is None:
        raise UsageError("nothing of Omnibus runs in this thread: current() is for the code of tasks and actors")
    job, page = _now
    session = job.work.head.get("session", b"").hex()
    return Running(f"{session}-{job.seq}", job.attempt, job.work.head.get("name"), job.aid, page)


def enter(job: Any, page: Any) -> None:
    """Note that ``job`` runs now."""
    global _now
    _now = (job, page)


def leave() -> None:
    """Note that nothing runs."""
    global _now
    _now = None
