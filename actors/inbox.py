"""A worker's or an actor's side of OMB/1 as a state machine: records in, work to do, answers out. No I/O.

The shell gives every message to :meth:`Inbox.receive`, takes work from ``queue`` in order, answers through
:meth:`Inbox.answer` and its kin, and sends what :meth:`Inbox.take` returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from omnibus.protocol import INLINE, Blob, Record, Verb, decode, messages

__all__ = ["Inbox", "Job", "Work"]

_DONE = int(Verb.DONE)
_RUN = int(Verb.RUN)
_NO_ARGUMENTS = b"\x90"
_WISHES = 256
"""Cancelled attempts to remember; of those that ended meanwhile nobody asks again."""


class Work:
    """A kind of work as its worker knows it: what to run, whose it is, and what a call costs.

    ``call`` is loaded by the shell on first use; ``broken`` is why that failed. ``cost`` is a running mean in
    nanoseconds, ``told`` what the broker was told last.
    """

    __slots__ = ("broken", "call", "code", "cost", "head", "number", "stream", "timeout", "told")

    def __init__(self, number: int, head: dict[str, Any], code: bytes | None) -> None:
        self.number = number
        self.head = head
        self.code = code
        self.call: Callable[..., Any] | None = None
        self.broken: Exception | None = None
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


class Inbox:
    """One worker session. ``hello`` is the head of its HELLO; ``stopping`` is set once the broker wants its end."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.session: bytes = hello["session"]
        self.queue: deque[Job] = deque()
        self.works: dict[int, Work] = {}
        self.codes: dict[bytes, bytes] = {}
        self.credits: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.ready = False
        self.stopping = False
        self.refusal: dict[str, Any] | None = None
        self.welcome: dict[str, Any] = {}
        self.records: list[Record] = []
        self.blobs: list[Blob] = []
        self._hello = hello
        self.greet()

    def greet(self) -> None:
        """Queue a HELLO: at the start, and when the broker does not know this link."""
        self.ready = False
        self.records.insert(0, [Verb.HELLO, 0, self._hello, None, 0])

    def receive(self, frames: Sequence[Blob]) -> None:
        """Take one message; raises :class:`omnibus.ProtocolError` where it is not OMB/1."""
        at = 2
        for verb, about, head, body, count in decode(frames):
            blobs: Sequence[Blob] = ()
            if count:
                blobs = frames[at : at + count]
                at += count
            if verb == _RUN:
                number, seq, attempt = head
                if body is None:
                    body, blobs = _unfold(blobs)
                self.queue.append(Job(about, self.works[number], seq, attempt, body, blobs))
            else:
                handler = _HANDLERS.get(verb)
                if handler is not None:
                    handler(self, about, head, body, blobs)

    def on_welcome(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Begin to work."""
        self.welcome = head
        self.ready = True

    def on_error(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Say HELLO anew where the broker asks for it; otherwise this session is refused."""
        if head.get("again"):
            self.greet()
        elif not about:
            self.refusal = head
            self.stopping = True

    def on_define(self, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Learn a kind of work; code that came once is remembered by its digest."""
        code = body if body is not None else bytes(blobs[0]) if blobs else None
        digest = head.get("code")
        if digest is not None:
            code = self.codes.setdefault(digest, code) if code is not None else self.codes.get(digest)
        self.works[number] = Work(number, head, code)

    def on_forget(self, number: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Forget a kind, and its code if nothing else is made of that."""
        work = self.works.pop(number, None)
        digest = work.head.get("code") if work is not None else None
        if digest is not None and all(other.head.get("code") != digest for other in self.works.values()):
            self.codes.pop(digest, None)

    def on_spawn(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Queue the making of the actor."""
        work = self.works.get(0) or Work(0, head, None)
        if body is None:
            body, blobs = _unfold(blobs)
        self.queue.append(Job(aid, work, 0, 1, body, blobs, setup=True))

    def on_cancel(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Drop a job that has not begun; note the wish for one that has."""
        for job in self.queue:
            if job.aid == aid:
                self.queue.remove(job)
                self.fail(aid, {"error": "Revoked", "message": "it had not begun"}, None)
                return
        self.cancelled.add(aid)
        if len(self.cancelled) > _WISHES:  # attempts are numbered upwards: the lowest ended long ago
            self.cancelled.discard(min(self.cancelled))

    def on_credit(self, aid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Let a stream send more."""
        if aid in self.credits:
            self.credits[aid] += head

    def on_stop(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Stop after what is being done."""
        self.stopping = True

    def on_ping(self, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
        """Answer a PING."""
        self.records.append([Verb.PONG, about, None, None, 0])

    def answer(self, aid: int, body: bytes, blobs: Sequence[Blob]) -> None:
        """Queue a result."""
        self._put(_DONE, aid, body, blobs)

    def chunk(self, aid: int, body: bytes, blobs: Sequence[Blob]) -> None:
        """Queue a part of a stream; takes one of its credits."""
        self.credits[aid] -= 1
        self._put(int(Verb.CHUNK), aid, body, blobs)

    def _put(self, verb: int, aid: int, body: bytes | None, blobs: Sequence[Blob]) -> None:
        if body is not None and len(body) >= INLINE:
            blobs = [body, *blobs]
            body = None
        if blobs:
            self.blobs.extend(blobs)
        self.records.append([verb, aid, None, body, len(blobs)])

    def fail(self, aid: int, head: dict[str, Any], body: bytes | None) -> None:
        """Queue how an attempt failed."""
        self.records.append([Verb.FAIL, aid, {key: _text(value) for key, value in head.items()}, body, 0])

    def timed(self, work: Work) -> None:
        """Tell the broker what a call costs where that changed by half or more since it was told last."""
        if not work.told or work.cost > 2 * work.told or 2 * work.cost < work.told:
            work.told = work.cost
            self.records.append([Verb.TIMED, work.number, work.cost, None, 0])

    def take(self) -> list[list[Blob]]:
        """Return the messages to send now."""
        records, blobs = self.records, self.blobs
        if not records:
            return []
        self.records, self.blobs = [], []
        return messages(records, blobs)


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
    int(Verb.DEFINE): Inbox.on_define,
    int(Verb.FORGET): Inbox.on_forget,
    int(Verb.SPAWN): Inbox.on_spawn,
    int(Verb.CANCEL): Inbox.on_cancel,
    int(Verb.REVOKE): Inbox.on_cancel,
    int(Verb.CREDIT): Inbox.on_credit,
    int(Verb.STOP): Inbox.on_stop,
    int(Verb.PING): Inbox.on_ping,
}
