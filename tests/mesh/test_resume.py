"""Client and broker cores over a seeded network whose links break: nothing is lost, nothing ends twice."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgpack
import pytest

from omnibus.brokers.core import Broker
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import VERSION, Verb, decode, encode

WORKER = b"worker"


class Ending:
    """Counts how often a request ended, and in what."""

    def __init__(self) -> None:
        self.lane: Lane | None = None
        self.size = 0
        self.ends: list[Any] = []

    def set_result(self, result: Any, /) -> None:
        self.ends.append(result)

    def set_exception(self, exception: BaseException | None, /) -> None:
        self.ends.append(exception)


class Network:
    """A client, a broker and a worker that echoes; the client's link may break, and what was on it is gone."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.broker = Broker(b"12345678", self.now)
        self.client = ClientPeer({"omb": VERSION, "role": "client", "session": b"c" * 16}, code=False)
        self.link = 0
        self.to_broker: deque[tuple[bytes, list[Any]]] = deque()
        self.to_client: deque[list[Any]] = deque()
        self.to_worker: deque[list[Any]] = deque()
        self.endings: dict[int, Ending] = {}
        hello = {"omb": VERSION, "role": "worker", "session": b"w" * 16, "credits": 100}
        self.broker.receive(WORKER, encode([[Verb.HELLO, 0, hello, None, 0]]), self.now)
        self.client.out.append([Verb.DEFINE, 1, {"fn": "tests:echo"}, None, 0])

    @property
    def route(self) -> bytes:
        return b"link-%d" % self.link

    def submit(self) -> None:
        seq = self.client.next_seq()
        self.client.pending[seq] = self.endings[seq] = Ending()
        self.client.out.append([Verb.SUBMIT, seq, 1, msgpack.packb(seq), 0])

    def client_sends(self) -> None:
        frames = self.client.take()
        if frames is not None:
            self.to_broker.append((self.route, frames))

    def client_takes(self) -> None:
        if self.to_client:
            self.client.receive(self.to_client.popleft())

    def broker_takes(self) -> None:
        if self.to_broker:
            self.broker.receive(*self.to_broker.popleft(), self.now)

    def broker_turns(self) -> None:
        self.broker.advance(self.now)
        for route, frames in self.broker.output():
            if route == WORKER:
                self.to_worker.append(frames)
            elif route == self.route:
                self.to_client.append(frames)
            else:
                self.broker.send_failed(route, self.now)
        self.broker.check_invariants()

    def worker_works(self) -> None:
        if self.to_worker:
            for verb, aid, _, body, _ in decode(self.to_worker.popleft()):
                if verb == Verb.RUN:
                    self.broker.receive(WORKER, encode([[Verb.DONE, aid, None, body, 0]]), self.now)

    def link_breaks(self) -> None:
        """Lose some or all of what was on the way; the client's monitor sees the new link."""
        arrived = self.dice.randrange(len(self.to_broker) + 1)
        for _ in range(arrived):
            self.broker_takes()
        self.to_broker.clear()
        self.to_client.clear()
        self.link += 1
        if self.dice.random() < 0.3:
            self.client_sends()
        self.client.greet()

    def step(self) -> None:
        self.now += 0.01
        ours = [self.submit, self.client_sends, self.client_takes]
        acts = [*ours, self.broker_takes, self.broker_turns, self.worker_works]
        if self.dice.random() < 0.02:
            self.link_breaks()
        else:
            self.dice.choice(acts)()

    def settle(self) -> None:
        """Let everything arrive."""
        for _ in range(20 * len(self.endings) + 100):
            self.now += 0.001
            for act in (self.client_sends, self.broker_takes, self.broker_turns, self.worker_works, self.client_takes):
                act()
            if all(ending.ends for ending in self.endings.values()):
                return


@pytest.mark.parametrize("seed", range(150))
def test_every_task_ends_once_whatever_breaks(seed: int) -> None:
    network = Network(seed)
    for _ in range(800):
        network.step()
    network.settle()
    wrong = {seq: ending.ends for seq, ending in network.endings.items() if ending.ends != [seq]}
    assert not wrong and network.client.failure is None, f"seed {seed}, {network.link} breaks: {wrong}"
    ledger = network.broker.mesh.ledger
    assert ledger.done == ledger.submitted == len(network.endings)
