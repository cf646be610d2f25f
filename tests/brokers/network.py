"""A mesh around a broker's core, driven by dice: clients, nodes and workers over links that delay, break and come back.

Nothing here is real but the core and :mod:`omnibus.channel`. A worker is a process with a status page: it begins its
attempts in order, and dies at any moment; its node sees that, and says how far it had got. What was under way over a
broken link is lost but for a part of it, and each end sends again what the other has not got.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from omnibus.brokers.core import Broker
from omnibus.brokers.state import Settings
from omnibus.channel import Channel
from omnibus.protocol import Limits, Record, Verb, decode, encode

__all__ = ["Network"]

KINDS: list[dict[str, Any]] = [
    {"fn": "a:short"},
    {"fn": "a:high", "priority": 2},
    {"fn": "a:once", "retries": 0},
    {"fn": "a:fragile", "retries": 1, "priority": -1},
    {"fn": "a:hasty", "ttl": 0.4},
    {"fn": "a:wide", "cpus": 2},
    {"fn": "a:kept", "detached": True},
]


class Network:
    """The mesh, its clock and its dice. ``step`` lets one thing happen somewhere."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 100.0
        self.broker = Broker(b"\0\0\1epoch", self.now, Settings(limits=Limits(window_tasks=30), stall=0.1, turn=0.1))
        self.ends: dict[bytes, End] = {}
        self.clients = [Client(self, f"client-{number}") for number in range(self.dice.randint(1, 3))]
        self.nodes = [Node(self, f"node-{number}") for number in range(self.dice.randint(1, 2))]
        self.gone: list[Client] = []
        self.dead_nodes = 0
        self.running: Counter[tuple[bytes, int]] = Counter()
        self.begun: Counter[tuple[bytes, int]] = Counter()

    # ------------------------------------------------------------------ what happens

    def step(self) -> None:
        """Let some time pass, and something happen."""
        self.now += self.dice.choice([0.001, 0.01, 0.05])
        dice = self.dice.random()
        if dice < 0.25:
            self.dice.choice(self.clients).act()
        elif dice < 0.65:
            self.work()
        elif dice < 0.66:
            self.dice.choice(self.every_end()).break_link()
        elif dice < 0.675:
            self.kill()
        elif dice < 0.677:
            self.dice.choice(self.nodes).die()
        elif dice < 0.679 and len(self.clients) > 1:
            self.clients[0].leave(self.dice.random() < 0.5)
        self.deliver(0.3)
        self.turn()

    def work(self) -> None:
        """Have a worker get on, or a node: start a child, begin or end an attempt."""
        workers = [worker for node in self.nodes for worker in node.children.values()]
        if workers and self.dice.random() < 0.9:
            self.dice.choice(workers).work()
        else:
            self.dice.choice(self.nodes).work()

    def kill(self) -> None:
        workers = [worker for node in self.nodes for worker in node.children.values()]
        if workers:
            worker = self.dice.choice(workers)
            worker.node.bury(worker)

    def every_end(self) -> list[End]:
        workers: list[End] = [worker for node in self.nodes for worker in node.children.values()]
        return [*self.clients, *self.nodes, *workers]

    def deliver(self, chance: float) -> None:
        """Let some of what is under way arrive, in order over each link."""
        for end in list(self.ends.values()):
            while end.outgoing and self.dice.random() < chance:
                self.broker.receive(end.route, end.outgoing.popleft(), self.now)
            while end.incoming and end.linked and self.dice.random() < chance:
                end.receive(end.incoming.popleft())

    def turn(self) -> None:
        """Let the broker work, and check what must hold."""
        self.broker.advance(self.now)
        for route, frames in self.broker.output():
            end = self.ends.get(route)
            if end is None or not end.linked:
                self.broker.send_failed(route, self.now)
            else:
                end.incoming.append([bytes(frame) for frame in frames])
        self.broker.events()
        self.broker.check_invariants()

    def settle(self) -> bool:
        """Let nothing go wrong any more, and everything come to its end; return whether it did."""
        for node in self.nodes:
            node.settled = True
        for _ in range(3_000):
            self.now += 0.02
            for node in self.nodes:
                node.work()
                for worker in list(node.children.values()):
                    worker.work()
            self.deliver(1.0)
            self.turn()
            if all(not client.pending for client in self.clients) and not self.unfinished():
                return True
        return False

    def unfinished(self) -> int:
        ledger = self.broker.mesh.ledger
        return ledger.queued + ledger.running


class End:
    """A peer's end of its session: it counts and keeps its messages, and begins anew over another link."""

    count = 0

    def __init__(self, network: Network, role: str, name: str, **hello: Any) -> None:
        End.count += 1
        self.network = network
        self.session = b"%s-%06d" % (role.encode(), End.count)
        self.name = name
        self.hello = {"omb": 1, "role": role, "session": self.session, "name": name, "resume": True, **hello}
        self.channel = Channel()
        self.waiting: list[Record] = []
        self.links = 0
        self.linked = self.welcomed = False
        self.connect()

    @property
    def route(self) -> bytes:
        return b"%s/%d" % (self.session, self.links)

    def connect(self) -> None:
        """Say HELLO over a new link."""
        self.links += 1
        self.network.ends[self.route] = self
        self.linked, self.ready = True, False
        self.outgoing: deque[list[Any]] = deque()
        self.incoming: deque[list[Any]] = deque()
        self.outgoing.append(encode([[Verb.HELLO, 0, {**self.hello, "received": self.channel.received}, None, 0]]))

    def say(self, *records: Record) -> None:
        """Send one message, now or when the broker has said WELCOME."""
        self.waiting += records
        if self.ready and self.waiting:
            due = self.channel.acknowledgement()
            frames = encode([*([due] if due else []), *self.waiting])
            self.waiting = []
            self.channel.keep(frames)
            self.outgoing.append(frames)

    def break_link(self) -> None:
        """Lose the link, and all that was under way but a part of what was said first; begin anew."""
        self.vanish(noticed=self.network.dice.random() < 0.5)
        self.connect()

    def vanish(self, *, noticed: bool) -> None:
        arrives = self.network.dice.randrange(len(self.outgoing) + 1)
        for _ in range(arrives):
            self.network.broker.receive(self.route, self.outgoing.popleft(), self.network.now)
        del self.network.ends[self.route]
        self.linked = self.ready = False
        if noticed:
            self.network.broker.send_failed(self.route, self.network.now)

    def receive(self, frames: list[Any]) -> None:
        records = decode(frames)
        if records and records[0][0] == Verb.WELCOME:
            self.welcome(records[0][2])
            return
        if records and records[0][0] == Verb.ERROR and records[0][2]["again"]:
            self.connect_again()
            return
        assert self.ready, f"{self.name} was sent {records} before its WELCOME"
        self.channel.received += 1
        for verb, about, head, body, _ in records:
            if verb == Verb.PING:
                self.say([Verb.PONG, about, None, None, 0])
            elif verb == Verb.ACK:
                self.channel.acknowledged(about)
            else:
                self.on(Verb(verb), about, head, body)

    def welcome(self, head: dict[str, Any]) -> None:
        assert head["resumed"] or not self.welcomed, f"{self.name} was given up"
        self.welcomed = True
        if head["resumed"]:
            self.outgoing.extend(self.channel.resume(head["received"]))
        self.ready = True
        self.say()

    def connect_again(self) -> None:
        raise AssertionError(f"{self.name} was told to begin anew")

    def on(self, verb: Verb, about: int, head: Any, body: bytes | None) -> None:
        raise NotImplementedError


class Client(End):
    """Submits, cancels, repeats itself; knows how each of its tasks has ended, and that none does twice."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network, "client", name)
        self.seq = 0
        self.kinds: dict[int, dict[str, Any]] = {}
        self.pending: set[int] = set()
        self.ended: dict[int, dict[str, Any]] = {}
        self.refused = 0
        self.say(*[[Verb.DEFINE, number, dict(head), None, 0] for number, head in enumerate(KINDS)])

    def act(self) -> None:
        dice = self.network.dice
        if dice.random() < 0.75 or not self.seq:
            self.submit()
        elif dice.random() < 0.5:
            self.say([Verb.CANCEL, dice.randint(1, self.seq), None, None, 0])
        else:
            seq = dice.randint(1, self.seq)
            self.say([Verb.SUBMIT, seq, KINDS.index(self.kinds[seq]), b"%d" % seq, 0])

    def submit(self) -> None:
        records: list[Record] = []
        for _ in range(self.network.dice.randint(1, 4)):
            self.seq += 1
            kind = self.network.dice.randrange(len(KINDS))
            self.kinds[self.seq] = KINDS[kind]
            self.pending.add(self.seq)
            records.append([Verb.SUBMIT, self.seq, kind, b"%d" % self.seq, 0])
        self.say(*records)

    def on(self, verb: Verb, about: int, head: Any, body: bytes | None) -> None:
        if verb == Verb.RESULT:
            head = {"state": "done", "body": body}
        else:
            assert verb == Verb.FAILED, f"{self.name} got {verb.name} {about} {head}"
        if head["state"] == "refused" and head["error"] == "CapacityExceeded":
            self.refused += 1
            self.pending.discard(about)  # it may have been said twice, and be accepted the second time
        elif head["state"] == "refused":
            assert about in self.ended, f"{self.name}: number {about} was used, and its end has not come: {head}"
        elif about not in self.ended:
            self.pending.discard(about)
            self.ended[about] = head
        else:
            # To repeat the number of a detached task that has ended gives its end again.
            assert self.kinds[about].get("detached"), f"{self.name}: number {about} ended twice: {head}"
            assert self.ended[about]["state"] == head["state"]

    def leave(self, orderly: bool) -> None:
        """Be gone: in good order, or killed."""
        network = self.network
        network.clients.remove(self)
        network.gone.append(self)
        if orderly:
            self.say([Verb.BYE, 0, None, None, 0])
            while self.ready and self.outgoing:
                network.broker.receive(self.route, self.outgoing.popleft(), network.now)
        self.vanish(noticed=False)
        network.broker.peer_died(self.session, network.now, "its process ended")


class Node(End):
    """Keeps a base of workers up, starts others as it is asked, and knows what each has begun."""

    def __init__(self, network: Network, name: str) -> None:
        self.children: dict[bytes, Worker] = {}
        self.orders: deque[int] = deque()
        self.base = network.dice.randint(0, 2)
        self.settled = False
        super().__init__(network, "node", name, cpus=2, workers=self.base)
        self.missing = self.base

    def work(self) -> None:
        """Start a child that is wanted."""
        if self.missing:
            self.missing -= 1
            self.start(0)
        elif self.orders:
            self.start(self.orders.popleft())

    def start(self, command: int) -> None:
        worker = Worker(self, command)
        self.children[worker.session] = worker

    def bury(self, worker: Worker, **more: Any) -> None:
        """Have a child be dead, and say how far it had got; a base worker is started again."""
        del self.children[worker.session]
        worker.vanish(noticed=self.network.dice.random() < 0.5)
        worker.end_attempt()
        restarts = worker.command == 0 and not more.get("halted")
        head = {
            "event": "exited", "session": worker.session, "name": worker.name, "role": "worker", "reason": "killed",
            "begun": worker.running, "last": worker.last, "restart_in": 0.0 if restarts else None, **more,
        }  # fmt: skip
        self.missing += restarts
        self.say([Verb.CHILD, worker.command, head, None, 0])

    def die(self) -> None:
        """Be killed, and all children with it; another node takes its place."""
        network = self.network
        network.dead_nodes += 1
        for worker in list(self.children.values()):
            worker.vanish(noticed=False)
            worker.end_attempt()
        self.children.clear()
        self.vanish(noticed=False)
        network.broker.peer_died(self.session, network.now, "its process ended")
        network.nodes[network.nodes.index(self)] = Node(network, f"{self.name}'")

    def on(self, verb: Verb, about: int, head: Any, body: bytes | None) -> None:
        if verb == Verb.START:
            self.orders.append(about)
            return
        worker = self.children.get(head["session"])
        if worker is None:
            return
        if verb == Verb.HALT:
            self.bury(worker, halted=True)
        elif verb == Verb.RECALL:
            self.say([Verb.RECALLED, about, int(worker.revoke(about)), None, 0])
        elif verb == Verb.ABORT and not worker.revoke(about) and worker.running == about:
            if self.network.dice.random() < 0.5:
                self.bury(worker, cause="cancel", aborted=about)
            else:
                worker.finish([Verb.FAIL, about, {"error": "Cancelled", "message": "it was cancelled"}, None, 0])


class Worker(End):
    """A process that begins its attempts in order, and may be killed at any time."""

    def __init__(self, node: Node, command: int) -> None:
        self.node = node
        self.command = command
        self.queue: deque[tuple[int, tuple[bytes, int], bytes | None]] = deque()
        self.sessions: dict[int, bytes] = {}
        self.revoked: set[int] = set()
        self.running = 0
        self.last = 0
        self.task: tuple[bytes, int] | None = None
        self.body: bytes | None = None
        super().__init__(
            node.network, "worker", f"worker-{End.count}", node=node.session, command=command, credits=8
        )

    def on(self, verb: Verb, about: int, head: Any, body: bytes | None) -> None:
        if verb == Verb.DEFINE:
            self.sessions[about] = head["session"]
        elif verb == Verb.RUN:
            self.queue.append((about, (self.sessions[head[0]], head[1]), body))
        elif verb == Verb.CANCEL and about in [aid for aid, _, _ in self.queue]:
            self.queue = deque(job for job in self.queue if job[0] != about)
            self.say([Verb.FAIL, about, {"error": "Revoked", "message": "it had not begun"}, None, 0])

    def revoke(self, aid: int) -> bool:
        """Have an attempt never begin, as its status page says; false where it has."""
        if aid <= self.last:
            return False
        self.revoked.add(aid)
        return True

    def work(self) -> None:
        """End the running attempt, or begin the next one."""
        dice = self.node.network.dice
        if self.running:
            if dice.random() < 0.9:
                records: list[Record] = [[Verb.DONE, self.running, None, self.body, 0]]
            else:
                records = [[Verb.FAIL, self.running, {"error": "RemoteError", "message": "it raised"}, None, 0]]
            if dice.random() < 0.5:
                records.append([Verb.TIMED, dice.choice([*self.sessions, 0]), dice.choice([1_000, 500_000]), None, 0])
            self.finish(*records)
        elif self.queue:
            aid, task, body = self.queue.popleft()
            if aid in self.revoked:
                self.say([Verb.FAIL, aid, {"error": "Revoked", "message": "it was recalled"}, None, 0])
                return
            self.running = self.last = aid
            self.task, self.body = task, body
            network = self.node.network
            network.begun[task] += 1
            network.running[task] += 1
            assert network.running[task] == 1, f"task {task} runs twice at a time"

    def finish(self, *records: Record) -> None:
        self.end_attempt()
        self.running = 0
        self.say(*records)

    def end_attempt(self) -> None:
        if self.running and self.task is not None:
            self.node.network.running[self.task] -= 1
            self.task = None
