"""Placement: growth, what fits where, GPUs whole and shared, memory, labels, room that others make, and shrinking."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.hello import Hello
from omnibus.brokers.kinds import Shape
from omnibus.brokers.peers import Node
from omnibus.brokers.placement import fits, free_devices
from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder, define, done, exited, submit


def a_node(**more: Any) -> Node:
    return Node(Hello(b"session-", "node", **more), b"route", [], 0.0)


def run_one(worker: Link, client: Link) -> int:
    """Have ``worker`` do the task that it was given, and return its number."""
    run = worker.run()
    worker.send(done(run.id))
    client.claim(Verb.RESULT, run.head[1])
    number: int = run.head[1]
    return number


# ---------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        (Shape(), True),
        (Shape(cpus=4), True),
        (Shape(cpus=4.5), False),
        (Shape(gpus=2), True),
        (Shape(gpus=3), False),
        (Shape(gpus=0.5), True),
        (Shape(memory=100), True),
        (Shape(memory=101), False),
        (Shape(labels=(("zone", "b"),)), True),
        (Shape(labels=(("zone", "c"),)), False),
        (Shape(labels=(("disk", "ssd"),)), False),
    ],
)
def test_what_fits_on_a_node_that_idles(shape: Shape, answer: bool) -> None:
    node = a_node(cpus=4, gpus=("g0", "g1"), memory=100, labels={"zone": "b"})
    assert fits(node, shape) is answer


def test_nothing_fits_on_a_node_without_a_link() -> None:
    node = a_node(cpus=4)
    node.route = None
    assert not fits(node, Shape())


def test_devices_are_whole_free_ones_or_the_fullest_that_has_the_share() -> None:
    node = a_node(gpus=("g0", "g1", "g2"))
    assert free_devices(node.free_gpus, 0) == ()
    assert free_devices(node.free_gpus, 2) == ("g0", "g1")
    assert free_devices(node.free_gpus, 4) is None
    left = {"g0": 1.0, "g1": 0.3, "g2": 0.6}
    assert free_devices(left, 0.25) == ("g1",)
    assert free_devices(left, 0.5) == ("g2",)
    assert free_devices(left, 0.75) == ("g0",)
    assert free_devices(left, 1) == ("g0",)
    assert free_devices(left, 2) is None


def test_tenths_of_a_gpu_add_up(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 0.1}), broker.node(cpus=20, gpus=["g0"])
    client.send(*[submit(seq) for seq in range(1, 21)])
    workers = [broker.started(node) for _ in range(10)]
    node.nothing()
    assert all(worker.run() for worker in workers)
    assert abs(node.as_node().free_gpus["g0"]) < 1e-9


# ---------------------------------------------------------------------- growth


def test_a_pool_grows_while_work_waits_and_a_node_has_room(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=3)
    client.send(*[submit(seq) for seq in range(1, 3)])
    for _ in range(2):
        node.claim(Verb.START, role="worker", cpus=1, devices=[])
    node.nothing()
    client.send(*[submit(seq) for seq in range(3, 10)])
    node.claim(Verb.START)
    node.nothing()
    assert broker.mesh.default.starting == 3


def test_workers_that_a_node_starts_by_itself_are_expected(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=2, workers=2)
    client.send(*[submit(seq) for seq in range(1, 9)])
    node.nothing()
    first = broker.worker(node)
    node.send(exited(b"second-child"))
    node.claim(Verb.START)
    node.send(exited(first, restart_in=0.1))
    node.nothing()
    assert node.as_node().coming == 1
    broker.worker(node).run()
    assert node.as_node().coming == 0
    broker.abandon()


def test_growth_is_spread_where_there_is_room(broker: Recorder) -> None:
    client = broker.client({"labels": {"zone": "b"}})
    broker.node("one", cpus=2, labels={"zone": "a"})
    node = broker.node("two", cpus=2, labels={"zone": "b"})
    client.send(*[submit(seq) for seq in range(1, 9)])
    broker.started(node).run()
    broker.started(node).run()


def test_a_shape_that_fits_nowhere_blocks_no_other(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 8}, {}), broker.node(cpus=1)
    client.send(submit(1, 1), submit(2, 2))
    worker = broker.started(node)
    assert run_one(worker, client) == 2
    assert broker.counts()["queued"] == 1
    large = broker.node("large", gpus=[f"g{index}" for index in range(8)])
    assert run_one(broker.started(large), client) == 1


def test_fractions_of_cpus_and_none_at_all_are_bounded(broker: Recorder) -> None:
    for kind in ({"cpus": 0}, {"cpus": 0.01}):
        client, node = broker.client(kind), broker.node(cpus=2)
        client.send(*[submit(seq) for seq in range(1, 101)])
        assert len(node.claim_all()) == 8
        node.send([Verb.BYE, 0, None, None, 0])
        client.send([Verb.BYE, 0, None, None, 0])


def test_a_process_that_ends_before_it_comes_is_not_tried_again_at_once(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    client.send(submit(1))
    pauses = []
    for _ in range(5):
        start = node.claim(Verb.START)
        began = broker.now
        node.send(exited(b"child-%d--" % start.id, start.id, reason="no such interpreter"))
        node.nothing()
        while not node.records:
            broker.step(0.05)
        pauses.append(round(broker.now - began, 1))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert run_one(broker.started(node), client) == 1
    assert broker.mesh.default.failures == 0


def test_a_start_that_is_refused_gives_back_what_it_held(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1, "memory": 60}), broker.node(gpus=["g0"], memory=100)
    client.send(submit(1))
    start = node.claim(Verb.START, devices=["g0"])
    entry = node.as_node()
    assert (entry.free_gpus, entry.free_memory) == ({"g0": 0.0}, 40)
    node.send(exited(b"child-session", start.id))
    assert (entry.free_gpus, entry.free_memory) == ({"g0": 1.0}, 100)
    broker.step(0.1)
    node.claim(Verb.START)


def test_a_start_that_the_node_answers_by_an_error_comes_to_nothing(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0", "g1"])
    client.send(submit(1), [Verb.SPAWN, 2, {"cls": "a:B", "name": "a", "gpus": 1}, None, 0])
    first, second = node.claim(Verb.START, name="a"), node.claim(Verb.START, role="worker")
    for number in (first.id, second.id, second.id, 99):
        node.send([Verb.ERROR, number, {"error": "AlreadyExists", "message": "child 'a' is running"}, None, 0])
    failed = client.claim(Verb.FAILED, 2, error="SetupFailed")
    assert failed.head["message"] == "node node did not start it: child 'a' is running"
    assert node.as_node().free_gpus == {"g0": 1.0, "g1": 1.0}
    broker.step(0.1)
    run_one(broker.started(node), client)


def test_a_lost_start_comes_to_nothing_with_its_node(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node()
    client.send(submit(1))
    node.claim(Verb.START)
    node.send([Verb.BYE, 0, None, None, 0])
    assert broker.mesh.default.starting == 0
    other = broker.node("other")
    assert run_one(broker.started(other), client) == 1


# ---------------------------------------------------------------------- room that others make


def test_an_idle_worker_gives_up_its_gpu_for_another_shape(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}, {"gpus": 0.5}), broker.node(gpus=["g0"])
    client.send(submit(1, 1))
    whole = broker.started(node)
    run_one(whole, client)
    client.send(submit(2, 2))
    node.claim(Verb.HALT, session=whole.session)
    node.send(exited(whole))
    assert run_one(broker.started(node), client) == 2


def test_an_idle_worker_gives_up_its_memory(broker: Recorder) -> None:
    client, node = broker.client({"memory": 80}, {"memory": 50}), broker.node(memory=100)
    client.send(submit(1, 1))
    first = broker.started(node)
    run_one(first, client)
    client.send(submit(2, 2))
    node.claim(Verb.HALT, session=first.session)
    node.send(exited(first))
    assert run_one(broker.started(node), client) == 2


def test_a_worker_without_what_is_lacked_is_left_alone(broker: Recorder) -> None:
    client = broker.client({"memory": 80}, {"gpus": 1}, {"gpus": 1, "memory": 1})
    node = broker.node(gpus=["g0"], memory=100)
    client.send(submit(1, 1))
    first = broker.started(node)
    run_one(first, client)
    client.send(submit(2, 2))
    second = broker.started(node)
    run_one(second, client)
    client.send(submit(3, 3))
    node.claim(Verb.HALT, session=second.session)
    node.nothing()


def test_a_large_shape_gets_its_gpus_beside_a_flood_of_small_ones(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}, {"gpus": 2}), broker.node(gpus=["g0", "g1"])
    client.send(*[submit(seq, 1) for seq in range(1, 200)])
    small = [broker.started(node), broker.started(node)]
    client.send(submit(500, 2))
    for _ in range(3):
        broker.step(0.5)
        for worker in small:
            run_one(worker, client)
    broker.step(0.6)
    run_one(small[0], client)
    small[0].nothing()
    node.nothing()
    run_one(small[1], client)
    for worker in small:
        worker.nothing()
        node.claim(Verb.HALT, session=worker.session)
        node.send(exited(worker))
    large = broker.started(node)
    assert run_one(large, client) == 500
    node.claim(Verb.HALT, session=large.session)
    node.send(exited(large))
    for worker in (broker.started(node), broker.started(node)):
        run_one(worker, client)
    broker.abandon()


def test_a_higher_lane_gets_its_gpu_at_once(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}, {"gpus": 1, "priority": 1, "cpus": 2}), broker.node(gpus=["g0"])
    client.send(*[submit(seq, 1) for seq in range(1, 9)])
    low = broker.started(node)
    client.send(submit(100, 2))
    run_one(low, client)
    node.claim(Verb.HALT, session=low.session)
    node.send(exited(low))
    assert run_one(broker.started(node), client) == 100
    node.claim(Verb.HALT)
    broker.abandon()


# ---------------------------------------------------------------------- shrinking

FORGET: Record = [Verb.FORGET, 1, None, None, 0]


def test_the_processes_of_a_shape_that_nobody_uses_end_after_a_while(broker: Recorder) -> None:
    client, node = broker.client({"cpus": 2}), broker.node()
    client.send(submit(1))
    worker = broker.started(node)
    run_one(worker, client)
    client.send(FORGET)
    worker.claim(Verb.FORGET)
    broker.step(59)
    node.nothing()
    broker.step(2)
    node.claim(Verb.HALT, session=worker.session)
    node.send(exited(worker))
    broker.step(60)
    assert list(broker.mesh.pools.values()) == [broker.mesh.default]


def test_a_shape_that_is_used_again_keeps_its_processes(broker: Recorder) -> None:
    client, node = broker.client({"cpus": 2}), broker.node()
    client.send(submit(1))
    worker = broker.started(node)
    run_one(worker, client)
    client.send(FORGET)
    worker.claim(Verb.FORGET)
    broker.step(30)
    client.send(define(2, cpus=2))
    broker.step(200)
    client.send(submit(2, 2))
    run_one(worker, client)


def test_work_of_a_forgotten_shape_is_done_all_the_same(broker: Recorder) -> None:
    client, node = broker.client({"cpus": 2}), broker.node(cpus=2)
    client.send(submit(1), submit(2), FORGET)
    worker = broker.started(node)
    broker.step(200)
    for _ in range(2):
        records = worker.claim_all()
        (run,) = [record for record in records if record.verb == Verb.RUN]
        worker.send(done(run.id))
        broker.step(61)
    client.claim_all(Verb.RESULT, Verb.RESULT)
    worker.claim_all(Verb.FORGET)
    node.claim(Verb.HALT)


def test_the_default_shape_stays(broker: Recorder) -> None:
    client = broker.client({})
    worker = broker.worker(broker.node())
    client.send(FORGET)
    broker.step(100)
    assert worker.as_worker().pool is broker.mesh.default


def test_shapes_are_bounded_and_unused_ones_give_way() -> None:
    broker = Recorder(pools=3)
    client = broker.client({"cpus": 2}, {"cpus": 3})
    client.send(define(3, cpus=4))
    refusal = client.claim(Verb.ERROR, 3, error="CapacityExceeded")
    assert "3 shapes of resources are in use" in refusal.head["message"]
    client.send(submit(1, 1), FORGET)
    client.send(define(3, cpus=4))
    client.claim(Verb.ERROR, 3, error="CapacityExceeded")
    client.send([Verb.CANCEL, 1, None, None, 0], define(3, cpus=4))
    client.claim(Verb.FAILED, 1)
    broker.finish()
