"""The ledger: how many tasks were accepted, where they are, and how they ended.

Every accepted task is queued or running, or has ended in exactly one of five ways; :meth:`Ledger.balance` says
whether the books add up, and ``omnibus audit`` asks it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENDS", "LaneStats", "Ledger"]

ENDS = ("done", "failed", "cancelled", "expired", "dead")


@dataclass(slots=True)
class LaneStats:
    """What one lane has seen: tasks dispatched, and how long they waited (seconds)."""

    dispatched: int = 0
    waited: float = 0.0
    longest: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Counts since the broker began. ``queued`` and ``running`` go up and down, all others only up.

    ``late``: results of fenced attempts that were dropped. ``redelivered``: attempts begun anew after a loss.
    ``dropped``: results whose client was gone. ``refused``: submissions that were not accepted.
    """

    submitted: int = 0
    queued: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    dead: int = 0
    late: int = 0
    redelivered: int = 0
    dropped: int = 0
    refused: int = 0

    def close(self, how: str) -> None:
        """Count one end; ``how`` is one of :data:`ENDS`."""
        match how:
            case "done":
                self.done += 1
            case "failed":
                self.failed += 1
            case "cancelled":
                self.cancelled += 1
            case "expired":
                self.expired += 1
            case "dead":
                self.dead += 1
            case _:
                raise ValueError(f"{how!r} is no way to end; the ways are {', '.join(ENDS)}")

    def ended(self) -> int:
        """Return how many tasks have ended, in whatever way."""
        return self.done + self.failed + self.cancelled + self.expired + self.dead

    def balance(self) -> int:
        """Return submitted − (queued + running + ended): above zero tasks were lost, below they ended twice."""
        return self.submitted - self.queued - self.running - self.ended()

    def as_dict(self) -> dict[str, int]:
        """Return every count by its name."""
        return {name: getattr(self, name) for name in self.__slots__}
