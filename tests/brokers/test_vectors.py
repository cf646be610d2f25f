"""The broker's core answers every transcript exactly as it is written, and says nothing that is not written."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.core import Broker
from omnibus.brokers.state import Settings
from omnibus.protocol import BATCH, Limits, Record, Verb, decode, encode, split_delimiter
from tests.support.transcripts import TRANSCRIPTS, Bindings, Happening, Message, Transcript, Turn, mark, show

EPOCH = bytes(range(8))
Answer = tuple[Record, list[bytes]]


class Replay:
    """One broker, and the links of the transcript's peers to it."""

    def __init__(self, transcript: Transcript) -> None:
        settings = dict(transcript.settings)
        names = Limits.__dataclass_fields__
        limits = Limits(**{name: settings.pop(name) for name in list(settings) if name in names})
        self.broker = Broker(EPOCH, 0.0, Settings(limits=limits, **({"probe": 1e6} | settings)), version="1.2.3")
        self.names = Bindings()
        self.now = 0.0
        self.links: dict[str, int] = {}

    def route(self, peer: str) -> bytes:
        return f"{peer}/{self.links.setdefault(peer, 0)}".encode()

    def turn(self, turn: Turn, where: str) -> None:
        if turn.at is not None:
            assert turn.at >= self.now, f"{where}: time runs backwards"
            self.now = turn.at
        joined = [step.peer for step in turn.inputs if isinstance(step, Happening) and step.what == "joins"]
        for step in turn.inputs:
            self.happen(step) if isinstance(step, Happening) else self.send(step)
        answers = self.collect()
        for peer in joined:
            record, _ = answers[peer].pop(0)
            assert record[0] == Verb.WELCOME, f"{where}: {peer} is not welcome but gets {show(record)}"
        self.compare(turn.outputs, answers, where)
        self.broker.check_invariants()

    def happen(self, step: Happening) -> None:
        peer = step.peer
        match step.what:
            case "joins":
                self.names.values["$" + peer] = mark(peer)
                head = {"omb": 1, "session": mark(peer), **self.names.fill(step.detail)}
                self.broker.receive(self.route(peer), encode([[Verb.HELLO, 0, head, None, 0]]), self.now)
            case "lost":
                self.broker.send_failed(self.route(peer), self.now)
            case "back":
                self.links[peer] += 1
            case "died":
                self.broker.peer_died(mark(peer), self.now, "its process ended")
            case other:
                raise AssertionError(f"nobody knows what {other!r} is")

    def send(self, message: Message) -> None:
        frames = self.names.frames(message)
        self.broker.receive(self.route(message.peer), [b"", *frames] if message.lockstep else frames, self.now)

    def collect(self) -> dict[str, list[Answer]]:
        """Let the broker work until it has nothing more to say; return what it said to each peer."""
        answers: dict[str, list[Answer]] = {peer: [] for peer in self.links}
        self.lockstep: dict[str, int] = {}
        while True:
            self.broker.advance(self.now)
            messages = self.broker.output()
            if not messages:
                return answers
            for route, frames in messages:
                peer, _, link = route.decode().partition("/")
                assert int(link) == self.links[peer], f"{peer} was written to over a link that it left"
                delimited, rest = split_delimiter(frames)
                if delimited:
                    self.lockstep[peer] = self.lockstep.get(peer, 0) + 1
                records = decode(rest)
                assert len(records) <= BATCH or delimited
                at = 2
                for record in records:
                    answers[peer].append((record, [bytes(blob) for blob in rest[at : at + record[4]]]))
                    at += record[4]

    def compare(self, expected: list[Message], answers: dict[str, list[Answer]], where: str) -> None:
        wanted: dict[str, list[tuple[Any, int]]] = {}
        for message in expected:
            wanted.setdefault(message.peer, []).extend((record, message.line) for record in message.records)
        for peer, records in wanted.items():
            for expected_record, line in records:
                assert answers.get(peer), f"{where}, line {line}: {peer} got no {expected_record[0]}"
                self.names.check(expected_record, *answers[peer].pop(0), f"{where}, line {line}: {peer}")
        left = {peer: [show(record) for record, _ in rest] for peer, rest in answers.items() if rest}
        assert not left, f"{where}: the transcript says nothing of {left}"
        assert self.lockstep == {m.peer: 1 for m in expected if m.lockstep}, f"{where}: delimiters are not as written"


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=repr)
def test_the_broker_answers_as_it_is_written(transcript: Transcript) -> None:
    replay = Replay(transcript)
    for turn in transcript.turns:
        replay.turn(turn, f"{transcript.name}.txt:{turn.line}")


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) > 20
