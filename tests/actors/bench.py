"""A runner on the bench: its inbox is fed by hand, its answers are read back, and the test is the supervisor."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from omnibus.actors.inbox import Inbox
from omnibus.actors.runner import Runner
from omnibus.payload import decode, encode_call
from omnibus.protocol import Record, Verb, encode
from omnibus.protocol import decode as decode_message
from omnibus.sharedmem import StatusPage

__all__ = ["SESSION", "Bench", "Feed", "error_of", "value_of"]

SESSION = b"c" * 16
JOBS = "tests.actors.jobs"


class Feed:
    """An :class:`Inbox` and the broker that talks to it."""

    def __init__(self, **hello: Any) -> None:
        self.inbox = Inbox({"omb": 1, "role": "worker", "session": b"w" * 16, **hello})
        self.sent: list[Record] = []
        self.told: list[tuple[Record, list[Any]]] = []
        self._aids = itertools.count(100)
        self._kinds = itertools.count(1)
        [[_, number, _, _, _]] = decode_message(self.inbox.take()[0])
        self.tell([Verb.WELCOME, number, {"omb": 1, "epoch": b"e"}, None, 0])

    def tell(self, record: Record, blobs: Any = ()) -> None:
        """Send one record."""
        self.inbox.receive(encode([[*record[:4], len(blobs)]], blobs))

    def define(self, job: str = "", /, **head: Any) -> int:
        """Declare a kind: a function of ``tests.actors.jobs`` by name, or what ``head`` says."""
        number = next(self._kinds)
        code = head.pop("pickle", None)
        if job:
            head["fn"] = f"{JOBS}:{job}"
        self.tell([Verb.DEFINE, number, {**head, "session": SESSION}, code, 0])
        return number

    def run(self, kind: int, *args: Any, attempt: int = 1, **kwargs: Any) -> int:
        """Hand out an attempt; return its number."""
        aid = next(self._aids)
        body, blobs = encode_call(args, kwargs, code=True)
        self.tell([Verb.RUN, aid, [kind, aid * 10, attempt], body, 0], blobs)
        return aid

    def spawn(self, cls: str, *args: Any, name: str = "it", **more: Any) -> int:
        """Have an actor made; return the attempt's number."""
        head = {"cls": f"{JOBS}:{cls}", "name": name}
        head |= {key: more.pop(key) for key in ("concurrency",) if key in more}
        aid = next(self._aids)
        self.tell([Verb.DEFINE, 0, head, None, 0])
        body, blobs = encode_call(args, more, code=True)
        self.tell([Verb.SPAWN, aid, head, body, 0], blobs)
        return aid

    def collect(self) -> list[Record]:
        """Return what was said since the last call, TIMED left out; blobs are kept beside in ``told``."""
        said = []
        for frames in self.inbox.take():
            at = 2
            for record in decode_message(frames):
                blobs = frames[at : at + record[4]]
                at += record[4]
                if record[0] != Verb.TIMED:
                    said.append(record)
                    self.told.append((record, blobs))
        self.sent += said
        return said


class Bench(Feed):
    """A :class:`Runner` with a status page; ``supervisor`` is the page's other side.

    ``on_wait`` is called instead of waiting for the broker.
    """

    def __init__(self, *, code: bool = True, page: bool = True) -> None:
        super().__init__()
        self.supervisor = StatusPage.create()
        self.page = StatusPage.attach(os.dup(self.supervisor.fd)) if page else None
        self.on_wait: Callable[[], None] = lambda: None
        self.on_receive: Callable[[], None] = lambda: None
        self.flushed = 0
        self.runner = Runner(
            self.inbox,
            self.page,
            code=code,
            flush=self._flush,
            receive=lambda: self.on_receive(),
            wait=lambda: self.on_wait(),
        )

    def _flush(self) -> None:
        self.flushed += 1
        self.collect()

    def work(self) -> list[Record]:
        """Run all that is queued; return all that was said."""
        before = len(self.sent)
        while self.inbox.queue:
            self.runner.run_queued()
        self.collect()
        return self.sent[before:]

    def do(self, kind: int, *args: Any, **kwargs: Any) -> Record:
        """Run one attempt; return its one answer."""
        aid = self.run(kind, *args, **kwargs)
        answers = [record for record in self.work() if record[0] in (Verb.DONE, Verb.FAIL)]
        assert [record[1] for record in answers] == [aid], answers
        return answers[0]

    def close(self) -> None:
        """Let go of the page."""
        self.runner.tear_down()
        if self.page is not None:
            self.page.close()
        self.supervisor.close()


def value_of(record: Record) -> Any:
    """Return the value of an answer that has one."""
    assert record[0] in (Verb.DONE, Verb.CHUNK), record
    return decode(record[3], (), code=False)


def error_of(record: Record) -> dict[str, Any]:
    """Return the head of an answer that is an error."""
    assert record[0] == Verb.FAIL, record
    head: dict[str, Any] = record[2]
    return head
