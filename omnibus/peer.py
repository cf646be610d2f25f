"""The client's side of OMB/1 as a state machine: records in, futures ended, records out. No I/O.

A shell puts requests in with :meth:`ClientPeer.request`, sends what :meth:`ClientPeer.take` returns, and gives every
message that comes to :meth:`ClientPeer.receive`. Requests may come from many threads at once: appending to ``out`` is
one atomic step, and a thread's requests keep their order. Everything else is for one thread at a time, the one that
holds the shell's lock.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from omnibus.channel import Channel
from omnibus.errors import BusClosed, ProtocolError, Unreachable, UsageError
from omnibus.faults import error_from
from omnibus.payload import decode as decode_payload
from omnibus.protocol import BATCH, INLINE, VERSION, Blob, Limits, Record, Verb, decode, encode

__all__ = ["ClientPeer", "Ending", "Lane", "Sink"]

_RESULT = int(Verb.RESULT)
_MOST_BLOBS = Limits().blobs


class Ending(Protocol):
    """What ends when its request does: a future."""

    lane: Lane | None
    size: int

    def set_result(self, result: Any, /) -> None:
        """End with a value."""

    def set_exception(self, exception: BaseException | None, /) -> None:
        """End with an error."""


class Sink(Protocol):
    """What takes the parts of a stream, or the events of a subscription."""

    def feed(self, value: Any, number: int, missed: int) -> None:
        """Take one part; ``number`` and ``missed`` are an event's, 0 for a stream's chunk."""

    def end(self, error: BaseException | None) -> None:
        """Learn that nothing more comes."""


class Lane:
    """A client's unfinished work at one priority.

    The counters change by single steps that the interpreter does not interrupt.
    """

    __slots__ = ("size", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.size = 0


class ClientPeer:
    """One client session.

    ``hello`` is the head of its HELLO. ``code``: whether both ends hold the mesh's key, so that pickles may travel.
    ``ready`` is true from WELCOME on; until then nothing but the HELLO goes out. ``failure`` is why the session can
    never work (again).
    """

    def __init__(self, hello: dict[str, Any], *, code: bool) -> None:
        self.session: bytes = hello["session"]
        self.ready = False
        self.failure: BaseException | None = None
        self.welcome: dict[str, Any] = {}
        self.window_tasks = 1_000_000
        self.window_bytes = 1 << 30
        self.out: list[Record] = []
        self.pending: dict[int, Ending] = {}
        self.sinks: dict[int, Sink] = {}
        self.lanes: dict[int, Lane] = {}
        self.control = Lane()
        """Counts what the broker itself answers; no window bounds that."""
        self.next_seq = itertools.count(1).__next__
        self._code = code
        self._hello = hello
        self._greeting: list[Record] = []
        self._greetings = 0
        self._channel = Channel()
        self._urgent: list[Record] = []
        self._returned: deque[list[Blob]] = deque()
        self._carried: dict[int, Sequence[Blob]] = {}
        self.greet()

    # ------------------------------------------------------------------ out

    def lane(self, priority: int) -> Lane:
        """Return the counters of a priority."""
        return self.lanes.get(priority) or self.lanes.setdefault(priority, Lane())

    def request(self, record: Record, blobs: Sequence[Blob]) -> None:
        """Queue a record whose body is large or that owns blobs; a small one may be appended to ``out`` as it is."""
        body = record[3]
        if body is not None and len(body) >= INLINE:
            blobs = [body, *blobs]
            record[3] = None
        record[4] = len(blobs)
        if blobs:
            self._carried[id(record)] = blobs
        self.out.append(record)

    def greet(self) -> None:
        """Say HELLO: at the start, and when the link is a new one. Until the answer, nothing else goes out."""
        if self.failure is None:
            self.ready = False
            self._returned.clear()
            head = {**self._hello, "resume": True, "received": self._channel.received}
            self._greetings += 1
            self._greeting = [[Verb.HELLO, self._greetings, head, None, 0]]

    def take(self) -> list[Blob] | None:
        """Return the frames of the next message to send, ``None`` when there is nothing (yet)."""
        if not self.ready:
            records, self._greeting = self._greeting, []
            return encode(records) if records else None
        if self._returned:
            return self._returned.popleft()
        records = self._urgent or self.out[:BATCH]
        if records is self._urgent:
            self._urgent = []
        elif not records:
            return None
        else:
            if self._carried:
                records = _few_blobs(records)
            del self.out[: len(records)]
        try:
            batch = encode(records)
        except Exception:  # a head holds what msgpack cannot pack
            self.out[:0] = self._sift(records)
            return self.take()
        due = self._channel.acknowledgement()
        frames = batch if due is None else encode([due, *records])
        if self._carried:
            for record in records:
                if record[4]:
                    frames.extend(self._carried.pop(id(record)))
        self._channel.keep(frames)
        return frames

    def _sift(self, records: list[Record]) -> list[Record]:
        """Return the records that can be sent; end the requests of the others, for which nobody else must pay."""
        kept = []
        for record in records:
            try:
                encode([record])
            except Exception as error:
                self._carried.pop(id(record), None)
                future = self._end(record[1]) if record[0] != Verb.DEFINE else None
                if future is not None:
                    future.set_exception(UsageError(f"msgpack cannot pack the options of request {record[1]}: {error}"))
            else:
                kept.append(record)
        return kept

    @property
    def unsent(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._returned or self._urgent or self.out)

    def untake(self, frames: list[Blob]) -> None:
        """Take back a message that the socket did not take; it goes first next time."""
        if self.ready:
            self._returned.appendleft(frames)
        else:
            self.greet()

    # ------------------------------------------------------------------ in

    def receive(self, frames: Sequence[Blob]) -> None:
        """Take one message: end the futures that it answers. What is not OMB/1 ends the session, and nothing raises."""
        try:
            self._receive(frames)
        except ProtocolError as error:
            self.fail(error)
        except Exception as error:
            self.fail(ProtocolError(f"the broker sent a record that makes no sense: {error!r:.200}"))

    def _receive(self, frames: Sequence[Blob]) -> None:
        pending = self.pending
        at = 2
        records = decode(frames)
        if records and not _speaks_for_link(records[0]):
            if not self.ready and self.welcome:
                return  # it was under way when this end greeted anew, and will be sent again
            self._channel.arrived(frames)
        for verb, about, head, body, count in records:
            blobs: Sequence[Blob] = ()
            if count:
                blobs = frames[at : at + count]
                at += count
            if verb == _RESULT:
                future = pending.pop(about, None)
                if future is None:
                    continue
                lane = future.lane
                if lane is not None:
                    lane.tasks -= 1
                    lane.size -= future.size
                try:
                    value = self._value(body, blobs) if body is not None or blobs else None
                except Exception as error:
                    future.set_exception(error)
                else:
                    future.set_result(value)
            else:
                handler = _HANDLERS.get(verb)
                if handler is not None:
                    handler(self, about, head, body, blobs)

    def _value(self, body: bytes | None, blobs: Sequence[Blob]) -> Any:
        if body is None:
            return decode_payload(bytes(blobs[0]), blobs[1:], code=self._code)
        return decode_payload(body, blobs, code=self._code)

    def _end(self, seq: int) -> Ending | None:
        future = self.pending.pop(seq, None)
        if future is not None and future.lane is not None:
            future.lane.tasks -= 1
            future.lane.size -= future.size
        return future

    def on_failed(self, seq: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """End a request in the error that the head names."""
        future = self._end(seq)
        error = error_from(head, body)
        sink = self.sinks.pop(seq, None)
        if sink is not None:
            sink.end(error)
        if future is not None:
            future.set_exception(error)

    def on_part(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Hand a chunk or an event to its sink."""
        sink = self.sinks.get(about)
        if sink is None:
            return
        number, missed = (head if isinstance(head, list) else (head, 0)) if head is not None else (0, 0)
        try:
            sink.feed(self._value(body, blobs), number, missed)
        except Exception as error:  # anybody may publish anything: that is this reader's end, and not the session's
            self.sinks.pop(about, None)
            future = self._end(about)
            self.out.append([Verb.UNSUBSCRIBE if future is None else Verb.CANCEL, about, None, None, 0])
            if future is not None:
                future.set_exception(error)
            sink.end(error)

    def on_welcome(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Begin to work, with the broker's limits."""
        if not isinstance(head, dict) or head.get("omb") != VERSION:
            self.fail(ProtocolError(f"the broker answered HELLO with {head!r:.120}; OMB/{VERSION} was expected"))
            return
        if about != self._greetings:
            return  # it answers an earlier greeting, and the answer to the last one follows
        if self.welcome and head.get("epoch") != self.welcome.get("epoch"):
            self.fail(Unreachable("the broker was restarted and knows nothing of this session: connect again"))
            return
        if self.welcome:
            if not head.get("resumed"):
                self.fail(Unreachable("the broker gave this session up while its link was broken: connect again"))
                return
            self._returned.extend(self._channel.resume(int(head.get("received", 0))))
        limits = head.get("limits") or {}
        self.window_tasks = int(limits.get("window_tasks", self.window_tasks))
        self.window_bytes = int(limits.get("window_bytes", self.window_bytes))
        self.welcome = head
        self.ready = True

    def on_error(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Take a complaint: about one request, or about the whole session."""
        error = error_from(head, None)
        again = isinstance(head, dict) and head.get("again")
        if not self.welcome:  # it answers the greeting, which has a number of its own
            if not again:
                self.fail(error)
        elif about:
            if isinstance(head, dict) and head.get("verb") == Verb.DEFINE:
                return  # what is submitted under that kind, which has numbers of its own, is told the same
            future = self._end(about)
            sink = self.sinks.pop(about, None)
            if sink is not None:
                sink.end(error)
            if future is not None:
                future.set_exception(error)
        elif not again:
            self.fail(error)
        elif self.ready:
            self.greet()

    def on_pong(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """End a PING: all that the broker had to say before it has arrived."""
        future = self._end(about)
        if future is not None:
            future.set_result(None)

    def on_ack(self, count: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Forget the messages that have arrived."""
        self._channel.acknowledged(count)

    def on_ping(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Answer a PING."""
        self._urgent.append([Verb.PONG, about, None, None, 0])

    def on_bye(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Learn that the broker ends in good order."""
        self.fail(Unreachable("the broker was stopped"))

    # ------------------------------------------------------------------ end

    def fail(self, error: BaseException) -> None:
        """End the session and every request in ``error``."""
        if self.failure is None:
            self.failure = error
        self.ready = False
        self._greeting = []
        for seq in list(self.sinks):
            self.sinks.pop(seq).end(error)
        for seq in list(self.pending):
            future = self._end(seq)
            if future is not None:
                future.set_exception(error)

    def stop(self) -> int:
        """Take no more requests, and end what is unfinished in :class:`BusClosed`; return how much that was.

        The session itself goes on until :meth:`close`, for what still comes by itself: the last output of a mesh.
        """
        if self.failure is None:
            self.failure = BusClosed("the bus was closed before this ended")
        unfinished = list(self.pending)
        for seq in unfinished:
            future = self._end(seq)
            if future is not None:
                future.set_exception(self.failure)
        return len(unfinished)

    def close(self) -> int:
        """Queue a BYE behind all else, end everything, and return how many requests were unfinished."""
        ready = self.ready
        unfinished = self.stop()
        self.out.append([Verb.BYE, 0, None, None, 0])
        assert self.failure is not None
        self.fail(self.failure)
        self.ready = ready
        return unfinished

    def restrict(self) -> None:
        """Load no pickle from now on: the broker says that strangers may send some."""
        self._code = False

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the counters are off; for tests."""
        for priority, lane in self.lanes.items():
            held = [future for future in self.pending.values() if future.lane is lane]
            assert lane.tasks == len(held), f"lane {priority} counts {lane.tasks}, {len(held)} are pending"
            assert lane.size == sum(future.size for future in held), f"lane {priority}: bytes are off"


_Handler = Callable[[ClientPeer, int, Any, "bytes | None", Sequence[Blob]], None]
_HANDLERS: dict[int, _Handler] = {
    int(Verb.FAILED): ClientPeer.on_failed,
    int(Verb.CHUNK): ClientPeer.on_part,
    int(Verb.EVENT): ClientPeer.on_part,
    int(Verb.WELCOME): ClientPeer.on_welcome,
    int(Verb.ERROR): ClientPeer.on_error,
    int(Verb.PING): ClientPeer.on_ping,
    int(Verb.PONG): ClientPeer.on_pong,
    int(Verb.ACK): ClientPeer.on_ack,
    int(Verb.BYE): ClientPeer.on_bye,
}


def _few_blobs(records: list[Record]) -> list[Record]:
    """Return as many of the records as one message may carry with their blobs, one at least."""
    counts = list(itertools.accumulate(record[4] for record in records))
    return records[: bisect.bisect_right(counts, _MOST_BLOBS) or 1]


def _speaks_for_link(record: Record) -> bool:
    """Return whether a message that begins so is about the link, and not one of the session's counted ones."""
    verb, _, head, _, _ = record
    return verb == Verb.WELCOME or (verb == Verb.ERROR and isinstance(head, dict) and bool(head.get("again")))
