"""A session's memory of its messages, so that a link that breaks loses none. No I/O.

ZeroMQ delivers in order and without loss while a connection lives; what was under way when it broke is gone, and a
reconnected peer comes over a new route. So each end counts the messages of a session and keeps those that the other
end has not acknowledged. When the session comes back, HELLO and WELCOME say how many arrived, and the rest is sent
again: each message arrives once and in order. HELLO and WELCOME themselves travel alone and are not counted.

The scheme is that of any sliding window with cumulative acknowledgements (RFC 9293, 3.4); order and integrity come
from the transport, so a count is all that is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from omnibus.errors import ProtocolError
from omnibus.protocol import Blob, Record, Verb

__all__ = ["ACK_BYTES", "ACK_EVERY", "Channel"]

ACK_EVERY = 32
"""Messages that may come before they are acknowledged."""
ACK_BYTES = 1 << 20
"""Bytes of blobs that may come before they are."""


class Channel:
    """Both directions of one session, as one end sees them.

    ``sent`` and ``received`` count messages since the session began.
    """

    __slots__ = ("_heavy", "_kept", "_told", "received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self._told = 0
        self._heavy = 0
        self._kept: deque[list[Blob]] = deque()

    @property
    def unacknowledged(self) -> int:
        """Messages that the other end may not have."""
        return len(self._kept)

    def keep(self, frames: list[Blob]) -> None:
        """Count a message that is sent now, and keep it until it is acknowledged."""
        self.sent += 1
        self._kept.append(frames)

    def arrived(self, frames: Sequence[Blob]) -> None:
        """Count a message that came, and the bytes of its blobs, which the other end keeps until it is told."""
        self.received += 1
        if len(frames) > 2:
            self._heavy += sum(len(frame) for frame in frames[2:])

    def acknowledgement(self) -> Record | None:
        """Return the ACK record to put into the next message, where one is due."""
        if self.received - self._told < ACK_EVERY and self._heavy < ACK_BYTES:
            return None
        self._heavy = 0
        self._told = self.received
        return [Verb.ACK, self.received, None, None, 0]

    def acknowledged(self, count: int) -> None:
        """Forget what the other end has: ``count`` messages of the session.

        A count below an earlier one is old news: a message that is sent again carries the one of its first time. Raises
        :class:`ProtocolError` where the count is more than were sent.
        """
        if count > self.sent:
            raise ProtocolError(f"ACK of {count} messages, but only {self.sent} were sent in this session")
        for _ in range(count - (self.sent - len(self._kept))):
            self._kept.popleft()

    def resume(self, count: int) -> list[list[Blob]]:
        """Return what to send again over a new link to an end that has ``count`` messages.

        Raises :class:`ProtocolError` for a count that cannot be.
        """
        self.acknowledged(count)
        self._told = self.received
        return list(self._kept)
