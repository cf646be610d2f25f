"""Timeouts, cancellation and recall of attempts, through the status pages of the children that run them. Pure.

An attempt that has not begun is revoked on its page. One that runs is brought to its end by a *ladder*: the page asks
it; after a grace SIGTERM, whose handler raises inside it; after another grace SIGKILL. Each rung is taken only while
the page says that the child is still in that attempt.

A timeout counts from the moment that the page says the attempt began, so it need only be seen to have begun before the
timeout is over: a waiting one is looked at several times within its timeout, a running one not at all until then.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final, TypeAlias

from omnibus.protocol import Record, Verb
from omnibus.sharedmem import Reason

from .children import Child, Ladder
from .timers import Timers

__all__ = ["Attempts", "Key"]

Key: TypeAlias = tuple[str, bytes, int]
"""What a timer is for: ``watch`` or ``ladder`` (or a key of the node core's own), whose, and which attempt."""

_LOOKS: Final = 4
_SOONEST, _LATEST = 0.005, 0.5
_RETRY: Final = 0.02


class Attempts:
    """The attempts that are watched or being ended.

    ``say`` queues a record for the broker, ``kick`` has a signal sent to a child; both act later.
    """

    def __init__(
        self, timers: Timers[Key], say: Callable[[Record], None], kick: Callable[[Child, int], None]
    ) -> None:
        self._timers = timers
        self._say = say
        self._kick = kick

    def watch(self, child: Child, aid: int, timeout: float, grace: float, now: float) -> None:
        """Let ``aid`` run for ``timeout`` seconds."""
        child.watches.append((aid, timeout, grace))
        self.on_watch(child, now)

    def on_watch(self, child: Child, now: float) -> None:
        """Look at the oldest attempt of ``child`` that is watched, and say when to look again."""
        self._drop_over(child)
        while child.watches:
            aid, timeout, grace = child.watches[0]
            running = child.page.running()
            if running is None or running[0] != aid:
                if child.page.over(aid):
                    self._drop_over(child)
                    continue
                when = now + min(max(min(each[1] for each in child.watches) / _LOOKS, _SOONEST), _LATEST)
            else:
                when = running[1] / 1e9 + timeout
                if when <= now:
                    child.watches.popleft()
                    self.abort(child, aid, Reason.TIMEOUT, grace, now)
                    continue
            self._timers.set(("watch", child.session, 0), when)
            return
        self._timers.clear(("watch", child.session, 0))

    def _drop_over(self, child: Child) -> None:
        watches = child.watches
        while watches and child.page.over(watches[0][0]):
            watches.popleft()

    def recall(self, child: Child, aid: int) -> None:
        """Keep ``aid`` from beginning if it has not begun, and say which."""
        self._say([Verb.RECALLED, aid, int(child.page.revoke(aid)), None, 0])

    def abort(self, child: Child, aid: int, reason: Reason, grace: float, now: float) -> None:
        """Bring ``aid`` to its end: by RECALLED 1 where it never begins, otherwise up the ladder. Twice is once."""
        if aid not in child.ladders:
            child.ladders[aid] = Ladder(aid, reason, grace)
            self.on_ladder(child, aid, now)

    def on_ladder(self, child: Child, aid: int, now: float) -> None:
        """Take the next rung, unless the attempt is over."""
        page, ladder, key = child.page, child.ladders[aid], ("ladder", child.session, aid)
        if child.inside() == aid:
            self._climb(child, ladder, now)
        elif page.over(aid):
            del child.ladders[aid]
        elif page.revoke(aid):
            del child.ladders[aid]
            self._say([Verb.RECALLED, aid, 1, None, 0])
        else:
            self._timers.set(key, now + _RETRY)  # it began just now, or the page has no room for one more

    def _climb(self, child: Child, ladder: Ladder, now: float) -> None:
        ladder.rung += 1
        if ladder.rung == 1:
            child.page.cancel(ladder.aid, ladder.reason)
        else:
            self._kick(child, signal.SIGTERM if ladder.rung == 2 else signal.SIGKILL)
        if ladder.rung < 3:
            self._timers.set(("ladder", child.session, ladder.aid), now + ladder.grace)

    def ended(self, child: Child) -> Ladder | None:
        """Forget a child that has ended; return the ladder of the attempt that it was in, if there was one."""
        self._timers.clear(("watch", child.session, 0))
        for aid in child.ladders:
            self._timers.clear(("ladder", child.session, aid))
        return child.ladders.get(child.inside())
