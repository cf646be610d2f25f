"""When a child that died is started again, and when that is given up. Pure: time and jitter are arguments.

A policy bounds the *intensity* of restarts: more than ``most`` within ``window`` seconds, and the fault is taken to
be one that starting again does not mend. Until then the first restart is immediate, because most deaths come
alone, and the following ones wait exponentially longer, with jitter, so that many children that one fault killed
do not come back in step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from omnibus.errors import ProtocolError

if TYPE_CHECKING:
    from tenacity.wait import wait_base

__all__ = ["RestartPolicy", "Restarts"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and after which delays.

    At most ``most`` restarts within ``window`` seconds (``None``: no bound); delays of ``base`` seconds, doubled
    each time, up to ``cap``. ``wait`` replaces these delays by those of a tenacity wait object.
    """

    most: int | None = 5
    window: float = 60.0
    base: float = 0.1
    cap: float = 30.0
    wait: wait_base | None = None

    @classmethod
    def parse(cls, head: Any) -> RestartPolicy | None:
        """Return the policy in a START's ``restart``: nil, or a map of ``max``, ``window``, ``base`` and ``cap``.

        Raises :class:`ProtocolError` naming the key, its value and what was expected.
        """
        if head is None:
            return None
        if not isinstance(head, Mapping):
            raise ProtocolError(f"'restart' must be nil or a map, not {head!r:.80}")
        most = head.get("max", 5)
        if most is not None and (type(most) is not int or not 0 <= most <= 1_000_000):
            raise ProtocolError(f"restart 'max' must be nil or an integer from 0 to 1000000, not {most!r:.80}")
        return cls(most, _seconds(head, "window", 60.0), _seconds(head, "base", 0.1), _seconds(head, "cap", 30.0))

    def delay(self, number: int, jitter: float) -> float:
        """Return how long the ``number``-th restart in the window waits; ``jitter`` is between 0 and 1.

        The first waits for nothing; the k-th for base · 2^(k−2), up to ``cap``, and up to ``base`` more.
        """
        if number <= 1:
            return 0.0
        wait = self.wait
        if wait is None:
            # Imported here, as most nodes never come to a second restart: what a wait object loads would else be
            # loaded by every node.
            from tenacity import wait_exponential

            wait = wait_exponential(multiplier=self.base, max=self.cap)
        state: Any = SimpleNamespace(attempt_number=number - 1)
        return min(float(wait(state)) + jitter * self.base, self.cap)


def _seconds(head: Mapping[Any, Any], key: str, default: float) -> float:
    value = head.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e9:
        raise ProtocolError(f"restart {key!r} must be seconds from 0 to 1e9, not {value!r:.80}")
    return float(value)


class Restarts:
    """The deaths of one child, and what its policy makes of each."""

    __slots__ = ("_deaths", "_jitter", "policy")

    def __init__(self, policy: RestartPolicy, jitter: Callable[[], float]) -> None:
        self.policy = policy
        self._jitter = jitter
        self._deaths: deque[float] = deque()

    def after(self, now: float) -> float | None:
        """Book a death at ``now``; return the seconds to wait before the restart, ``None`` to give up."""
        policy, deaths = self.policy, self._deaths
        while deaths and deaths[0] <= now - policy.window:
            deaths.popleft()
        deaths.append(now)
        if policy.most is not None and len(deaths) > policy.most:
            return None
        if len(deaths) > 64:
            deaths.popleft()  # an unbounded policy is at its cap by then
        return policy.delay(len(deaths), self._jitter())
