"""Status pages: one page of shared memory between a child process and its supervisor.

The child says which attempt it is in, the supervisor what it wants ended. Neither waits for the other's GIL,
socket or loop, so a supervisor can blame, time and recall attempts of a child that holds its GIL for minutes.

A page is a sealed memfd of 4096 bytes: it has no name, so no crash leaves it behind, and it cannot shrink under
a reader. It is an array of unsigned 64-bit words in the host's byte order, each with one writer:

====== ========== ==========================================================================
word   writer     meaning
====== ========== ==========================================================================
0      child      ``begun``: the newest attempt that was begun (0: none yet); never goes back
1      child      ``ended``: the newest attempt that is over; equal to ``begun`` when idle
2      child      when ``begun`` was begun: nanoseconds of the monotonic clock
3      child      beats: a count that grows while the child makes progress
4      child      step: the step of its task that was saved or reached last
16     supervisor ``cancel``: the attempt that should end
17     supervisor reason: why (:class:`Reason`)
18     supervisor revision: grows with each entry of the ring
32–511 supervisor ring of revoked attempts: ``aid << 1``, with the lowest bit set while undecided
====== ========== ==========================================================================

**Order.** Attempt ids rise in the order in which a child begins them. All stores are single aligned words, so no
reader sees half of one. What must hold is: a revoked attempt never begins, and one that was not revoked is not
refused. The child stores ``begun``, then a full fence, then loads ``revision``; the supervisor stores ring and
``revision``, then a full fence, then loads ``begun``. Of two such sides at least one sees the other's store
(Dekker), so there are three cases. The supervisor sees an older ``begun``: the child has yet to look, and will find
the entry: the attempt is revoked. The child sees the old ``revision``: then the supervisor sees the new ``begun``,
takes its entry back, and the attempt runs. Both see each other: the child finds an undecided entry and waits until
the supervisor, two instructions on, has decided. The waiting side is the child, for the supervisor runs no user
code, and if it dies the child dies too.

The fence is an uncontended lock, taken and given back: on x86-64 these are locked instructions, each a full fence.
Elsewhere acquire and release are one-way, and twice in a row they make a full one (the first release is ordered
before the second acquire, as AArch64 has it for its sequentially consistent pair). The other words need no fence:
they are advice, and are read again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from enum import IntEnum
from typing import Final

from omnibus.errors import UsageError

__all__ = ["PAGE_SIZE", "Reason", "StatusPage"]

PAGE_SIZE: Final = 4096

_BEGUN: Final = 0
_ENDED: Final = 1
_SINCE: Final = 2
_BEATS: Final = 3
_STEP: Final = 4
_CANCEL: Final = 16
_REASON: Final = 17
_REVISION: Final = 18
_RING: Final = 32
_SLOTS: Final = PAGE_SIZE // 8 - _RING
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_TWICE: Final = os.uname().machine not in ("x86_64", "i386", "i686")
_clock: Final = time.monotonic_ns


class Reason(IntEnum):
    """Why a supervisor wants an attempt to end."""

    NONE = 0
    CANCEL = 1
    TIMEOUT = 2
    YIELD = 3


class StatusPage:
    """One side's view of a page; see the module for its words and their order.

    The child calls :meth:`begin`, :meth:`end` and :meth:`cancelled`; the supervisor :meth:`running`, :meth:`cancel` and
    :meth:`revoke`. Each side must call from one thread at a time.
    """

    __slots__ = ("_acquire", "_map", "_release", "_revision", "_slot", "_words", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """The descriptor of the memfd, for the side that made the page; ``-1`` for the one that attached."""
        self._map = mmap.mmap(fd, PAGE_SIZE)
        self._words = memoryview(self._map).cast("Q")
        lock = threading.Lock()
        self._acquire = lock.acquire
        self._release = lock.release
        self._revision = 0
        self._slot = 0

    @classmethod
    def create(cls, name: str = "page") -> StatusPage:
        """Return a new page, all zero; hand its ``fd`` to the child, and :meth:`close` it in the end."""
        fd = os.memfd_create(f"omnibus-{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, PAGE_SIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> StatusPage:
        """Map the page behind ``fd`` and close ``fd``.

        Raises :class:`UsageError` where it is no status page.
        """
        size = os.fstat(fd).st_size
        if size != PAGE_SIZE:
            raise UsageError(
                f"descriptor {fd} is no status page: it has {size} bytes, a page has {PAGE_SIZE}"
            )
        page = cls(fd)
        os.close(fd)
        page.fd = -1
        return page

    def close(self) -> None:
        """Unmap the page, and close its descriptor where it is still open; idempotent."""
        self._words.release()
        self._map.close()
        self.close_fd()

    def close_fd(self) -> None:
        """Close the descriptor, once the child has got it; the page stays mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # ------------------------------------------------------------------ the child's side

    def begin(self, aid: int) -> bool:
        """Enter the attempt ``aid``; false if it was revoked, and then it must not run.

        After true, call :meth:`end` whichever way the attempt ends.
        """
        words = self._words
        words[_SINCE] = _clock()
        words[_BEGUN] = aid
        self._acquire()
        self._release()
        if _TWICE:
            self._acquire()
            self._release()
        if words[_REVISION] == self._revision:
            return True
        return self._look(aid)

    def _look(self, aid: int) -> bool:
        """Look for ``aid`` among the revoked; leave the attempt again if it is there."""
        words = self._words
        revision = words[_REVISION]  # before the ring: what is entered from now on is seen next time
        revoked = aid << 1
        ring = words[_RING:].tolist()
        while revoked | 1 in ring:
            os.sched_yield()  # undecided: the supervisor is between two of its instructions
            ring = words[_RING:].tolist()
        if max(ring) <= revoked:
            self._revision = revision  # nothing in the ring is still to come
        if revoked in ring:
            words[_ENDED] = aid
            return False
        return True

    def end(self) -> None:
        """Leave the attempt that was begun last."""
        words = self._words
        words[_ENDED] = words[_BEGUN]

    def cancelled(self, aid: int) -> bool:
        """Return whether the supervisor wants ``aid`` to end."""
        return self._words[_CANCEL] == aid

    @property
    def reason(self) -> str:
        """Why the attempt that :meth:`cancelled` names should end: ``cancel``, ``timeout``, ``yield``, or nothing."""
        code = self._words[_REASON]
        return Reason(code).name.lower() if code in _REASONS else ""

    def beat(self) -> None:
        """Count one sign of progress."""
        self._words[_BEATS] += 1

    # ------------------------------------------------------------------ either side

    @property
    def beats(self) -> int:
        """How often the child has called :meth:`beat`."""
        return self._words[_BEATS]

    @property
    def step(self) -> int:
        """The step that the child reached last; the child sets it."""
        return self._words[_STEP]

    @step.setter
    def step(self, step: int) -> None:
        self._words[_STEP] = step

    # ------------------------------------------------------------------ the supervisor's side

    @property
    def last(self) -> int:
        """The newest attempt that was begun, be it running or over; 0 before the first."""
        return self._words[_BEGUN]

    def running(self) -> tuple[int, int] | None:
        """Return the attempt that the child is in, and its start in monotonic nanoseconds; ``None`` when idle.

        ``ended`` is read last, because the child writes it before it touches the time again: if the attempt
        has not ended after the time was read, the time is this attempt's.
        """
        words = self._words
        aid = words[_BEGUN]
        since = words[_SINCE]
        return (aid, since) if words[_ENDED] < aid else None

    def over(self, aid: int) -> bool:
        """Return whether the attempt ``aid`` was begun and is over; false while it runs or waits."""
        words = self._words
        return words[_ENDED] >= aid or words[_BEGUN] > aid

    def cancel(self, aid: int, reason: Reason) -> None:
        """Ask the child to end ``aid``; the newest wish replaces an older one."""
        words = self._words
        words[_CANCEL] = 0
        words[_REASON] = reason
        words[_CANCEL] = aid

    def revoke(self, aid: int) -> bool:
        """Return true if ``aid`` will never begin, from now on; false if it has begun.

        False also if 480 earlier revocations still wait for the child to pass them: ``aid`` is then not revoked.
        """
        words = self._words
        entry = aid << 1
        if entry in words[_RING:].tolist():
            return True  # revoked before, and perhaps refused by now: to ask twice changes nothing
        begun = words[_BEGUN]
        if begun >= aid:
            return False
        slot = self._free_slot(begun)
        if slot is None:
            return False
        words[slot] = entry | 1
        words[_REVISION] += 1
        self._fence()
        if words[_BEGUN] >= aid:
            words[slot] = 0
            return False
        words[slot] = entry
        return True

    def _free_slot(self, begun: int) -> int | None:
        """Return a slot whose attempt the child has passed, so that nobody looks for it there."""
        words = self._words
        for step in range(_SLOTS):
            slot = _RING + (self._slot + step) % _SLOTS
            if words[slot] >> 1 < begun or not words[slot]:
                self._slot = slot - _RING + 1
                return slot
        return None

    def _fence(self) -> None:
        for _ in range(1 + _TWICE):
            self._acquire()
            self._release()


_REASONS: Final = frozenset(int(reason) for reason in Reason if reason)
