"""Lending: a task that waits for other tasks lends its CPUs, and the pool never stands still for it."""

from __future__ import annotations

from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder, define, done, submit


def lend(on: int) -> Record:
    return [Verb.LEND, 0, on, None, 0]


def within(broker: Recorder, worker: Link) -> Link:
    """Return a client inside the task that ``worker`` runs."""
    return broker.client({}, within=worker.session)


def test_the_cpus_of_a_task_that_waits_go_to_others(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    outer = worker.run()
    inner = within(broker, worker)
    inner.send(submit(1))
    node.nothing()
    inner.send(lend(1))
    assert node.as_node().free_cpus == 1
    other = broker.started(node)
    other.send(done(other.run().id))
    inner.claim(Verb.RESULT, 1)
    inner.send(lend(0))
    assert node.as_node().free_cpus == 0
    worker.send(done(outer.id))
    client.claim(Verb.RESULT, 1)
    assert node.as_node().free_cpus == 1
    client.send(submit(2), submit(3))
    assert len(worker.runs()) + len(other.runs()) == 1


def test_a_task_that_goes_on_while_its_cpus_are_lent_over_books_the_node_for_a_while(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    outer = worker.run()
    inner = within(broker, worker)
    inner.send(submit(1), submit(2), lend(1))
    other = broker.started(node)
    run = other.run()
    inner.send(lend(0), lend(0))
    assert node.as_node().free_cpus == -1
    other.send(done(run.id))
    inner.claim(Verb.RESULT, 1)
    other.nothing()
    worker.send(done(outer.id))
    client.claim(Verb.RESULT, 1)
    assert broker.counts()["running"] == 1
    broker.abandon()


def test_a_task_that_ends_while_it_is_lent_leaves_nothing_lent(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    inner = within(broker, worker)
    inner.send(lend(1))
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    inner.send(lend(0))
    inner.send(lend(1))
    assert node.as_node().free_cpus == 1
    client.send(submit(2))
    worker.run()


def test_what_was_put_behind_a_task_that_waits_is_recalled_at_once(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT)
    client.send(submit(2), submit(3), submit(4))
    runs = worker.runs()
    within(broker, worker).send(lend(1))
    assert [node.claim(Verb.RECALL).id for _ in range(2)] == [runs[2].id, runs[1].id]
    node.send([Verb.RECALLED, runs[2].id, 1, None, 0], [Verb.RECALLED, runs[1].id, 1, None, 0])
    other = broker.started(node)
    assert [run.head[1:] for run in other.runs()] == [[3, 1], [4, 1]]
    worker.nothing()


def test_tasks_within_tasks_never_stand_still(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=2)
    client.send(*[submit(seq) for seq in range(1, 5)])
    workers: list[Link] = []
    inners: list[tuple[Link, Link, int]] = []
    for _ in range(8):
        while node.records:
            workers.append(broker.started(node))
        for worker in workers:
            for run in worker.runs():
                inner = within(broker, worker)
                inner.send(submit(1), lend(1))
                inners.append((worker, inner, run.id))
        if len(inners) >= 8:
            break
    assert len(workers) >= 5, "others are started beside those that wait"
    assert len(inners) >= 8, "the tasks inside have begun, and their own"
    broker.abandon()


def test_only_a_worker_with_a_task_can_lend(broker: Recorder) -> None:
    node = broker.node()
    worker = broker.worker(node)
    within(broker, worker).send(lend(1))
    broker.client(within=b"nobody--").send(lend(1))
    broker.client(within=node.session).send(lend(1))
    broker.client().send(lend(1))
    assert node.as_node().free_cpus == 4


def test_a_worker_without_a_node_has_no_cpus_to_lend(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    worker.run()
    within(broker, worker).send(lend(1))
    assert not worker.as_worker().lent


def test_an_actor_lends_too_and_goes_on_taking_messages(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    client.send(define(2, actor="a", method="m"))
    client.send([Verb.SPAWN, 50, {"cls": "a:B", "name": "a", "concurrency": 2}, None, 0])
    actor = broker.started(node, role="actor")
    actor.send(done(actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1].id))
    client.claim(Verb.RESULT, 50)
    client.send(submit(1, 2, verb=Verb.ASK))
    actor.run()
    inner = within(broker, actor)
    inner.send(submit(1))
    worker = broker.started(node)
    worker.nothing()
    inner.send(lend(1))
    worker.run()
    client.send(submit(2, 2, verb=Verb.ASK))
    actor.run()
