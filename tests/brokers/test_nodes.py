"""What nodes say of their children, and what follows for what those held."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.protocol import Verb
from tests.brokers.support import Recorder, done, exited, submit


@pytest.mark.parametrize(
    "head",
    [
        None,
        "exited",
        {},
        {"event": "born"},
        {"event": "exited", "session": "text"},
        {"event": "exited", "session": b"session-", "last": "x"},
        {"event": "exited", "session": b"session-", "begun": -1},
        {"event": "exited", "session": b"session-", "aborted": 1.5},
        {"event": "exited", "session": b"session-", "oom": "yes"},
        {"event": "exited", "session": b"session-", "restart_in": "soon"},
        {"event": "exited", "session": b"session-", "cause": 5},
        {"event": "exited", "session": b"session-", "role": 5},
        {"event": "exited", "session": b"session-", "name": ["n"]},
    ],
)
def test_a_child_that_makes_no_sense_changes_nothing(broker: Recorder, head: Any) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0"])
    client.send(submit(1))
    start = node.claim(Verb.START)
    node.send([Verb.CHILD, start.id, head, None, 0])
    node.claim(Verb.ERROR, start.id, error="ProtocolError")
    assert node.as_node().holdings[start.id].devices == ("g0",)


def test_a_birth_needs_no_answer(broker: Recorder) -> None:
    node = broker.node()
    node.send([Verb.CHILD, 0, {"event": "started", "session": b"session-", "name": "x", "role": "worker"}, None, 0])
    node.nothing()


def test_a_child_that_nobody_knows_may_exit(broker: Recorder) -> None:
    node = broker.node()
    node.send(exited(b"nobody--"), exited(b"nobody--"), exited(b"", session=None))
    assert broker.counts() == {}


def test_an_exit_is_heard_once(broker: Recorder) -> None:
    client, node = broker.client({"retries": 3}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    node.send(exited(worker, begun=run.id, last=run.id), exited(worker, begun=run.id, last=run.id))
    assert broker.started(node).run().head[1:] == [1, 2]
    assert broker.counts()["redelivered"] == 1


def test_a_node_cannot_bury_the_child_of_another(broker: Recorder) -> None:
    client, node, other = broker.client({}), broker.node(cpus=1), broker.node("other", cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    other.send(exited(worker, last=run.id))
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)


def test_an_exit_before_its_hello(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    client.send(submit(1))
    start = node.claim(Verb.START)
    node.send(exited(b"child-session", start.id))
    assert broker.mesh.default.starting == 0
    broker.step(0.2)
    assert broker.started(node).run().head[1:] == [1, 1]


def test_what_a_child_held_is_given_back_by_its_session_where_its_number_is_not_said(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0"])
    client.send(submit(1))
    worker = broker.started(node)
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)
    worker.command = 0
    node.send(exited(worker))
    assert node.as_node().free_gpus == {"g0": 1.0}


def test_what_a_child_held_is_given_back_even_where_it_was_buried_before(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0"])
    client.send(submit(1))
    worker = broker.started(node)
    worker.run()
    worker.break_link()
    broker.step(61)
    node.claim_all(Verb.RECALL, Verb.HALT)
    assert worker.session not in broker.mesh.sessions
    assert node.as_node().free_gpus == {"g0": 0.0}
    node.send(exited(worker))
    assert broker.started(node).run().head[1:] == [1, 2]


def test_a_base_worker_that_is_not_restarted_is_not_expected_any_more(broker: Recorder) -> None:
    node = broker.node(cpus=2, workers=2)
    worker = broker.worker(node)
    assert node.as_node().coming == 1
    node.send(exited(worker, restart_in=0.1), exited(b"other-child"))
    assert node.as_node().coming == 1


def test_a_base_bounds_the_default_shape_and_no_other(broker: Recorder) -> None:
    client, node = broker.client({}, {"cpus": 2}), broker.node(cpus=8, workers=1)
    worker = broker.worker(node)
    client.send(*[submit(seq, 1) for seq in range(1, 10)], *[submit(seq, 2) for seq in range(10, 20)])
    worker.run()
    starts = node.claim_all(*[Verb.START] * 4)
    assert {start.head["cpus"] for start in starts} == {2}


def test_all_of_a_dead_nodes_children_are_lost_and_their_places_too(broker: Recorder) -> None:
    client, node = broker.client({"retries": 0}, {"gpus": 1}), broker.node(cpus=2, gpus=["g0"], workers=1)
    first, unborn = broker.worker(node), None
    client.send(submit(1, 1), submit(2, 2))
    first.run()
    unborn = node.claim(Verb.START)
    client.send([Verb.SPAWN, 3, {"cls": "a:B", "name": "a"}, None, 0])
    actor = broker.started(node, role="actor")
    actor.claim_all(Verb.DEFINE, Verb.SPAWN)
    node.send([Verb.BYE, 0, None, None, 0])
    assert unborn.head["role"] == "worker"
    failed = client.claim(Verb.FAILED, 1, error="WorkerDied")
    assert "its node node is gone: it said BYE" in failed.head["message"]
    client.claim(Verb.FAILED, 3, error="WorkerDied")
    assert set(broker.mesh.sessions) == {client.session}
    assert not broker.mesh.actors
    assert broker.counts() == {"submitted": 2, "queued": 1, "failed": 1}
