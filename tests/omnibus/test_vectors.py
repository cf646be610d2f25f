"""The codec, the values and the client do what the vectors say."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from omnibus import payload
from omnibus.errors import ProtocolError, Unauthorized, by_name
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import Record, Verb, decode, encode
from tests.support.transcripts import (
    TRANSCRIPTS,
    VECTORS,
    Bindings,
    Happening,
    Transcript,
    mark,
    plain,
)
from tests.support.values import same, value_of

FRAMES = json.loads((VECTORS / "frames.json").read_text())
VALUES = json.loads((VECTORS / "values.json").read_text())


def named(vector: Any) -> str:
    return str(vector["name"])


# --- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", FRAMES["valid"], ids=named)
def test_a_valid_message_is_decoded_and_encoded(vector: Any) -> None:
    frames = plain(vector["frames"])
    records = [[verb, *plain(rest)] for verb, *rest in vector["records"]]
    assert decode(frames) == records
    if vector.get("canonical", True):
        assert encode(records, frames[2:]) == frames
    else:
        assert decode(encode(records, frames[2:])) == records


@pytest.mark.parametrize("vector", FRAMES["invalid"], ids=named)
def test_an_invalid_message_is_refused(vector: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(plain(vector["frames"]))


def test_each_verb_has_a_vector() -> None:
    shown = {record[0] for vector in FRAMES["valid"] for record in vector["records"]}
    assert {verb.name for verb in Verb if verb not in shown} == set()


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VALUES["valid"], ids=named)
def test_a_body_is_decoded_and_encoded(vector: Any) -> None:
    body, blobs, value = plain(vector["body"]), plain(vector.get("blobs", [])), value_of(vector["value"])
    assert same(payload.decode(body, blobs, code=False), value)
    if vector.get("canonical", True):
        sent, beside = payload.encode(value, code=False)
        assert sent == body
        assert [bytes(blob) for blob in beside] == blobs


@pytest.mark.parametrize("vector", VALUES["invalid"], ids=named)
def test_an_invalid_body_is_refused(vector: Any) -> None:
    expected = Unauthorized if vector["name"] == "a pickle" else ProtocolError
    with pytest.raises(expected):
        payload.decode(plain(vector["body"]), plain(vector.get("blobs", [])), code=False)


# --- the client ----------------------------------------------------------------------------------------------------


class Ending:
    """A future that notes how it ended, and fails the second time."""

    def __init__(self, lane: Lane | None) -> None:
        self.lane = lane
        self.size = 0
        self.ends: list[Any] = []

    def set_result(self, result: Any, /) -> None:
        self.ends.append(result)

    def set_exception(self, exception: BaseException | None, /) -> None:
        self.ends.append(exception)


class Sink:
    """What takes parts; it notes them."""

    def __init__(self) -> None:
        self.parts: list[tuple[Any, int, int]] = []

    def feed(self, value: Any, number: int, missed: int) -> None:
        self.parts.append((value, number, missed))

    def end(self, error: BaseException | None) -> None:
        self.parts.append((error, 0, 0))


ANSWERED = {"SUBMIT", "ASK", "SPAWN", "STOP", "STATUS", "FETCH", "PUBLISH", "SUBSCRIBE"}


class Client:
    """A :class:`ClientPeer` that plays one peer of a transcript."""

    def __init__(self, name: str) -> None:
        self.peer = ClientPeer({"omb": 1, "role": "client", "session": mark(name)}, code=False)
        self.endings: dict[int, Ending] = {}
        self.sinks: dict[int, Sink] = {}
        self.parts: dict[int, list[tuple[Any, int, int]]] = {}

    def greet(self) -> None:
        frames = self.peer.take()
        assert frames is not None
        [[verb, about, head, _, _]] = decode(frames)
        assert verb == Verb.HELLO and head["resume"] is True
        answer = {"omb": 1, "epoch": b"epoch", "limits": {"window_tasks": 5}, "resumed": False, "received": 0}
        self.peer.receive(encode([[Verb.WELCOME, about, answer, None, 0]]))
        assert self.peer.ready and self.peer.window_tasks == 5

    def send(self, frames: list[bytes]) -> None:
        """Request what the message asks for; check that the peer would send that very message."""
        at = 2
        for record in decode(frames):
            verb, seq, head, body, count = record
            if Verb(verb).name in ANSWERED and seq and seq not in self.peer.pending:
                self.endings[seq] = self.peer.pending[seq] = Ending(None)
                self.sinks[seq] = self.peer.sinks[seq] = Sink()
                self.parts[seq] = []
            blobs = frames[at : at + count]
            at += count
            if body is None and blobs:
                body, blobs = blobs[0], blobs[1:]
            self.peer.request([verb, seq, head, body, 0], blobs)
        taken = self.peer.take()
        assert taken is not None
        batch, *blobs = taken[1:]
        records = msgpack.unpackb(batch)
        if records[0][0] == Verb.ACK:  # this peer counts its messages; that of the transcript need not
            taken = encode(records[1:], blobs)
        assert taken == frames
        assert self.peer.take() is None

    def receive(self, record: Record, blobs: list[bytes]) -> None:
        """Take what the broker sends; check that it ends what it should, and as it should."""
        verb, seq, head, body, _ = record
        awaited = seq in self.peer.pending
        self.peer.receive(encode([record], blobs))
        value = value_in(body, blobs)
        if verb in (Verb.CHUNK, Verb.EVENT):
            number, missed = head if isinstance(head, list) else (head or 0, 0)
            self.parts[seq].append((value, number, missed))
            assert self.sinks[seq].parts == self.parts[seq]
        elif verb == Verb.RESULT:
            [end] = self.endings[seq].ends
            assert end == value or (value is UNREADABLE and isinstance(end, ProtocolError))
        elif verb in (Verb.FAILED, Verb.ERROR) and awaited:
            [error] = self.endings[seq].ends
            assert type(error) is by_name(head["error"])
            assert str(error).startswith(head["message"])
        elif verb == Verb.PING:
            assert self.peer.take() == encode([[Verb.PONG, seq, None, None, 0]])
        assert self.peer.failure is None


UNREADABLE = object()


def value_in(body: bytes | None, blobs: list[bytes]) -> Any:
    """Return the value of an answer, or ``UNREADABLE``: the broker passes on whatever it is."""
    if body is None and blobs:
        body, blobs = blobs[0], blobs[1:]
    try:
        return None if body is None else payload.decode(body, blobs, code=False)
    except ProtocolError:
        return UNREADABLE


def clients(transcript: Transcript) -> list[str]:
    """Return the peers of a transcript that join as clients, and keep their link."""
    steps = [step for turn in transcript.turns for step in turn.inputs if isinstance(step, Happening)]
    joined = [step.peer for step in steps if step.what == "joins" and step.detail["role"] == "client"]
    return [peer for peer in joined if not any(step.peer == peer and step.what in ("lost", "back") for step in steps)]


CASES = [(transcript, peer) for transcript in TRANSCRIPTS for peer in clients(transcript)]


@pytest.mark.parametrize(("transcript", "name"), CASES, ids=lambda case: str(case))
def test_a_client_understands_what_it_is_sent(transcript: Transcript, name: str) -> None:
    client = Client(name)
    names = Bindings()
    client.greet()
    for turn in transcript.turns:
        for step in turn.inputs:
            if isinstance(step, Happening):
                names.values["$" + step.peer] = mark(step.peer)
            elif step.peer == name and step.frames is None and "PONG" not in str(step.records):
                client.send(names.frames(step))
        for message in turn.outputs:
            if message.peer == name:
                for record, blobs in names.invent(message):
                    client.receive(record, blobs)
        client.peer.check_invariants()


def test_clients_are_played() -> None:
    assert len(CASES) > 20
