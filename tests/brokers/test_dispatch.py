"""Dispatch: the adaptive window, fair shares, priorities between pools, what a worker is told."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.tasks import HORIZON
from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder, define, done, fail, submit


def timed(number: int, cost: object) -> Record:
    return [Verb.TIMED, number, cost, None, 0]


def measured(broker: Recorder, worker: Link, cost: int, **kind: Any) -> Link:
    """Return a client whose kind was measured to take ``cost`` nanoseconds."""
    client = broker.client(kind)
    client.send(submit(100_000))
    run = worker.run()
    worker.send(timed(run.head[0], cost), done(run.id))
    client.claim(Verb.RESULT)
    return client


def test_work_that_nobody_has_timed_goes_out_one_at_a_time(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(*[submit(seq) for seq in range(1, 4)])
    for seq in (1, 2, 3):
        run = worker.run()
        assert run.head[1] == seq
        worker.send(done(run.id))
        client.claim(Verb.RESULT, seq)


@pytest.mark.parametrize(("cost", "window"), [(HORIZON, 1), (HORIZON * 10, 1), (HORIZON // 4, 4), (1000, 60), (0, 60)])
def test_the_window_is_as_wide_as_the_work_is_short(broker: Recorder, cost: int, window: int) -> None:
    worker = broker.worker(credits=60)
    client = measured(broker, worker, cost)
    client.send(*[submit(seq) for seq in range(1, 101)])
    assert len(worker.runs()) == window


def test_a_workers_credits_bound_what_it_holds_and_may_grow(broker: Recorder) -> None:
    worker = broker.worker(credits=2)
    client = measured(broker, worker, 1000)
    client.send(*[submit(seq) for seq in range(1, 11)])
    assert len(worker.runs()) == 2
    worker.send([Verb.CREDIT, 0, 3, None, 0])
    assert len(worker.runs()) == 3


@pytest.mark.parametrize(("about", "head"), [(1, 3), (0, 0), (0, -1), (0, 1.0), (0, "x"), (0, True)])
def test_a_grant_is_a_positive_count_for_the_worker(broker: Recorder, about: int, head: object) -> None:
    worker = broker.worker()
    worker.send([Verb.CREDIT, about, head, None, 0])
    worker.claim(Verb.ERROR, about)
    assert worker.as_worker().credits == 64


def test_a_worker_without_credits_gets_nothing(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker(credits=0)
    client.send(submit(1))
    worker.nothing()
    worker.send([Verb.CREDIT, 0, 1, None, 0])
    worker.run()


def test_workers_get_fair_shares(broker: Recorder) -> None:
    first = broker.worker(credits=1000)
    client = measured(broker, first, 1000)
    others = [broker.worker(credits=1000) for _ in range(3)]
    client.send(*[submit(seq) for seq in range(1, 41)])
    assert [len(worker.runs()) for worker in (first, *others)] == [10, 10, 10, 10]


def test_a_high_lane_does_not_wait_behind_low_work(broker: Recorder) -> None:
    client, worker = broker.client({}, {"priority": 5}), broker.worker()
    client.send(submit(1), submit(2), submit(3))
    run = worker.run()
    client.send(submit(4, 2))
    worker.send(done(run.id))
    assert worker.run().head[1] == 4
    client.claim(Verb.RESULT, 1)


def test_the_guard_lets_low_work_through() -> None:
    broker = Recorder(guard=3)
    client, worker = broker.client({}, {"priority": 5}), broker.worker()
    client.send(*[submit(seq) for seq in range(1, 11)], *[submit(seq, 2) for seq in range(11, 21)])
    order = []
    for _ in range(9):
        run = worker.run()
        order.append(run.head[1] > 10)
        worker.send(done(run.id))
    assert order.count(False) == 3
    client.claim_all()
    worker.claim_all()
    broker.finish()


def test_a_function_is_shipped_to_a_worker_once(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    client.send(define(1, code=b"digest", body=b"pickle"), define(2, code=b"digest", priority=1))
    client.send(submit(1, 1))
    first = worker.claim(Verb.DEFINE, code=b"digest")
    assert first.body == b"pickle"
    worker.send(done(worker.claim(Verb.RUN).id))
    client.send(submit(2, 2))
    second = worker.claim(Verb.DEFINE, code=b"digest")
    assert second.body is None
    worker.send(done(worker.claim(Verb.RUN).id))
    client.claim_all(Verb.RESULT, Verb.RESULT)


def test_a_function_is_shipped_again_where_the_worker_was_to_forget_it(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    for seq in (1, 2):
        client.send(define(seq, code=b"digest", body=b"pickle"), submit(seq, seq))
        assert worker.claim(Verb.DEFINE).body == b"pickle"
        worker.send(done(worker.claim(Verb.RUN).id))
        client.claim(Verb.RESULT, seq)
        client.send([Verb.FORGET, seq, None, None, 0])
        worker.claim(Verb.FORGET)


def test_another_kind_of_the_same_code_keeps_it(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    client.send(define(1, code=b"digest", body=b"pickle"), define(2, code=b"digest"), submit(1, 1), submit(2, 2))
    for _ in range(2):
        worker.send(done(worker.run().id))
    client.claim_all(Verb.RESULT, Verb.RESULT)
    client.send([Verb.FORGET, 1, None, None, 0], define(3, code=b"digest"), submit(3, 3))
    worker.claim(Verb.FORGET)
    assert worker.claim(Verb.DEFINE).body is None
    worker.claim(Verb.RUN)


def test_a_timeout_is_watched_by_the_node(broker: Recorder) -> None:
    client, node = broker.client({"timeout": 7}), broker.node()
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    node.claim(Verb.WATCH, run.id, session=worker.session, timeout=7.0)


def test_without_a_node_the_worker_keeps_its_own_watch(broker: Recorder) -> None:
    client, worker = broker.client({"timeout": 7}), broker.worker()
    client.send(submit(1))
    worker.claim(Verb.DEFINE, timeout=7.0)
    worker.claim(Verb.RUN)


def test_what_calls_cost_is_learnt_of_kinds_that_the_worker_knows(broker: Recorder) -> None:
    client, worker, other = broker.client({}), broker.worker(), broker.worker()
    client.send(submit(1))
    run = worker.run()
    costs = []
    for link, record in (
        (other, timed(run.head[0], 5000)),
        (worker, timed(99, 5000)),
        (worker, timed(run.head[0], 5000)),
        (worker, timed(run.head[0], "fast")),
        (worker, timed(run.head[0], -1)),
    ):
        link.send(record)
        costs.append(client.as_client().kinds[1].cost)
    assert costs == [None, None, 5000, 5000, 5000]
    worker.claim_all(Verb.ERROR, Verb.ERROR)


def test_the_lanes_statistics_are_kept(broker: Recorder) -> None:
    client = broker.client({"priority": 4})
    client.send(submit(1), submit(2))
    broker.step(3)
    worker = broker.worker()
    worker.send(done(worker.run().id))
    broker.step(1)
    worker.send(done(worker.run().id))
    lane = broker.mesh.lanes[4]
    assert (lane.dispatched, lane.waited, lane.longest) == (2, 6, 3)
    client.claim_all(Verb.RESULT, Verb.RESULT)


def test_lanes_beyond_the_limit_are_not_reported(broker: Recorder) -> None:
    for priority in range(5000):
        broker.mesh.stats(priority)
    assert len(broker.mesh.lanes) == 4096


def test_a_late_result_is_counted_and_dropped(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    worker.send(done(run.id), fail(run.id), [Verb.CHUNK, run.id, None, b"x", 0], done(0))
    assert broker.counts() == {"submitted": 1, "done": 1, "late": 4}


@pytest.mark.parametrize("head", [None, {}, {"error": 5}, {"error": ""}, "RemoteError"])
def test_a_failure_names_its_error(broker: Recorder, head: object) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    worker.send([Verb.FAIL, run.id, head, None, 0])
    worker.claim(Verb.ERROR, run.id)
    assert broker.counts()["running"] == 1
