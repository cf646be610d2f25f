"""Recall: short work behind long work goes to a worker that idles, and no timer runs where nothing waits."""

from __future__ import annotations

from omnibus.protocol import Verb
from tests.brokers.support import Claimed, Link, Recorder, done, fail, submit

STALL = 0.05


def stuck(broker: Recorder, *, supervised: bool = True) -> tuple[Link, Link | None, Link, Link, list[Claimed]]:
    """Return a client, a node, a worker with one long and three short tasks, an idle one, and the runs of the first."""
    client = broker.client({})
    node = broker.node(cpus=2) if supervised else None
    worker = broker.worker(node)
    client.send(submit(100))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT)
    idle = broker.worker(node)
    client.send(*[submit(seq) for seq in range(1, 9)])
    for run in idle.runs():
        idle.send(done(run.id))
        client.claim(Verb.RESULT)
    return client, node, worker, idle, worker.runs()


def test_what_has_not_begun_is_recalled_for_the_one_that_idles(broker: Recorder) -> None:
    client, node, worker, idle, runs = stuck(broker)
    assert node is not None
    assert len(runs) == 4
    broker.step(STALL - 0.01)
    node.nothing()
    broker.step(0.01)
    recalls = node.claim_all(Verb.RECALL, Verb.RECALL, Verb.RECALL)
    assert [recall.id for recall in recalls] == [run.id for run in reversed(runs[1:])]
    assert all(recall.head == {"session": worker.session} for recall in recalls)
    node.send(*[[Verb.RECALLED, recall.id, 1, None, 0] for recall in recalls])
    again = idle.runs()
    assert [run.head[1:] for run in again] == [[run.head[1], 1] for run in runs[1:]], "for free, and in their order"
    idle.send(*[done(run.id) for run in again])
    client.claim_all(*[Verb.RESULT] * 3)
    worker.send(done(runs[0].id), *[fail(run.id, "Revoked") for run in runs[1:]])
    client.claim(Verb.RESULT)
    assert broker.counts() == {"submitted": 9, "done": 9}


def test_what_has_begun_after_all_goes_on(broker: Recorder) -> None:
    client, node, worker, idle, runs = stuck(broker)
    assert node is not None
    broker.step(STALL)
    node.claim_all(Verb.RECALL, Verb.RECALL, Verb.RECALL)
    worker.send(done(runs[0].id))
    client.claim(Verb.RESULT)
    node.send(*[[Verb.RECALLED, run.id, 0, None, 0] for run in runs[1:]])
    idle.nothing()
    worker.send(*[done(run.id) for run in runs[1:]])
    client.claim_all(*[Verb.RESULT] * 3)


def test_each_is_recalled_once(broker: Recorder) -> None:
    _, node, _, _, _ = stuck(broker)
    assert node is not None
    broker.step(STALL)
    node.claim_all(Verb.RECALL, Verb.RECALL, Verb.RECALL)
    broker.step(5)
    node.nothing()
    assert broker.mesh.timers == []


def test_a_worker_that_does_not_get_on_is_given_nothing_more(broker: Recorder) -> None:
    client, node, worker, idle, runs = stuck(broker)
    assert node is not None
    broker.step(1)
    node.claim_all(Verb.RECALL, Verb.RECALL, Verb.RECALL)
    client.send(*[submit(seq) for seq in range(20, 30)])
    worker.nothing()
    assert len(idle.runs()) == 10
    worker.send(done(runs[0].id))
    client.claim(Verb.RESULT)
    client.send(*[submit(seq) for seq in range(30, 40)])
    assert worker.runs()
    idle.runs()


def test_without_a_node_the_worker_itself_is_asked(broker: Recorder) -> None:
    client, _, worker, idle, runs = stuck(broker, supervised=False)
    broker.step(STALL)
    assert [record.id for record in worker.claim_all(Verb.REVOKE, Verb.REVOKE, Verb.REVOKE)] == [
        run.id for run in reversed(runs[1:])
    ]
    worker.send(done(runs[0].id), *[fail(run.id, "Revoked") for run in reversed(runs[1:])])
    client.claim(Verb.RESULT)
    assert len(idle.runs()) + len(worker.runs()) == 3


def test_progress_puts_it_off(broker: Recorder) -> None:
    client, node, worker, _, runs = stuck(broker)
    assert node is not None
    for run in runs[:2]:
        broker.step(STALL - 0.01)
        worker.send(done(run.id))
        client.claim(Verb.RESULT)
    broker.step(STALL - 0.01)
    node.nothing()
    broker.step(0.01)
    node.claim(Verb.RECALL, runs[3].id)


def test_nobody_is_asked_while_all_are_busy_until_one_idles(broker: Recorder) -> None:
    client = broker.client({})
    node = broker.node(cpus=2)
    worker, other = broker.worker(node), broker.worker(node)
    client.send(submit(100), submit(101))
    for link in (worker, other):
        run = link.run()
        link.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim_all()
    client.send(*[submit(seq) for seq in range(1, 5)])
    first, second = worker.runs(), other.runs()
    broker.step(10)
    node.nothing()
    assert broker.mesh.timers == [], "nothing is looked at meanwhile"
    other.send(*[done(run.id) for run in second])
    client.claim_all()
    broker.step(STALL)
    node.claim(Verb.RECALL, first[1].id)


def test_a_recall_of_something_else_is_nothing(broker: Recorder) -> None:
    node = broker.node()
    node.send([Verb.RECALLED, 12345, 1, None, 0], [Verb.RECALLED, 12345, 0, None, 0])
    node.send([Verb.RECALLED, 12345, 2, None, 0], [Verb.RECALLED, 12345, None, None, 0])
    node.claim_all(Verb.ERROR, Verb.ERROR)


def test_one_long_and_a_hundred_short_tasks_on_two_workers(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=2)
    workers = [broker.worker(node, credits=1000), broker.worker(node, credits=1000)]
    client.send(submit(1000), submit(1001))
    for link in workers:
        run = link.run()
        link.send([Verb.TIMED, run.head[0], 20_000, None, 0], done(run.id))
    client.claim_all()
    client.send(*[submit(seq) for seq in range(1, 102)])
    finished: set[int] = set()
    for _ in range(20):
        for link in workers:
            for run in link.runs():
                if run.head[1] != 1:
                    link.send(done(run.id))
                    finished.add(run.head[1])
                elif link.records:
                    raise AssertionError("the long one was given work behind it once it was known to be long")
        broker.step(STALL)
        held = workers[0].as_worker().attempts
        for recall in node.claim_all():
            assert recall.id in held
            node.send([Verb.RECALLED, recall.id, 1, None, 0])
    client.claim_all()
    assert finished >= set(range(2, 102))
