"""A worker's or an actor's side of OMB/1 as a state machine: records in, work to do, answers out. No I/O.

The shell gives every message to :meth:`Inbox.receive`, takes work from ``queue`` in order, answers through
:meth:`Inbox.answer` and its kin, and sends what :meth:`Inbox.take` returns.

Where the link may break and come back (``resume`` in the HELLO, and ``received`` in the WELCOME), messages are counted
and kept until they are acknowledged (:mod:`omnibus.channel`), and nothing but the HELLO goes out before its WELCOME.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from omnibus.channel import Channel
from omnibus.protocol import INLINE, Blob, Record, Verb, decode, messages

__all__ = ["STREAM_CREDIT", "Inbox", "Job", "Work"]

STREAM_CREDIT: Final = 32
"""Chunks that a stream may be ahead of its reader; the reader's side begins with as many."""

_DONE: Final = int(Verb.DONE)
_FAIL: Final = int(Verb.FAIL)
_CHUNK: Final = int(Verb.CHUNK)
_RUN: Final = int(Verb.RUN)
_ANSWERS: Final = frozenset({_DONE, _FAIL, _CHUNK})
_NO_ARGUMENTS: Final = b"\x90"
_WISHES: Final = 256
"""Cancelled attempts to remember; of those that ended meanwhile nobody asks again."""
_SHELF: Final = 16 * 1024 * 1024
"""Bytes of code to keep of kinds that were forgotten: the next client may well bring the same function."""


class Work:
    """A kind of work as its worker knows it: what to run, whose it is, and what a call costs.

    ``call`` is loaded by the shell on first use. ``cost`` is a running mean in nanoseconds, ``told`` what the broker
    was told last.
    """

    __slots__ = ("call", "code", "cost", "head", "number", "stream", "timeout", "told")

    def __init__(self, number: int, head: dict[str, Any], code: bytes | None) -> None:
        self.number = number
        self.head = head
        self.code = code
        self.call: Callable[..., Any] | None = None
        self.stream = bool(head.get("stream"))
        self.timeout: float | None = head.get("timeout")
        self.cost = 0
        self.told = 0


class Job(NamedTuple):
    """One attempt to make. ``setup`` jobs make the actor itself."""

    aid: int
    work: Work
    seq: int
    attempt: int
    body: bytes
    blobs: Sequence[Blob]
    setup: bool = False


_new_job: Final = tuple.__new__


class Inbox:
    """One worker session. ``hello`` is the head of its HELLO.

    ``stopping`` is set once its end is wanted; ``refusal`` is the head of the ERROR that refused it; ``parted``: the
    broker said BYE, or has heard it. ``active`` are the attempts that have begun and are not answered, as far as the
    shell says so: a HELLO that is said anew names them beside those that wait.
    """

    def __init__(self, hello: dict[str, Any]) -> None:
        self.session: bytes = hello["session"]
        self.queue: deque[Job] = deque()
        self.works: dict[int, Work] = {}
        self.codes: dict[bytes, bytes] = {}
        self.credits: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.active: Collection[int] = ()
        self.ready = False
        self.stopping = False
        self.on_restricted: Callable[[], None] | None = None
        self.parted = False
        self.heard = 0
        self.refusal: dict[str, Any] | None = None
        self.welcome: dict[str, Any] = {}
        self.records: list[Record] = []
        self.blobs: list[Blob] = []
        self._hello = hello
        self._left = False
        self._shelf: dict[bytes, bytes] = {}
        self._channel = Channel() if hello.get("resume") else None
        self._greeting: list[Record] = []
        self._greetings = 0
        self._again: list[list[Blob]] = []
        self.greet()

    def greet(self) -> None:
        """Queue a HELLO: at the start, and when the broker does not know this link.

        One that is said anew names what is held here, ``running``: the broker need not wait for anything else.
        """
        head = self._hello
        if self.welcome:
            head = {**head, "running": sorted(self._held())}
        self.ready = False
        self._greetings += 1
        if self._channel is not None:
            head = {**head, "received": self._channel.received}
            self._greeting = [[Verb.HELLO, self._greetings, head, None, 0]]
            self._again = []
            return
        records = self.records
        if records and records[0][0] == Verb.HELLO:
            del records[0]
        records.insert(0, [Verb.HELLO, self._greetings, head, None, 0])

    def _held(self) -> set[int]:
        """Return the attempts that wait, run, or are answered by what was not sent yet."""
        unsent = (record[1] for record in self.records if record[0] in _ANSWERS)
        return {*self.active, *self.credits, *unsent, *(job.aid for job in self.queue)}

    # ------------------------------------------------------------------ in

    def receive(self, frames: Sequence[Blob]) -> None:
        """Take one message; raises :class:`omnibus.ProtocolError` where it is not OMB/1."""
        at = 2
        records = decode(frames)
        if self._channel is not None and records and not _speaks_for_link(records[0]):
            if not self.ready and self.welcome:
                return  # it was under way when this end greeted anew, and will be sent again
            self._channel.arrived(frames)
        for verb, about, head, body, count in records:
            blobs: Sequence[Blob] = ()
            if count:
                blobs = frames[at : at + count]
                at += count
            if verb == _RUN:
                number, seq, attempt = head
                if body is None:
                    body, blobs = _unfold(blobs)
                # what the constructor does, at half its price
                self.queue.append(_new_job(Job, (about, self.works[number], seq, attempt, body, blobs, False)))
            else:
                handler = _HANDLERS.get(verb)
                if handler is not None:
                    handler(self, about, head, body, blobs)

    def on_welcome(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Begin to work, or go on: with what is held where the broker knows it, else without."""
        if about != self._greetings:
            return  # it answers an earlier greeting, and the answer to the last one follows
        known = self.welcome
        if known and not head.get("resumed", head.get("epoch") == known.get("epoch")):
            self._start_over()
        elif known and self._channel is not None:
            self._again = self._channel.resume(int(head.get("received", 0)))
        if "received" not in head:
            self._channel = None
        self.welcome = head
        self.ready = True
        if head.get("code") is False and self.on_restricted is not None:
            self.on_restricted()

    def _start_over(self) -> None:
        """Drop what a broker told that knows nothing of this session any more; what it does not know is over."""
        self.queue.clear()
        self.works.clear()
        self.codes.clear()
        self.records, self.blobs = [], []
        if self._channel is not None:
            self._channel = Channel()

    def on_error(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Say HELLO anew where the broker asks for it, unless BYE was said; otherwise this session is refused."""
        if head.get("again"):
            if self._left or self.refusal is not None:
                self.parted = True
            elif self._channel is None or self.ready:  # each of several messages that it did not know is answered so
                self.greet()
        elif not about or not self.welcome:
            self.refusal = head
            self.stopping = True

    def on_define(self, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Learn a kind of work; code that came once is remembered by its digest."""
        code = body if body is not None else bytes(blobs[0]) if blobs else None
        digest = head.get("code")
        if digest is not None:
            if code is None:
                code = self._shelf.pop(digest, None)
            code = self.codes.setdefault(digest, code) if code is not None else self.codes.get(digest)
        self.works[number] = Work(number, head, code)

    def on_forget(self, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Forget a kind, and shelve its code if nothing else is made of that."""
        work = self.works.pop(number, None)
        digest = work.head.get("code") if work is not None else None
        if digest is not None and all(other.head.get("code") != digest for other in self.works.values()):
            code = self.codes.pop(digest, None)
            if code is not None:
                self._shelf[digest] = code
            while self._shelf and sum(map(len, self._shelf.values())) > _SHELF:
                del self._shelf[next(iter(self._shelf))]

    def on_spawn(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Queue the making of the actor."""
        work = self.works.get(0) or Work(0, head, None)
        if body is None:
            body, blobs = _unfold(blobs)
        self.queue.append(Job(aid, work, 0, 1, body, blobs, setup=True))

    def on_cancel(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Drop a job that has not begun; note the wish for one that has."""
        if self._drop(aid):
            return
        self.cancelled.add(aid)
        if len(self.cancelled) > _WISHES:  # attempts are numbered upwards: the lowest ended long ago
            self.cancelled.discard(min(self.cancelled))

    def on_revoke(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Drop a job that has not begun; one that has goes on."""
        self._drop(aid)

    def _drop(self, aid: int) -> bool:
        """Give a job back that has not begun; return whether there was one."""
        for job in self.queue:
            if job.aid == aid:
                self.queue.remove(job)
                self.fail(aid, {"error": "Revoked", "message": "it had not begun"}, None)
                return True
        return False

    def on_credit(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Let a stream send more."""
        if aid in self.credits:
            self.credits[aid] += head

    def on_stop(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Stop after what is being done."""
        self.stopping = True

    def on_bye(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Learn that the broker ends in good order."""
        self.parted = self.stopping = True

    def on_ping(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Answer a PING."""
        self.records.append([Verb.PONG, about, None, None, 0])

    def on_pong(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Learn that the broker has heard all that was said before the PING."""
        self.heard = about

    def on_ack(self, count: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Forget the messages that have arrived."""
        if self._channel is not None:
            self._channel.acknowledged(count)

    # ------------------------------------------------------------------ out

    def answer(self, aid: int, body: bytes, blobs: Sequence[Blob]) -> None:
        """Queue a result."""
        if not blobs and len(body) < INLINE:
            self.records.append([_DONE, aid, None, body, 0])
        else:
            self._put(_DONE, aid, body, blobs)

    def chunk(self, aid: int, body: bytes, blobs: Sequence[Blob]) -> None:
        """Queue a part of a stream; takes one of its credits."""
        self.credits[aid] -= 1
        self._put(_CHUNK, aid, body, blobs)

    def _put(self, verb: int, aid: int, body: bytes | None, blobs: Sequence[Blob]) -> None:
        if body is not None and len(body) >= INLINE:
            blobs = [body, *blobs]
            body = None
        if blobs:
            self.blobs.extend(blobs)
        self.records.append([verb, aid, None, body, len(blobs)])

    def fail(self, aid: int, head: dict[str, Any], body: bytes | None) -> None:
        """Queue how an attempt failed."""
        self.records.append([_FAIL, aid, {key: _text(value) for key, value in head.items()}, body, 0])

    def give_back(self, why: str) -> None:
        """Queue that all which waits will not begin here: the broker hands it out again, and it costs nothing."""
        for job in self.queue:
            self.fail(job.aid, {"error": "Revoked", "message": why}, None)
        self.queue.clear()

    def bye(self) -> None:
        """Queue a BYE behind all else: this session is over."""
        self.records.append([Verb.BYE, 0, None, None, 0])
        self._left = True

    def ping(self, number: int) -> None:
        """Queue a PING: ``heard`` is its number once the broker has heard all before it; behind a BYE, ``parted``."""
        self.records.append([Verb.PING, number, None, None, 0])

    def timed(self, work: Work) -> None:
        """Tell the broker what a call costs where that changed by half or more since it was told last."""
        if not work.told or work.cost > 2 * work.told or 2 * work.cost < work.told:
            work.told = work.cost
            self.records.append([Verb.TIMED, work.number, work.cost, None, 0])

    @property
    def unsent(self) -> bool:
        """Whether there is something to send now."""
        if self._channel is None:
            return bool(self.records)
        return bool(self._again or self.records) if self.ready else bool(self._greeting)

    def take(self) -> list[list[Blob]]:
        """Return the messages to send now."""
        if self._channel is not None:
            return self._take_counted(self._channel)
        return self._pack() if self.records else []

    def _take_counted(self, channel: Channel) -> list[list[Blob]]:
        if not self.ready:
            greeting, self._greeting = self._greeting, []
            return messages(greeting) if greeting else []
        again, self._again = self._again, []
        if not self.records:
            return again
        due = channel.acknowledgement()
        if due is not None:
            self.records.insert(0, due)
        fresh = self._pack()
        for frames in fresh:
            channel.keep(frames)
        return again + fresh

    def _pack(self) -> list[list[Blob]]:
        records, blobs = self.records, self.blobs
        self.records, self.blobs = [], []
        return messages(records, blobs)


def _speaks_for_link(record: Record) -> bool:
    """Return whether a message that begins so is about the link, and not one of the session's counted ones."""
    verb, _, head, _, _ = record
    return verb == Verb.WELCOME or (verb == Verb.ERROR and isinstance(head, dict) and bool(head.get("again")))


def _unfold(blobs: Sequence[Blob]) -> tuple[bytes, Sequence[Blob]]:
    """Return the body that travelled as the first blob, and the other blobs; no body at all is a call of nothing."""
    return (bytes(blobs[0]), blobs[1:]) if blobs else (_NO_ARGUMENTS, ())


def _text(value: Any) -> Any:
    """Return what msgpack can carry of a text: the message of a user's error may hold lone surrogates."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


_Handler = Callable[[Inbox, int, Any, "bytes | None", Sequence[Blob]], None]
_HANDLERS: dict[int, _Handler] = {
    int(Verb.WELCOME): Inbox.on_welcome,
    int(Verb.ERROR): Inbox.on_error,
    int(Verb.BYE): Inbox.on_bye,
    int(Verb.ACK): Inbox.on_ack,
    int(Verb.DEFINE): Inbox.on_define,
    int(Verb.FORGET): Inbox.on_forget,
    int(Verb.SPAWN): Inbox.on_spawn,
    int(Verb.CANCEL): Inbox.on_cancel,
    int(Verb.REVOKE): Inbox.on_revoke,
    int(Verb.CREDIT): Inbox.on_credit,
    int(Verb.STOP): Inbox.on_stop,
    int(Verb.PING): Inbox.on_ping,
    int(Verb.PONG): Inbox.on_pong,
}
