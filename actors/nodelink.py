"""Between a node's records and its socket: messages, none of which is lost when the link breaks and comes back. No I/O.

Over a link that may break (``resume`` in the HELLO, and ``received`` in the WELCOME) messages are counted and kept
until they are acknowledged (:mod:`omnibus.channel`), and nothing but the HELLO goes out before its WELCOME. Elsewhere
records pass as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omnibus.channel import ACK_EVERY, Channel
from omnibus.protocol import Blob, Record, Verb, decode, messages

__all__ = ["NodeLink"]

_ASK: Final = 2 * ACK_EVERY
_FULL: Final = 4 * ACK_EVERY


class NodeLink:
    """One node session's messages. ``resume``: the link may break, and the session go on over the next one."""

    def __init__(self, *, resume: bool) -> None:
        self._channel = Channel() if resume else None
        self._ready = False
        self._known = False
        self._asked = False
        self._waiting: list[Record] = []
        self._again: list[list[Blob]] = []

    @property
    def full(self) -> bool:
        """Whether so much is unacknowledged that what can wait should."""
        return self._channel is not None and self._channel.unacknowledged >= _FULL

    def pack(self, records: Sequence[Record]) -> list[list[Blob]]:
        """Return the messages to send now: what ``records`` say, and what is due besides."""
        channel = self._channel
        if channel is None:
            return messages(records) if records else []
        sent: list[list[Blob]] = []
        for record in records:
            if record[0] == Verb.HELLO:
                self._ready, self._again = False, []
                head = {**record[2], "resume": True, "received": channel.received}
                sent += messages([[record[0], record[1], head, None, 0]])
            else:
                self._waiting.append(record)
        return sent + self._pack_counted(channel) if self._ready else sent

    def _pack_counted(self, channel: Channel) -> list[list[Blob]]:
        again, self._again = self._again, []
        waiting, self._waiting = self._waiting, []
        due = channel.acknowledgement()
        if due is not None:
            waiting.insert(0, due)
        if channel.unacknowledged >= _ASK and not self._asked:
            self._asked = True
            waiting.append([Verb.PING, 0, None, None, 0])  # acknowledgements come with what the broker has to say
        fresh = messages(waiting) if waiting else []
        for frames in fresh:
            channel.keep(frames)
        return again + fresh

    def receive(self, frames: Sequence[Blob]) -> list[Record]:
        """Return the records of one message that are for the node; raises :class:`omnibus.ProtocolError`."""
        records = decode(frames)
        channel = self._channel
        if channel is None:
            return records
        if records and not _speaks_for_link(records[0]):
            channel.received += 1
        for record in records:
            if record[0] == Verb.ACK:
                channel.acknowledged(record[1])
                self._asked = False
            elif record[0] == Verb.WELCOME:
                self._on_welcome(record[2] if isinstance(record[2], Mapping) else {}, channel)
        return [record for record in records if record[0] != Verb.ACK]

    def _on_welcome(self, head: Mapping[Any, Any], channel: Channel) -> None:
        """Go on where the broker knows the session; else begin anew, without what was meant for a broker that did."""
        if head.get("resumed"):
            self._again = channel.resume(int(head.get("received", 0)))
        elif "received" not in head:
            self._channel = None
        elif self._known:
            self._channel = Channel()
            self._waiting = []
        self._ready = self._known = True
        self._asked = False


def _speaks_for_link(record: Record) -> bool:
    """Return whether a message that begins so is about the link, and not one of the session's counted ones."""
    verb, _, head, _, _ = record
    return verb == Verb.WELCOME or (verb == Verb.ERROR and isinstance(head, Mapping) and bool(head.get("again")))
