"""Sharing CPUs: turns between shapes, the larger ones among them, and priorities; actors beside tasks."""

from __future__ import annotations

from omnibus.protocol import Verb
from tests.brokers.support import Link, Recorder, define, done, exited, submit


class Shop:
    """A node, a client with a small and a large kind, and what the workers were given."""

    def __init__(self, broker: Recorder, cpus: int, small: int, *, large: float = 2, priority: int = 0) -> None:
        self.broker = broker
        self.client = broker.client({"cpus": 1}, {"cpus": large, "priority": priority})
        self.node = broker.node(cpus=cpus, workers=small)
        self.small = [broker.worker(self.node) for _ in range(small)]
        self.large: list[Link] = []
        self.seq = 0

    def submit(self, kind: int, count: int = 1) -> None:
        """Submit some tasks, and have the node start what it is asked for."""
        self.client.send(*[submit(self.seq + index, kind) for index in range(1, count + 1)])
        self.seq += count
        while self.node.records:
            self.large.append(self.broker.started(self.node))

    def turn(self, seconds: float = 0.0) -> list[str]:
        """Have every worker end what it has had for ``seconds``, and return which had something."""
        self.broker.step(seconds)
        runs = [
            (label, worker, run)
            for label, workers in (("small", self.small), ("large", self.large))
            for worker in workers
            for run in worker.runs()
        ]
        for _, worker, run in runs:
            worker.send(done(run.id))
        self.client.claim_all()
        return [label for label, _, _ in runs]


def test_cpus_are_held_while_there_is_work(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    entry = shop.node.as_node()
    shop.submit(1, 3)
    assert entry.free_cpus == 0
    shop.turn()
    shop.turn()
    assert entry.free_cpus == 2
    assert not entry.wants


def test_a_large_task_has_its_turn_beside_a_flood_of_small_ones(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.submit(1, 1000)
    shop.submit(2, 1)
    turns = [shop.turn(0.02) for _ in range(20)]
    assert ["large"] in turns[:6]
    assert all(turn in (["small", "small"], ["large"], ["small"]) for turn in turns)
    assert turns[-1] == ["small", "small"], "and then the small ones go on"
    broker.abandon()


def test_floods_of_both_take_turns(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.submit(1, 1000)
    shop.submit(2, 1000)
    worked = [label for _ in range(100) for label in shop.turn(0.02)]
    assert 20 <= worked.count("large") <= 60
    assert worked.count("small") >= 60
    broker.abandon()


def test_a_large_task_alone_does_not_make_small_ones_wait(broker: Recorder) -> None:
    shop = Shop(broker, cpus=3, small=1)
    shop.submit(2, 1)
    shop.submit(1, 1)
    assert sorted(shop.turn()) == ["large", "small"]


def test_the_higher_lane_goes_first_and_does_not_wait_its_turn(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2, priority=1)
    shop.submit(1, 100)
    shop.submit(2, 2)
    shop.turn()
    assert shop.turn() == ["large"]
    assert shop.turn() == ["large"]
    assert shop.turn() == ["small", "small"]
    broker.abandon()


def test_the_lower_lane_waits_for_as_long_as_there_is_higher_work(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2, priority=-1)
    shop.submit(1, 30)
    shop.submit(2, 1)
    turns = [shop.turn(1) for _ in range(15)]
    assert turns == [["small", "small"]] * 15
    assert shop.turn() == ["large"]


def test_what_goes_first_is_left_what_it_needs(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.submit(1, 2)
    shop.submit(2, 1)
    run = shop.small[0].run()
    shop.small[0].send(done(run.id))
    shop.client.claim(Verb.RESULT)
    shop.submit(1, 1)
    shop.small[0].nothing()
    assert [shop.turn() for _ in range(3)] == [["small"], ["large"], ["small"]]


def test_an_actor_takes_messages_while_a_large_task_waits_for_cpus(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.client.send(define(3, actor="a", method="m"), [Verb.SPAWN, 900, {"cls": "a:B", "name": "a"}, None, 0])
    actor = broker.started(shop.node, role="actor")
    actor.send(done(actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1].id))
    shop.client.claim(Verb.RESULT, 900)
    shop.submit(1, 2)
    shop.submit(2, 1)
    assert shop.node.as_node().wants
    broker.step(1)
    shop.client.send(submit(901, 3, verb=Verb.ASK), submit(902, 3, verb=Verb.ASK))
    for number in (901, 902):
        actor.send(done(actor.run().id))
        shop.client.claim(Verb.RESULT, number)
    broker.abandon()


def test_a_wish_of_a_pool_whose_worker_is_gone_holds_up_nobody(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.submit(1, 100)
    shop.submit(2, 1)
    (large,) = shop.large
    assert len(shop.node.as_node().wants) == 1
    shop.large.clear()
    shop.client.send([Verb.CANCEL, 101, None, None, 0])
    shop.client.claim(Verb.FAILED, 101)
    shop.node.send(exited(large))
    for _ in range(5):
        assert shop.turn(0.1) == ["small", "small"]
    assert not shop.node.as_node().wants
    broker.abandon()


def test_a_wish_of_a_pool_whose_worker_lost_its_link_holds_up_nobody(broker: Recorder) -> None:
    shop = Shop(broker, cpus=2, small=2)
    shop.submit(1, 100)
    shop.submit(2, 1)
    shop.large[0].break_link()
    shop.large.clear()
    for _ in range(5):
        assert len(shop.turn(0.1)) >= 1
    assert shop.turn() == ["small", "small"]
    shop.node.claim_all()
    broker.abandon()


def test_a_message_is_handled_beside_a_backlog_of_tasks_which_then_wait(broker: Recorder) -> None:
    shop = Shop(broker, cpus=1, small=1)
    shop.submit(1, 10)
    shop.client.send(define(3, actor="a", method="m"), [Verb.SPAWN, 900, {"cls": "a:B", "name": "a"}, None, 0])
    actor = broker.started(shop.node, role="actor")
    actor.send(done(actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1].id))
    shop.client.claim(Verb.RESULT, 900)
    shop.client.send(submit(901, 3, verb=Verb.ASK))
    run = actor.run()
    assert shop.node.as_node().free_cpus == -1
    actor.send(done(run.id))
    shop.client.claim(Verb.RESULT, 901)
    assert shop.node.as_node().free_cpus == 0
    broker.abandon()
