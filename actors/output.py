"""What children print: pipes read without blocking, cut into lines, ready to publish.

A child that floods is slowed by its own pipe: it is read at a bounded rate, and the child waits in ``write`` as before
any slow terminal. While there is no broker to publish to, children are not slowed: the newest lines are kept.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Final

from omnibus.protocol import Record

__all__ = ["KEPT_LINES", "LINE_BYTES", "LineReader", "Outputs", "say_most"]

KEPT_LINES: Final = 2000
"""Lines that wait to be published."""

LINE_BYTES: Final = 8192
"""The longest line; a longer one is cut."""
_CHUNK: Final = 65536
_RATE: Final = 4 << 20
_BURST: Final = 1 << 20
_LINE_COST: Final = 200
_UNFINISHED: Final = 0.25
_TAIL: Final = 20


class LineReader:
    """One output pipe of a child. ``fd`` is its non-blocking read end, ``emit`` gets each line's text.

    ``paused_until`` is when it may be read again after a flood (0: now); ``flush_at`` is when a line without its end is
    to be given out as it is (0: there is none).
    """

    def __init__(self, fd: int, emit: Callable[[str], None], now: float) -> None:
        self.fd = fd
        self.open = True
        self.paused_until = 0.0
        self.flush_at = 0.0
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._emit = emit
        self._partial = b""
        self._allowance = float(_BURST)
        self._filled = now
        os.set_blocking(fd, False)

    def read(self, now: float) -> None:
        """Read what is there, up to a bound, and give out its lines."""
        self._allowance = min(float(_BURST), self._allowance + (now - self._filled) * _RATE)
        self._filled = now
        self.paused_until = 0.0
        chunk = self._chunk()
        if not chunk:
            return
        lines = self._take(chunk)
        self._allowance -= len(chunk) + lines * _LINE_COST
        if self._allowance < 0:
            self.paused_until = now - self._allowance / _RATE
        self.flush_at = now + _UNFINISHED if self._partial else 0.0

    def drain(self) -> None:
        """Read all that a dead child left, at any rate: a pipe holds little."""
        while chunk := self._chunk():
            self._take(chunk)
        self.flush()

    def _chunk(self) -> bytes:
        """Return what a read gives; nothing when there is nothing, or will be nothing more."""
        if not self.open:
            return b""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self.open = False
            self.flush()
        return chunk

    def _take(self, chunk: bytes) -> int:
        *whole, rest = (self._partial + chunk).split(b"\n")
        for line in whole:
            self._give(line)
        while len(rest) > LINE_BYTES:
            self._give(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self._partial = rest
        return len(whole)

    def flush(self) -> None:
        """Give out a line that has not ended yet."""
        self.flush_at = 0.0
        if self._partial:
            line, self._partial = self._partial, b""
            self._give(line)

    def _give(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), LINE_BYTES):
            text = line[start : start + LINE_BYTES].decode("utf-8", "replace")
            text = text.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites itself: its last state counts
            self.tail.append(text)
            self._emit(text)

    def close(self) -> None:
        """Close the pipe."""
        self.open = False
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


_MARKS: Final = ("Fatal Python error", "MemoryError", "terminate called", "CUDA error")


def say_most(lines: deque[str]) -> str:
    """Return the line of an error output's end that says most about a death: a known mark, else the last one."""
    for line in lines:
        if line.startswith(_MARKS):
            return line.strip()[:200]
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


class Outputs:
    """The output pipes of all children, and the lines that they gave.

    ``listen(fd, handler)`` has ``handler(now)`` called when ``fd`` is readable, ``ignore(fd)`` ends that. ``lines`` are
    records to publish, oldest first.
    """

    def __init__(self, listen: Callable[[int, Callable[[float], None]], None], ignore: Callable[[int], None]) -> None:
        self.lines: deque[Record] = deque(maxlen=KEPT_LINES)
        self.taken = False
        """Whether somebody takes ``lines`` away: then readers wait rather than drop some."""
        self._listen = listen
        self._ignore = ignore
        self._timed: set[LineReader] = set()
        self._held: set[LineReader] = set()

    def open(self, reader: LineReader) -> None:
        """Begin to read a pipe."""
        self._listen(reader.fd, lambda now: self._read(reader, now))

    def close(self, reader: LineReader) -> None:
        """Stop reading a pipe, and close it."""
        if reader.fd >= 0:
            self._ignore(reader.fd)
        self._timed.discard(reader)
        self._held.discard(reader)
        reader.close()

    def _read(self, reader: LineReader, now: float) -> None:
        if self.taken and len(self.lines) >= KEPT_LINES // 2:
            self._ignore(reader.fd)
            self._held.add(reader)
            return
        reader.read(now)
        if not reader.open or reader.paused_until:
            self._ignore(reader.fd)
        if reader.flush_at or reader.paused_until:
            self._timed.add(reader)

    def on_time(self, now: float) -> None:
        """Give out lines that have waited for their end; go on reading what was paused or held."""
        for reader in list(self._timed):
            if reader.flush_at and reader.flush_at <= now:
                reader.flush()
            if reader.paused_until and reader.paused_until <= now:
                reader.paused_until = 0.0
                self.open(reader)
            if not reader.flush_at and not reader.paused_until:
                self._timed.discard(reader)
        if self._held and len(self.lines) < KEPT_LINES // 4:
            for reader in self._held:
                self.open(reader)
            self._held.clear()

    def next_deadline(self) -> float | None:
        """Return when :meth:`on_time` has something to do; ``None`` where nothing waits for time."""
        if self._held and len(self.lines) < KEPT_LINES // 4:
            return 0.0
        whens = [when for reader in self._timed for when in (reader.flush_at, reader.paused_until) if when]
        return min(whens, default=None)
