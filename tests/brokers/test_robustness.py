"""Hostile peers: whatever anybody sends, the core does not raise, its books add up, and the others are served."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.protocol import Limits, Record, Verb, encode
from tests.brokers.support import Link, Recorder, define, done, hello, submit

VERBS = [*map(int, Verb), 0, 8, 99, 1 << 40]
ROLES_OF = ("client", "worker", "actor", "node", "actor", None, "client")
KEYS = [
    "omb", "role", "session", "name", "node", "command", "credits", "cpus", "gpus", "memory", "labels", "workers",
    "devices", "fn", "code", "actor", "method", "priority", "retries", "timeout", "ttl", "detached", "stream", "tell",
    "cls", "env", "restart", "mailbox", "concurrency", "anonymous", "grace", "event", "begun", "last", "oom",
    "restart_in", "cause", "aborted", "reason", "error", "state", "message", "topic", "since", "credit", "seq",
    "resume", "received", "running", "within", "shape", "again",
]  # fmt: skip
WORDS = ["a", "b", "client", "worker", "exited", "started", "timeout", "cancel", "Revoked", "Cancelled", "", "x" * 300]


class Scene:
    """A mesh with all sorts of peers in all sorts of states, and two bystanders who must be served."""

    def __init__(self) -> None:
        self.recorder = Recorder(grace=5.0, limits=Limits(kinds=64), sessions=200, pools=20)
        recorder = self.recorder
        self.fresh = 0
        self.asker = recorder.client({"actor": "bystander", "method": "m"})
        self.answerer = recorder.peer("actor", "bystander", credits=8)
        self.asked = 0
        node = recorder.node("n1", cpus=2, gpus=["g0"], memory=100, workers=1)
        worker = recorder.worker(node, resume=True)
        kept = {"detached": True, "timeout": 2}
        client = recorder.client({}, {"gpus": 1, "ttl": 1}, {"actor": "a", "method": "m"}, kept)
        actor = recorder.peer("actor", "a", credits=2)
        client.send([Verb.SPAWN, 50, {"cls": "a:B", "name": "b"}, None, 0])
        client.send(*[submit(seq, seq % 4 + 1) for seq in range(1, 9)])
        child = recorder.started(node, role="actor")
        self.peers = [client, worker, actor, node, child, recorder.client(lockstep=True), recorder.link()]
        for link in self.peers:
            link.channel = None  # they say what they like, and count nothing

    def served(self) -> None:
        """Fail where the bystanders do not get on."""
        self.asked += 1
        self.asker.send(submit(self.asked, verb=Verb.ASK))
        while self.answerer.records:
            record = self.answerer.claim()
            if record.verb == Verb.RUN:
                self.answerer.send(done(record.id))
        self.asker.claim(Verb.RESULT, self.asked)

    def revive(self, at: int) -> None:
        """Have a peer whose session has ended begin another, in its role."""
        link, role = self.peers[at], ROLES_OF[at]
        if role and link.session not in self.recorder.mesh.sessions:
            self.fresh += 1
            session = b"session-%08d" % (1000 + self.fresh)
            node = self.peers[3].session
            more = {"node": node} if role == "worker" or at == 4 else {}
            name = f"{role}-{self.fresh}" if at != 2 else "a"
            extra: dict[str, Any] = {"cpus": 2, "gpus": ["g0"], "memory": 100} if role == "node" else {"credits": 4}
            self.recorder.receive(link.route, encode([hello(role, session, name=name, **more, **extra)]))
            link.session = session

    def close(self) -> None:
        self.recorder.abandon()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def sessions(scene: Scene) -> list[bytes]:
    return [link.session for link in scene.peers if link.session] + [b"nobody--", b"short"]


def deliver(scene: Scene, at: int, records: list[Record], blobs: list[bytes]) -> None:
    """Have a peer send a message, right or wrong; it takes whatever it is answered."""
    link = scene.peers[at % len(scene.peers)]
    frames = encode(records, blobs)
    scene.recorder.receive(link.route, [b"", *frames] if link.lockstep else frames)
    scene.recorder.step()
    for other in scene.peers:
        other.records.clear()


# ---------------------------------------------------------------------- by Hypothesis, which shrinks what fails

ODD = [1 << 31, 1 << 63, (1 << 64) - 1, 0.5, float("nan"), -1.0, b"session-00000003", b"session-00000005"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([*ODD, *WORDS]) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=8,
)  # fmt: skip
heads = st.dictionaries(st.sampled_from(KEYS), values, max_size=6) | values
numbers = st.integers(0, 12) | st.sampled_from([50, 1 << 32, (1 << 64) - 1])
a_record = st.tuples(st.sampled_from(VERBS), numbers, heads, st.none() | st.binary(max_size=8), st.integers(0, 2))
messages = st.lists(st.tuples(st.integers(0, 6), st.lists(a_record, min_size=1, max_size=4)), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(messages)
def test_records_of_a_valid_form_and_any_content(sent: list[tuple[int, list[tuple[Any, ...]]]]) -> None:
    scene = Scene()
    for at, records in sent:
        deliver(scene, at, [list(record) for record in records], [b"blob"] * sum(record[4] for record in records))
    scene.served()
    scene.recorder.step(30)
    scene.served()
    scene.close()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4), st.booleans())
def test_frames_of_any_form(frames: list[bytes], signed: bool) -> None:
    recorder = Recorder()
    link = recorder.client()
    for route in (link.route, b"stranger"):
        recorder.broker.receive(route, [b"OMB1", *frames] if signed else frames, recorder.now)
        recorder.broker.advance(recorder.now)
        recorder.broker.output()
        recorder.check()


# ---------------------------------------------------------------------- in bulk

TEMPLATES: list[tuple[int, int, Any]] = [
    (Verb.DEFINE, 1, {"fn": "a:b", "priority": 3, "retries": 1, "ttl": 1, "timeout": 2, "gpus": 0.5, "memory": 10}),
    (Verb.DEFINE, 2, {"actor": "a", "method": "m", "tell": True, "stream": False}),
    (Verb.DEFINE, 3, {"code": b"digest", "detached": True, "labels": {"a": "b"}}),
    (Verb.FORGET, 1, None),
    (Verb.SUBMIT, 1, 1),
    (Verb.SUBMIT, 2, {"fn": "a:b", "cpus": 2}),
    (Verb.ASK, 3, 2),
    (Verb.TELL, 4, {"actor": "b", "method": "m"}),
    (Verb.CANCEL, 1, None),
    (Verb.CREDIT, 1, 5),
    (Verb.SPAWN, 5, {"cls": "a:B", "name": "c", "gpus": 1, "env": {"A": "1"}, "restart": {"max": 1}, "mailbox": 2}),
    (Verb.STOP, 6, {"actor": "b", "grace": 1}),
    (Verb.FETCH, 7, {"session": b"session-00000005", "seq": 4}),
    (Verb.STATUS, 8, None),
    (Verb.PUBLISH, 9, {"topic": "t"}),
    (Verb.SUBSCRIBE, 10, {"topic": "t", "since": 0, "credit": 5}),
    (Verb.UNSUBSCRIBE, 10, None),
    (Verb.LEND, 0, 1),
    (Verb.DONE, 1, None),
    (Verb.FAIL, 1, {"error": "Revoked", "message": "m"}),
    (Verb.CHUNK, 1, None),
    (Verb.TIMED, 1, 1000),
    (Verb.CREDIT, 0, 5),
    (Verb.CHILD, 0, {"event": "exited", "session": b"session-00000004", "name": "b", "role": "actor", "begun": 1,
                     "last": 2, "oom": False, "restart_in": 0.1, "cause": "cancel", "aborted": 1, "reason": "r"}),
    (Verb.CHILD, 1, {"event": "exited", "session": b"session-00000007", "restart_in": None}),
    (Verb.RECALLED, 1, 1),
    (Verb.ERROR, 1, {"error": "ProtocolError", "message": "m", "again": False}),
    (Verb.HELLO, 0, {"omb": 1, "role": "worker", "session": b"session-00000004", "resume": True, "received": 1}),
    (Verb.HELLO, 0, {"omb": 1, "role": "client", "session": b"session-00000005"}),
    (Verb.HELLO, 0, {"omb": 1, "role": "node", "session": b"session-00000009", "cpus": 1, "gpus": ["g0"]}),
    (Verb.HELLO, 0, {"omb": 1, "role": "actor", "session": b"session-00000008", "name": "b"}),
    (Verb.BYE, 0, None),
    (Verb.PING, 1, None),
    (Verb.ACK, 1, None),
]  # fmt: skip


def mangled(dice: random.Random, value: Any, scene: Scene) -> Any:
    """Return the value with something else in it, most often not."""
    if isinstance(value, dict):
        changed = {key: mangled(dice, item, scene) for key, item in value.items() if dice.random() < 0.95}
        if dice.random() < 0.1:
            changed[dice.choice(KEYS)] = mangled(dice, dice.choice(WORDS), scene)
        return changed
    if dice.random() < 0.9:
        return value
    if isinstance(value, bytes):
        return dice.choice(sessions(scene))
    return dice.choice([None, True, -1, 0, 3, 1 << 63, 0.5, float("inf"), b"bytes", "text", [1], {"a": 1}, *WORDS])


def known_numbers(scene: Scene) -> list[int]:
    """Return ids that mean something now: of attempts, of commands."""
    mesh = scene.recorder.mesh
    found = list(range(12))
    for session in sessions(scene):
        peer = mesh.sessions.get(session)
        found += [*getattr(peer, "attempts", ()), *getattr(peer, "holdings", ())]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_messages(scene: Scene, seed: int) -> None:
    dice = random.Random(seed)
    for count in range(2_500):
        records: list[Record] = []
        for _ in range(dice.randint(1, 3)):
            verb, about, head = dice.choice(TEMPLATES)
            about = dice.choice(known_numbers(scene)) if dice.random() < 0.5 else about
            head = mangled(dice, head, scene)
            records.append([int(verb), about, head, dice.choice([None, b"body"]), dice.choice([0, 0, 0, 1])])
        deliver(scene, dice.randrange(7), records, [b"blob"] * sum(record[4] for record in records))
        if dice.random() < 0.05:
            scene.recorder.broker.send_failed(dice.choice(scene.peers).route, scene.recorder.now)
        if dice.random() < 0.05:
            scene.recorder.broker.peer_died(dice.choice(sessions(scene)), scene.recorder.now, "it died")
        if dice.random() < 0.2:
            scene.revive(dice.randrange(7))
        if dice.random() < 0.1:
            scene.recorder.step(dice.choice([0.01, 0.1, 1.0, 6.0]))
        if count % 100 == 0:
            scene.served()
    scene.recorder.step(100)
    scene.served()


# ---------------------------------------------------------------------- memory


def flood(link: Link, records: Iterator[Record]) -> None:
    """Send many records in large messages."""
    while batch := list(itertools.islice(records, 1_000)):
        link.send(*batch, step=False)
    link.recorder.step()
    link.records.clear()


def test_floods_leave_a_bounded_trace(broker: Recorder) -> None:
    client = broker.client()
    flood(client, (define(number, gpus=number % 5, priority=number % 3) for number in range(9_000)))
    flood(client, (submit(number, {"fn": "a:b", "name": str(number), "ttl": 1000}) for number in range(600)))
    flood(client, ([Verb.CANCEL, number, None, None, 0] for number in range(600)))
    flood(client, ([Verb.PUBLISH, 0, {"topic": f"topic {number}"}, b"x", 0] for number in range(11_000)))
    flood(client, ([Verb.SUBSCRIBE, number, {"topic": "t"}, None, 0] for number in range(2_000)))
    entry, mesh = client.as_client(), broker.mesh
    assert len(entry.kinds) <= 4096
    assert len(entry.adhoc) <= 256
    assert len(entry.refused) <= 4096
    assert len(mesh.topics) <= 10_000
    assert len(mesh.topics.get("t").followers) <= 1_024
    assert sum(len(lines) for pool in mesh.pools.values() for lines in pool.lines.values()) <= 15
    broker.now += 1001
    broker.step()
    assert mesh.timers == []


def test_sessions_that_come_and_go_leave_nothing(broker: Recorder) -> None:
    for number in range(300):
        link = broker.link()
        link.send(hello("client", b"session-%08d" % number), define(1), submit(1))
        link.claim(Verb.WELCOME)
        if number % 2:
            link.send([Verb.BYE, 0, None, None, 0])
        else:
            link.break_link()
    broker.step(60)
    mesh = broker.mesh
    assert (mesh.sessions, mesh.routes, mesh.ghosts, mesh.default.lines, mesh.timers) == ({}, {}, set(), {}, [])
    assert broker.counts() == {"submitted": 300, "cancelled": 300, "dropped": 300}


def test_a_large_message_is_answered_in_few_words(broker: Recorder) -> None:
    client = broker.client()
    client.send([Verb.DEFINE, 1, {"fn": "x" * 1_000_000}, None, 0], [Verb.SUBMIT, 2, ["x" * 1000] * 1000, None, 0])
    client.send([Verb.TIMED, 3, b"x" * 1_000_000, None, 0], [Verb.STOP, 4, {"actor": ["x"] * 10_000}, None, 0])
    for record in client.claim_all():
        assert len(msgpack.packb(record.head)) < 1_000
