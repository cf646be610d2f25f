"""Losses: attempts are counted at dispatch, given back when they did not begin, and repeated while the budget lasts."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.protocol import Verb
from tests.brokers.support import Link, Recorder, done, exited, fail, submit


def killed(node: Link, worker: Link, *, last: int = 0, begun: int = 0, **more: Any) -> None:
    node.send(exited(worker, last=last, begun=begun, **more))


def prepared(broker: Recorder, tasks: int, **kind: Any) -> tuple[Link, Link, Link, list[Any]]:
    """Return a client, a node, and its worker which was given ``tasks`` tasks at once."""
    client, node = broker.client(kind), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(100))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT)
    client.send(*[submit(seq) for seq in range(1, tasks + 1)])
    return client, node, worker, worker.runs()


def test_the_one_that_ran_is_counted_and_its_neighbours_are_not(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 4)
    worker.send(done(runs[0].id))
    client.claim(Verb.RESULT, 1)
    killed(node, worker, begun=runs[1].id, last=runs[1].id)
    again = broker.started(node).runs()
    assert [run.head[1:] for run in again] == [[2, 2], [3, 1], [4, 1]]
    assert broker.counts()["redelivered"] == 1


def test_a_worker_that_was_idle_is_blamed_for_nothing(broker: Recorder) -> None:
    _, node, worker, runs = prepared(broker, 3)
    killed(node, worker, begun=0, last=runs[0].id - 1)
    assert [run.head[2] for run in broker.started(node).runs()] == [1, 1, 1]


def test_a_result_that_comes_in_the_turn_of_its_workers_death_counts(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 3, retries=0)
    node.send(exited(worker, begun=runs[1].id, last=runs[1].id), step=False)
    worker.send(done(runs[0].id))
    client.claim(Verb.FAILED, 2, error="WorkerDied")
    client.claim(Verb.RESULT, 1)
    again = broker.started(node)
    again.send(done(again.run().id))
    client.claim(Verb.RESULT, 3)
    assert broker.counts() == {"submitted": 4, "done": 3, "failed": 1}
    assert worker.session not in broker.mesh.sessions


def test_a_result_may_be_waited_for_somewhat_longer() -> None:
    broker = Recorder(settle=0.05)
    _, node, worker, runs = prepared(broker, 2)
    killed(node, worker, begun=runs[1].id, last=runs[1].id)
    other = broker.started(node)
    assert [run.head[1:] for run in other.runs()] == [[2, 2]]
    broker.step(0.1)
    assert [run.head[1:] for run in other.runs()] == [[1, 2]]
    assert broker.counts()["redelivered"] == 2
    broker.finish()


def test_the_budget_is_retries(broker: Recorder) -> None:
    client, node = broker.client({"retries": 2}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    for attempt in (1, 2, 3):
        run = worker.run()
        assert run.head[1:] == [1, attempt]
        killed(node, worker, begun=run.id, last=run.id)
        if attempt < 3:
            worker = broker.started(node)
    failed = client.claim(Verb.FAILED, 1, error="DeadLetter", state="dead", attempts=3, last="WorkerDied")
    assert "lost its worker 3 times, and retries=2" in failed.head["message"]
    assert "killed by SIGKILL" in failed.head["message"]
    assert broker.counts() == {"submitted": 1, "dead": 1, "redelivered": 2}


def test_without_retries_it_fails_as_what_it_died_of(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 1, retries=0)
    killed(node, worker, begun=runs[0].id, last=runs[0].id, oom=True, reason="out of memory at 2 GiB")
    failed = client.claim(Verb.FAILED, 1, error="OutOfMemory", state="failed", attempts=1)
    assert "out of memory at 2 GiB" in failed.head["message"]


def test_giving_back_costs_nothing_however_often(broker: Recorder) -> None:
    client, worker = broker.client({"retries": 0}), broker.worker()
    client.send(submit(1))
    for _ in range(5):
        run = worker.run()
        assert run.head[2] == 1
        worker.send(fail(run.id, "Revoked"))
    assert broker.counts() == {"submitted": 1, "running": 1}
    worker.run()


def test_a_stream_is_not_repeated_after_its_first_chunk(broker: Recorder) -> None:
    client, node = broker.client({"retries": 5, "stream": True}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    killed(node, worker, begun=run.id, last=run.id)
    worker = broker.started(node)
    run = worker.run()
    assert run.head[2] == 2
    worker.send([Verb.CHUNK, run.id, None, b"part", 0])
    client.claim(Verb.CHUNK, 1)
    killed(node, worker, begun=run.id, last=run.id)
    failed = client.claim(Verb.FAILED, 1, error="WorkerDied", state="failed")
    assert "part of its stream was delivered" in failed.head["message"]


@pytest.mark.parametrize("began", [True, False])
def test_a_cancelled_task_whose_worker_dies_is_cancelled(broker: Recorder, began: bool) -> None:
    client, node, worker, runs = prepared(broker, 1)
    client.send([Verb.CANCEL, 1, None, None, 0])
    worker.claim(Verb.CANCEL)
    node.claim(Verb.ABORT)
    killed(node, worker, begun=runs[0].id * began, last=runs[0].id - 1 + began)
    client.claim(Verb.FAILED, 1, error="Cancelled", state="cancelled", attempts=int(began))


def test_a_worker_killed_for_a_timeout_ends_the_task(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 1, timeout=2)
    node.claim_all(Verb.WATCH, Verb.WATCH)
    killed(node, worker, begun=runs[0].id, last=runs[0].id, cause="timeout", aborted=runs[0].id, reason="killed at 2 s")
    failed = client.claim(Verb.FAILED, 1, error="TaskTimeout", state="failed")
    assert "ran longer than its timeout of 2.0 s; killed at 2 s" in failed.head["message"]


def test_an_abort_of_what_had_ended_blames_nobody(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 2)
    worker.send(done(runs[0].id))
    client.claim(Verb.RESULT, 1)
    killed(node, worker, begun=runs[0].id, last=runs[0].id, cause="cancel", aborted=runs[0].id)
    assert broker.started(node).run().head[1:] == [2, 1]


def test_a_result_of_a_fenced_attempt_is_late(broker: Recorder) -> None:
    client, node, worker, runs = prepared(broker, 1)
    killed(node, worker, begun=runs[0].id, last=runs[0].id)
    worker.send(done(runs[0].id))
    worker.claim(Verb.ERROR, again=True)
    other = broker.started(node)
    run = other.run()
    assert run.id > runs[0].id
    other.send(done(runs[0].id), done(run.id))
    client.claim(Verb.RESULT, 1)
    assert broker.counts() == {"submitted": 2, "done": 2, "late": 1, "redelivered": 1}
