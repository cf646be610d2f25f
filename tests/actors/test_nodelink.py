"""A node's messages over a link that breaks: each arrives once and in order, and little is kept."""

from __future__ import annotations

import random

import pytest

from omnibus.actors.nodelink import NodeLink
from omnibus.channel import Channel
from omnibus.errors import ProtocolError
from omnibus.protocol import BATCH, Blob, Record, Verb, decode, encode

HELLO: Record = [int(Verb.HELLO), 0, {"role": "node"}, None, 0]


def say(number: int) -> Record:
    return [int(Verb.PONG), number, None, None, 0]


class Broker:
    """The other end of one session; ``link`` False loses what is sent either way."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.heard: list[int] = []

    def take(self, frames: list[Blob]) -> list[list[Blob]]:
        """Take one message of the node's; return what is sent back."""
        records = decode(frames)
        if records[0][0] == Verb.HELLO:
            known, head = self.channel is not None, records[0][2]
            self.channel = self.channel or Channel()
            again = self.channel.resume(head["received"]) if known else []
            welcome = {"resumed": known, "received": self.channel.received}
            return [encode([[int(Verb.WELCOME), 0, welcome, None, 0]]), *again]
        assert self.channel is not None, "nothing comes before HELLO"
        self.channel.received += 1
        answer: list[Record] = []
        for verb, about, _, _, _ in records:
            if verb == Verb.ACK:
                self.channel.acknowledged(about)
            elif verb == Verb.PONG:
                self.heard.append(about)
            elif verb == Verb.PING:
                answer.append([int(Verb.PONG), 0, None, None, 0])
        return self.send(answer) if answer else []

    def send(self, records: list[Record]) -> list[list[Blob]]:
        assert self.channel is not None
        due = self.channel.acknowledgement()
        frames = encode([due, *records] if due is not None else records)
        self.channel.keep(frames)
        return [frames]


def exchange(link: NodeLink, broker: Broker, frames: list[list[Blob]]) -> list[Record]:
    """Carry messages over until both are silent; return what the node got."""
    got: list[Record] = []
    while frames:
        back = [answer for message in frames for answer in broker.take(message)]
        for message in back:
            got += link.receive(message)
        frames = link.pack([])
    return got


def test_over_a_safe_link_records_pass_as_they_are() -> None:
    link = NodeLink(resume=False)
    assert link.pack([]) == []
    assert [decode(frames) for frames in link.pack([HELLO, say(1)])] == [[HELLO, say(1)]]
    welcome = [int(Verb.WELCOME), 0, {}, None, 0]
    assert link.receive(encode([welcome, say(2)])) == [welcome, say(2)]
    assert len(link.pack([say(1)] * (BATCH + 1))) == 2
    assert not link.full
    with pytest.raises(ProtocolError):
        link.receive([b"no"])


def test_only_hello_goes_out_before_its_welcome() -> None:
    link, broker = NodeLink(resume=True), Broker()
    first = link.pack([HELLO, say(1)])
    assert [record[0] for frames in first for record in decode(frames)] == [Verb.HELLO]
    assert decode(first[0])[0][2] == {"role": "node", "resume": True, "received": 0}
    assert link.pack([say(2)]) == []
    exchange(link, broker, first)
    assert broker.heard == [1, 2]


def test_a_broker_that_does_not_count_gets_what_it_understands() -> None:
    link = NodeLink(resume=True)
    link.pack([HELLO])
    link.receive(encode([[int(Verb.WELCOME), 0, {"epoch": b"e"}, None, 0]]))
    assert [decode(frames) for frames in link.pack([say(1)])] == [[say(1)]]


def test_a_broker_that_forgot_the_session_gets_nothing_of_the_old_one() -> None:
    link, broker = NodeLink(resume=True), Broker()
    exchange(link, broker, link.pack([HELLO]))
    exchange(link, broker, link.pack([say(1)]))
    link.pack([say(2)])  # lost with the broker
    other = Broker()
    exchange(link, other, link.pack([say(3), HELLO]))
    exchange(link, other, link.pack([say(4)]))
    assert other.heard == [4]


def test_a_node_that_has_nothing_to_say_acknowledges_too() -> None:
    link, broker = NodeLink(resume=True), Broker()
    exchange(link, broker, link.pack([HELLO]))
    for number in range(200):
        for frames in broker.send([say(number)]):
            link.receive(frames)
        exchange(link, broker, link.pack([]))
    assert broker.channel is not None
    assert broker.channel.unacknowledged < 40


def test_a_broker_that_has_nothing_to_say_is_asked_to_acknowledge() -> None:
    link, broker = NodeLink(resume=True), Broker()
    exchange(link, broker, link.pack([HELLO]))
    for number in range(1000):
        exchange(link, broker, link.pack([say(number)]))
        assert not link.full
    assert broker.heard == list(range(1000))
    for number in range(200):
        link.pack([say(number)])
    assert link.full, "nobody answers any more"


class Wire:
    """What carries messages, and breaks by chance before any of them: then all is lost until the next HELLO."""

    def __init__(self, seed: int) -> None:
        self.link, self.broker = NodeLink(resume=True), Broker()
        self.got: list[int] = []
        self._up = False
        self._chance = random.Random(seed)

    def holds(self) -> bool:
        self._up = self._up and self._chance.random() > 0.05
        return self._up

    def to_node(self, messages: list[list[Blob]]) -> None:
        for frames in messages:
            if self.holds():
                self.got += [record[1] for record in self.link.receive(frames) if record[0] == Verb.RECALL]

    def node_says(self, records: list[Record]) -> None:
        frames = self.link.pack(records)
        while frames:
            for message in frames:
                if self.holds():
                    self.to_node(self.broker.take(message))
            frames = self.link.pack([])

    def mend(self) -> None:
        if not self._up:
            self._up = True
            self.node_says([HELLO])


@pytest.mark.parametrize("seed", range(20))
def test_breaks_at_any_moment_lose_and_repeat_nothing(seed: int) -> None:
    wire = Wire(seed)
    chance = random.Random(-seed)
    said = sent = 0
    for _ in range(300):
        if chance.random() < 0.8:
            wire.mend()
        if wire.broker.channel is not None and chance.random() < 0.5:
            wire.to_node(wire.broker.send([[int(Verb.RECALL), sent, None, None, 0]]))
            sent += 1
        wire.node_says([say(said)])
        said += 1
    while len(wire.broker.heard) < said or len(wire.got) < sent:
        wire.mend()
    assert wire.broker.heard == list(range(said))
    assert wire.got == list(range(sent))
