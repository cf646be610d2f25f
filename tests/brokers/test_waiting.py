"""Waiting: the time to live, and how tasks come back to their place."""

from __future__ import annotations

from omnibus.protocol import Verb
from tests.brokers.support import Recorder, done, exited, fail, submit


def test_a_task_that_waits_too_long_expires(broker: Recorder) -> None:
    client = broker.client({"ttl": 5})
    client.send(submit(1))
    broker.step(2)
    client.send(submit(2))
    broker.step(2.9)
    client.nothing()
    broker.step(0.1)
    failed = client.claim(Verb.FAILED, 1, error="Expired", state="expired", attempts=0)
    assert "longer than its ttl of 5 s" in failed.head["message"]
    broker.step(2)
    client.claim(Verb.FAILED, 2, error="Expired")
    assert broker.counts() == {"submitted": 2, "expired": 2}


def test_a_task_that_was_dispatched_does_not_expire(broker: Recorder) -> None:
    client, worker = broker.client({"ttl": 5}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    broker.step(10)
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)


def test_a_task_that_comes_back_has_its_time_anew(broker: Recorder) -> None:
    client, node = broker.client({"ttl": 5}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    broker.step(10)
    node.send(exited(worker, begun=run.id, last=run.id))
    broker.step(4)
    client.nothing()
    broker.step(2)
    client.claim(Verb.FAILED, 1, error="Expired")
    node.claim(Verb.START)


def test_ended_tasks_leave_one_timer_behind_however_many_they_were(broker: Recorder) -> None:
    client, worker = broker.client({"ttl": 1000}), broker.worker()
    for seq in range(1, 50):
        client.send(submit(seq))
        worker.send(done(worker.run().id))
        client.claim(Verb.RESULT, seq)
    broker.step(1)
    assert len(broker.mesh.timers) == 1
    assert not client.as_client().kinds[1].expiring


def test_messages_expire_in_their_actors_queue(broker: Recorder) -> None:
    client = broker.client({"actor": "a", "method": "m", "ttl": 5})
    actor = broker.peer("actor", "a", credits=1)
    client.send(submit(1, verb=Verb.ASK), submit(2, verb=Verb.ASK))
    run = actor.run()
    broker.step(6)
    client.claim(Verb.FAILED, 2, error="Expired")
    actor.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    assert broker.counts(messages=True) == {"submitted": 2, "done": 1, "expired": 1}


def test_tasks_that_are_given_back_keep_their_order(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(99))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT, 99)
    client.send(*[submit(seq) for seq in range(1, 7)])
    runs = worker.runs()
    broker.mesh.default.retire(worker.as_worker())
    for index in (4, 5, 1, 3, 2, 0):
        worker.send(fail(runs[index].id, "Revoked"))
    other = broker.worker()
    assert [run.head[1] for run in other.runs()] == [1, 2, 3, 4, 5, 6]
