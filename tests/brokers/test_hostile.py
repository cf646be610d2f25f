"""Whatever peers send, in whatever order: the broker answers, keeps its books, and does not raise."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from omnibus.brokers.core import Broker
from omnibus.brokers.state import Settings
from omnibus.protocol import Limits, Record, Verb, decode, encode, split_delimiter

ROLES = ("client", "worker", "actor", "node")
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 2**63, 2**64 - 1, 1.5, float("nan"), float("inf")),
    *("", "x", "counter", "n" * 300, b"", b"x" * 16, [], [1], [1, 2, 3], [[]], {}, {"a": 1}),
]
SENSE = {
    **{"omb": 1, "fn": "a:b", "actor": "counter", "method": "m", "topic": "t", "cls": "a:B", "name": "counter"},
    **{"event": "exited", "error": "RemoteError", "message": "m", "cause": "timeout"},
}
KEYS = [
    *SENSE,
    *("code", "priority", "retries", "timeout", "ttl", "cpus", "gpus", "memory", "labels", "stream", "tell"),
    *("since", "credit", "seq", "grace", "mailbox", "restart", "env", "anonymous", "session", "node", "within", "role"),
    *("begun", "last", "restart_in", "aborted", "oom", "reason", "command", "incarnation", "devices", "credits", "pid"),
    *("boot", "workers", "resume", "received", "detached"),
]


MESSAGE = {"actor": "counter", "method": "m", "stream": True}
USUAL: dict[str, list[Verb]] = {
    "client": [
        *(Verb.HELLO, Verb.DEFINE, Verb.SUBMIT, Verb.SUBMIT, Verb.ASK, Verb.CANCEL, Verb.CREDIT, Verb.SPAWN, Verb.STOP)
    ],
    "worker": [Verb.HELLO, Verb.DONE, Verb.DONE, Verb.FAIL, Verb.CHUNK, Verb.TIMED, Verb.CREDIT],
    "actor": [Verb.HELLO, Verb.DONE, Verb.DONE, Verb.FAIL, Verb.CHUNK],
    "node": [Verb.HELLO, Verb.CHILD, Verb.RECALLED, Verb.ERROR],
}


class Crowd:
    """Eight peers with a dice each; some of what they say makes sense."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.aids = [1]
        limits = Limits(window_tasks=5, kinds=5)
        self.broker = Broker(bytes(8), 0.0, Settings(grace=3, limits=limits))
        for peer in range(8):
            head = {"omb": 1, "role": ROLES[peer % 4], "session": bytes([peer]) * 16, "name": f"p{peer}", "credits": 4}
            head |= {"cpus": 4, "gpus": ["0"], "workers": 1} if peer % 4 == 3 else {}
            head |= {"node": bytes([3]) * 16} if peer == 5 else {}
            head |= {"resume": True} if peer % 2 else {}
            self.say(peer, [[Verb.HELLO, 0, head, None, 0]])

    def value(self, key: str) -> Any:
        dice = self.dice
        if dice.random() < 0.7:
            if key in SENSE:
                return SENSE[key]
            if key in ("session", "node", "within"):
                return bytes([dice.randrange(10)]) * 16
            if key == "role":
                return dice.choice(ROLES)
        return dice.choice(JUNK)

    def record(self, peer: int) -> Record:
        """Return a record: half of them such as this peer might send, the others any."""
        dice = self.dice
        sensible = dice.random() < 0.5
        verb = dice.choice(USUAL[ROLES[peer % 4]] if sensible else [*Verb, 999])
        head: Any = {key: self.value(key) for key in dice.sample(KEYS, dice.randrange(8))}
        if sensible:
            head = self.usual(peer, verb, head)
        elif dice.random() < 0.2:
            head = dice.choice(JUNK)
        about = dice.choice(self.aids) if dice.random() < 0.5 else dice.randrange(20)
        return [verb, about, head, dice.choice([None, b"", b"\x90"]), dice.choice([0, 0, 0, 1, 2])]

    def usual(self, peer: int, verb: int, head: dict[str, Any]) -> Any:
        dice = self.dice
        match verb:
            case Verb.HELLO:
                return {"omb": 1, "session": bytes([peer]) * 16, "role": ROLES[peer % 4], "name": "counter"}
            case Verb.DEFINE:
                return dice.choice([{"fn": "a:b"}, {"fn": "a:b", "ttl": 1, "retries": 1}, MESSAGE, {"fn": 5}])
            case Verb.SUBMIT | Verb.ASK | Verb.TELL:
                return dice.choice([dice.randrange(20), {"fn": "a:b"}, {"fn": "a:b", "detached": True}, MESSAGE])
            case Verb.CREDIT | Verb.TIMED:
                return dice.choice([1, 100, 10_000_000])
            case Verb.FAIL:
                return {"error": dice.choice(["Revoked", "Cancelled", "RemoteError"])}
            case Verb.CHILD:
                return head | {"event": "exited", "session": bytes([dice.randrange(10)]) * 16, "name": "counter"}
        return head

    def say(self, peer: int, records: list[Record]) -> None:
        frames = encode(records, [b"x"] * sum(record[4] for record in records))
        self.broker.receive(b"%d" % peer, [b"", *frames] if self.dice.random() < 0.1 else frames, self.now)
        self.broker.advance(self.now)
        for _, answer in self.broker.output():
            for verb, about, *_ in decode(split_delimiter(answer)[1]):
                if verb in (Verb.RUN, Verb.SPAWN, Verb.WATCH):
                    self.aids = [*self.aids[-20:], about]
        self.broker.check_invariants()

    def step(self) -> None:
        dice = self.dice
        self.now += dice.random() * dice.choice([0, 0, 0.1, 2])
        peer = dice.randrange(8)
        if dice.random() < 0.05:
            self.broker.send_failed(b"%d" % peer, self.now)
        self.say(peer, [self.record(peer) for _ in range(dice.randrange(4))])


@pytest.mark.parametrize("seed", range(60))
def test_the_broker_keeps_its_books_among_hostile_peers(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(200):
        crowd.step()
    assert any(event.what == "refused" for event in crowd.broker.events())
    mesh = crowd.broker.mesh
    for ledger in (mesh.ledger, mesh.messages):
        SEEN.update(ledger.as_dict())


SEEN: Counter[str] = Counter()


def test_some_of_what_they_said_made_sense() -> None:
    if SEEN:
        quiet = {"dead", "expired"}
        assert all(SEEN[count] > 0 for count in SEEN.keys() - quiet), SEEN
        assert SEEN["submitted"] > 50
