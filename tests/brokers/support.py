"""Driving a broker's core in tests: a recorder with a stepped clock, and peers that must claim all that they get.

Every message goes through bytes in both directions. After each step the core's invariants are checked, and at its
end the recorder fails on output that nobody claimed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

from omnibus.brokers.core import Broker, Event
from omnibus.brokers.peers import Client, Node, Worker
from omnibus.brokers.state import Settings
from omnibus.channel import Channel
from omnibus.protocol import Record, Verb, decode, encode, split_delimiter

__all__ = ["EPOCH", "Claimed", "Link", "Recorder", "define", "done", "exited", "fail", "hello", "submit"]

EPOCH = b"\0\0\0epoch"
CODE = bytes(32)


class Claimed:
    """One record that a peer got, with its blobs."""

    def __init__(self, record: Record, blobs: Sequence[bytes]) -> None:
        self.verb = Verb(record[0])
        self.id: int = record[1]
        self.head: Any = record[2]
        self.body: bytes | None = record[3]
        self.blobs = list(blobs)

    def __repr__(self) -> str:
        return f"{self.verb.name} {self.id} {self.head!r} {self.body!r} {self.blobs or ''}".strip()


class Recorder:
    """A broker, its clock, and the links to it."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.broker = Broker(EPOCH, self.now, Settings(**settings), version="test")
        self.mesh = self.broker.mesh
        self.links: dict[bytes, Link] = {}
        self.events: list[Event] = []
        self.forgiving = False
        self._routes = itertools.count(1)
        self._sessions = itertools.count(1)

    def link(self, *, lockstep: bool = False) -> Link:
        """Return a new link, whose peer has said nothing."""
        route = b"route-%d" % next(self._routes)
        link = self.links[route] = Link(self, route, lockstep=lockstep)
        return link

    def peer(self, role: str, name: str | None = None, *, lockstep: bool = False, **more: Any) -> Link:
        """Return a new link whose peer has said HELLO and been welcomed."""
        link = self.link(lockstep=lockstep)
        link.session = more.pop("session", None) or b"session-%08d" % next(self._sessions)
        if more.get("resume"):
            link.channel = Channel()
        if name is not None:
            more["name"] = name
        link.send(hello(role, link.session, **more))
        link.claim(Verb.WELCOME)
        return link

    def client(self, *kinds: dict[str, Any], **more: Any) -> Link:
        """Return a client that has declared ``kinds`` under the numbers 1, 2, …"""
        client = self.peer("client", **more)
        for number, head in enumerate(kinds, 1):
            client.send(define(number, **head))
        return client

    def node(self, name: str = "node", cpus: float = 4, **more: Any) -> Link:
        """Return a node that starts no workers by itself."""
        return self.peer("node", name, cpus=cpus, **more)

    def worker(self, node: Link | None = None, *, credits: int = 64, **more: Any) -> Link:
        """Return a worker of the default shape, of ``node`` or on its own."""
        if node is not None:
            more["node"] = node.session
        return self.peer("worker", credits=credits, **more)

    def started(self, node: Link, *, role: str = "worker", **more: Any) -> Link:
        """Claim a START from ``node`` and return the process that came of it."""
        start = node.claim(Verb.START, role=role)
        more = {"name": start.head["name"], "credits": start.head["credits"], **more}
        more |= {"command": start.id, "devices": start.head["devices"], "node": node.session}
        child = self.peer(role, **more)
        child.command = start.id
        return child

    def receive(self, route: bytes, frames: Sequence[bytes]) -> None:
        """Give the broker a message."""
        self.broker.receive(route, [bytes(frame) for frame in frames], self.now)
        self.check()

    def step(self, seconds: float = 0.0) -> None:
        """Let the clock go on, through every deadline on its way, and deliver what the broker says."""
        until = self.now + seconds
        while True:
            deadline = self.broker.next_deadline()
            self.now = min(until, max(self.now, deadline))
            self.broker.advance(self.now)
            self.deliver()
            if self.now >= until and not self.broker.pending() and self.broker.next_deadline() > self.now:
                return

    def deliver(self) -> None:
        """Take the broker's output and events."""
        self.check()
        for route, frames in self.broker.output():
            link = self.links.get(route)
            if link is None or link.broken:
                self.broker.send_failed(route, self.now)
            else:
                link.take([bytes(frame) for frame in frames])
        events = self.broker.events()
        self.events += events
        astray = [event.detail for event in events if "is malformed (" in event.detail]
        assert self.forgiving or not astray, f"a handler fell over instead of checking: {astray}"
        self.check()

    def check(self) -> None:
        """Check what must hold after every step."""
        self.broker.check_invariants()

    def abandon(self) -> None:
        """Take whatever comes from here on as claimed: the test ends in the midst of things."""
        self.step()
        for link in self.links.values():
            link.records.clear()

    def finish(self) -> None:
        """Fail on output that nobody claimed."""
        self.step()
        unclaimed = {link: list(link.records) for link in self.links.values() if link.records}
        assert not unclaimed, f"output that nobody claimed: {unclaimed}"

    # ------------------------------------------------------------------ looking inside

    def counts(self, *, messages: bool = False) -> dict[str, int]:
        """Return the books' entries that are not zero."""
        ledger = self.mesh.messages if messages else self.mesh.ledger
        return {name: count for name, count in ledger.as_dict().items() if count}

    def whats(self, what: str) -> list[str]:
        """Return the details of the events of one sort."""
        return [event.detail for event in self.events if event.what == what]


class Link:
    """One link and the peer at its other end, which says what a test has it say."""

    def __init__(self, recorder: Recorder, route: bytes, *, lockstep: bool) -> None:
        self.recorder = recorder
        self.route = route
        self.lockstep = lockstep
        self.session = b""
        self.command = 0
        self.broken = False
        self.channel: Channel | None = None
        self.messages = 0
        self.pings = True
        self.records: deque[Claimed] = deque()

    def __repr__(self) -> str:
        return self.route.decode()

    def send(self, *records: Record, blobs: Sequence[bytes] = (), step: bool = True) -> None:
        """Send one message, and let the broker do what it does about it; over a broken link it gets nowhere."""
        frames = encode(list(records), blobs)
        if self.channel is not None and not (records and records[0][0] == Verb.HELLO):
            self.channel.keep(frames)
        if self.broken:
            return
        self.recorder.receive(self.route, [b"", *frames] if self.lockstep else frames)
        if step:
            self.recorder.step()

    def take(self, frames: list[bytes]) -> None:
        """Get one message; a PING is answered at once."""
        delimited, rest = split_delimiter(frames)
        assert delimited == self.lockstep
        self.messages += 1
        at = 2
        pings: list[Record] = []
        records = decode(rest)
        for record in records:
            if record[0] == Verb.PING and self.pings:
                pings.append([Verb.PONG, record[1], None, None, 0])
            elif record[0] == Verb.ACK and self.channel is not None:
                self.channel.acknowledged(record[1])
            else:
                self.records.append(Claimed(record, rest[at : at + record[4]]))
            at += record[4]
        if self.channel is not None:
            self._count(self.channel, records)
        if pings:
            due = self.channel.acknowledgement() if self.channel is not None else None
            self.send(*([due] if due else []), *pings, step=False)

    def _count(self, channel: Channel, records: list[Record]) -> None:
        """Count a message; upon a WELCOME send again what the broker has not got."""
        if records and records[0][0] == Verb.WELCOME:
            if records[0][2]["resumed"]:
                for frames in channel.resume(records[0][2]["received"]):
                    self.recorder.receive(self.route, frames)
        elif not (records and records[0][0] == Verb.ERROR and records[0][2]["again"]):
            channel.received += 1

    def claim(self, verb: Verb | None = None, number: int | None = None, /, **head: Any) -> Claimed:
        """Take the next record, which must be of this verb and number, with this in its head."""
        assert self.records, f"{self}: {verb.name if verb else 'something'} was expected, and nothing came"
        record = self.records.popleft()
        assert verb is None or record.verb == verb, f"{self}: {verb.name} was expected, not {record}"
        assert number is None or record.id == number, f"{self}: number {number} was expected, not {record}"
        for key, value in head.items():
            assert record.head[key] == value, f"{self}: {key}={value!r} was expected, not {record}"
        return record

    def claim_all(self, *verbs: Verb) -> list[Claimed]:
        """Take all that has come; of these verbs alone, in this order, where some are given."""
        records = list(self.records)
        self.records.clear()
        assert not verbs or [record.verb for record in records] == list(verbs), f"{self}: got {records}"
        return records

    def runs(self) -> list[Claimed]:
        """Take all that has come, and return the RUNs; beside them only kinds may have come."""
        records = self.claim_all()
        others = {record.verb for record in records} - {Verb.RUN, Verb.DEFINE, Verb.FORGET}
        assert not others, f"{self}: got {records}"
        return [record for record in records if record.verb == Verb.RUN]

    def run(self) -> Claimed:
        """Take all that has come, which must be one RUN and kinds."""
        (run,) = self.runs()
        return run

    def nothing(self) -> None:
        """Fail where something came."""
        assert not self.records, f"{self}: {list(self.records)} was not expected"

    def break_link(self, *, noticed: bool = True) -> None:
        """Break the link: what is sent over it gets lost, and the broker learns of it."""
        self.broken = True
        if noticed:
            self.recorder.broker.send_failed(self.route, self.recorder.now)
            self.recorder.step()

    def relink(self, role: str, **more: Any) -> Link:
        """Return a new link on which the same session says HELLO anew, and how much it has got where it counts."""
        link = self.recorder.link(lockstep=self.lockstep)
        link.session, link.command, link.channel = self.session, self.command, self.channel
        if self.channel is not None:
            more = {"resume": True, "received": self.channel.received, **more}
        link.send(hello(role, self.session, **more))
        return link

    # ------------------------------------------------------------------ the broker's view

    def as_client(self) -> Client:
        """Return the broker's entry."""
        peer = self.recorder.mesh.sessions[self.session]
        assert isinstance(peer, Client)
        return peer

    def as_worker(self) -> Worker:
        """Return the broker's entry."""
        peer = self.recorder.mesh.sessions[self.session]
        assert isinstance(peer, Worker)
        return peer

    def as_node(self) -> Node:
        """Return the broker's entry."""
        peer = self.recorder.mesh.sessions[self.session]
        assert isinstance(peer, Node)
        return peer


def hello(role: str, session: bytes, **more: Any) -> Record:
    """Return a HELLO."""
    return [Verb.HELLO, 0, {"omb": 1, "role": role, "session": session, **more}, None, 0]


def define(number: int, **head: Any) -> Record:
    """Return a DEFINE: of a function, where ``head`` does not say of what."""
    code = head.pop("body", None)
    if not {"fn", "code", "actor"} & set(head):
        head["fn"] = "module:function"
    return [Verb.DEFINE, number, head, code, 0]


def submit(seq: int, kind: Any = 1, body: bytes | None = b"body", verb: Verb = Verb.SUBMIT) -> Record:
    """Return a SUBMIT, or another verb of that form."""
    return [verb, seq, kind, body, 0]


def done(aid: int, body: bytes | None = b"result") -> Record:
    """Return a DONE."""
    return [Verb.DONE, aid, None, body, 0]


def fail(aid: int, error: str = "RemoteError", **more: Any) -> Record:
    """Return a FAIL."""
    return [Verb.FAIL, aid, {"error": error, "message": "it raised", **more}, None, 0]


def exited(child: Link | bytes, command: int = 0, **more: Any) -> Record:
    """Return a CHILD that tells of a child's exit."""
    session = child if isinstance(child, bytes) else child.session
    number = command or (0 if isinstance(child, bytes) else child.command)
    head = {"event": "exited", "session": session, "reason": "killed by SIGKILL", "begun": 0, "last": 0, **more}
    return [Verb.CHILD, number, head, None, 0]
