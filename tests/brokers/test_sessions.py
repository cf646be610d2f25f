"""Sessions: coming, losing the link, coming back over another, leaving."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.core import Broker
from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder, define, done, exited, fail, hello, submit

BYE: Record = [Verb.BYE, 0, None, None, 0]

# ---------------------------------------------------------------------- HELLO


def test_a_welcome_says_what_holds_here(broker: Recorder) -> None:
    broker.mesh.about = {"address": "ipc://x", "pid": 7}
    link = broker.link()
    link.send(hello("client", b"session-", name="me"))
    head = link.claim(Verb.WELCOME, 0).head
    assert (head["omb"], head["version"], head["epoch"], head["session"]) == (1, "test", broker.mesh.epoch, b"session-")
    assert (head["name"], head["address"], head["pid"]) == ("me", "ipc://x", 7)
    assert "resumed" not in head
    assert head["limits"]["window_tasks"] == broker.mesh.limits.window_tasks


def test_a_hello_and_work_may_come_in_one_message(broker: Recorder) -> None:
    client, worker = broker.link(), broker.worker()
    client.send(hello("client", b"session-"), define(1), submit(1))
    client.claim(Verb.WELCOME)
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)


def test_who_says_no_hello_is_asked_for_one(broker: Recorder) -> None:
    link = broker.link()
    for _ in range(3):
        link.send(submit(1), submit(2))
        link.claim(Verb.ERROR, 0, error="ProtocolError", again=True)
        link.nothing()
    assert [event.what for event in broker.events] == ["stray"] * 3
    link.session = b"session-"
    link.send(hello("client", b"session-"))
    link.claim(Verb.WELCOME)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (None, "HELLO carries a map"),
        ({}, "the peer speaks OMB/None, this broker OMB/1"),
        ({"omb": 2}, "the peer speaks OMB/2, this broker OMB/1: both sides need the same major version"),
        ({"omb": 1}, "'session' must be 8 to 32 random bytes"),
        ({"omb": 1, "session": b"short"}, "'session' must be 8 to 32 bytes"),
        ({"omb": 1, "session": b"x" * 33}, "'session' must be 8 to 32 bytes"),
        ({"omb": 1, "session": "a string"}, "'session' must be 8 to 32 bytes"),
        ({"omb": 1, "session": b"session-"}, "'role' must be one of client, worker, actor, node"),
        ({"omb": 1, "session": b"session-", "role": ["client"]}, "'role' must be one of"),
        ({"omb": 1, "session": b"session-", "role": "client", "name": ""}, "'name' must be"),
        ({"omb": 1, "session": b"session-", "role": "client", "pid": -1}, "'pid' must be"),
        ({"omb": 1, "session": b"session-", "role": "client", "resume": 1}, "'resume' must be"),
        ({"omb": 1, "session": b"session-", "role": "client", "received": "x"}, "'received' must be"),
        ({"omb": 1, "session": b"session-", "role": "client", "within": "x"}, "'within' must be"),
        ({"omb": 1, "session": b"session-", "role": "worker", "devices": "gpu"}, "'devices' must be"),
        ({"omb": 1, "session": b"session-", "role": "worker", "running": 5}, "'running' must be"),
        ({"omb": 1, "session": b"session-", "role": "worker", "running": [-1]}, "'running' must be"),
        ({"omb": 1, "session": b"session-", "role": "worker", "credits": "many"}, "'credits' must be"),
        ({"omb": 1, "session": b"session-", "role": "worker", "node": [1]}, "'node' must be"),
        ({"omb": 1, "session": b"session-", "role": "actor"}, "'name' must be its name"),
        ({"omb": 1, "session": b"session-", "role": "node", "cpus": "x"}, "'cpus' must be"),
        ({"omb": 1, "session": b"session-", "role": "node", "gpus": [1]}, "'gpus' must be"),
        ({"omb": 1, "session": b"session-", "role": "node", "memory": 1.5}, "'memory' must be"),
        ({"omb": 1, "session": b"session-", "role": "node", "labels": []}, "'labels' must be"),
        ({"omb": 1, "session": b"session-", "role": "node", "workers": -1}, "'workers' must be"),
    ],
)
def test_a_wrong_hello_is_refused_and_says_why(broker: Recorder, head: Any, expected: str) -> None:
    link = broker.link()
    link.send([Verb.HELLO, 9, head, None, 0])
    error = link.claim(Verb.ERROR, 9, error="ProtocolError", again=False)
    assert expected in error.head["message"]
    assert not broker.mesh.sessions


@pytest.mark.parametrize("role", ["worker", "actor", "node"])
def test_a_req_peer_is_a_client(broker: Recorder, role: str) -> None:
    link = broker.link(lockstep=True)
    link.send(hello(role, b"session-", name="x"))
    assert "use a DEALER" in link.claim(Verb.ERROR).head["message"]


def test_a_session_goes_on_as_it_began(broker: Recorder) -> None:
    client, asker = broker.client({}), broker.client({}, lockstep=True)
    for link, lockstep in ((client, True), (asker, False)):
        other = broker.link(lockstep=lockstep)
        other.send(hello("client", link.session))
        assert "began as the other of DEALER and REQ" in other.claim(Verb.ERROR).head["message"]


def test_sessions_are_bounded() -> None:
    broker = Recorder(sessions=2)
    broker.client()
    broker.client()
    link = broker.link()
    link.send(hello("client", b"session-"))
    link.claim(Verb.ERROR, error="CapacityExceeded")
    broker.finish()


def test_a_session_belongs_to_one_role(broker: Recorder) -> None:
    client, link = broker.client(), broker.link()
    link.send(hello("worker", client.session))
    assert "is a client's, not a worker's" in link.claim(Verb.ERROR).head["message"]
    client.send([Verb.PING, 1, None, None, 0])
    client.claim(Verb.PONG)


def test_a_second_hello_on_the_same_link_changes_nothing(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1))
    client.send(hello("client", client.session))
    client.claim(Verb.WELCOME)
    assert broker.counts() == {"submitted": 1, "queued": 1}


def test_another_session_on_the_same_link_takes_it_over(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1))
    client.send(hello("client", b"another-session"))
    client.claim(Verb.WELCOME)
    assert broker.mesh.sessions[client.session].route is None
    broker.step(31)
    assert broker.counts() == {"submitted": 1, "cancelled": 1, "dropped": 1}


def test_a_peer_is_announced_with_its_process(broker: Recorder) -> None:
    link = broker.link()
    link.send(hello("client", b"session-", name="me", pid=42, boot="b", host="h"))
    link.claim(Verb.WELCOME)
    (event,) = broker.events
    assert (event.what, event.peer, event.session) == ("joined", "client me", b"session-")
    assert (event.pid, event.boot) == (42, "b")


def test_a_child_is_its_nodes_to_watch(broker: Recorder) -> None:
    broker.peer("worker", node=b"node-session", pid=42)
    broker.peer("worker", pid=43)
    assert [event.pid for event in broker.events] == [0, 43]


# ---------------------------------------------------------------------- the link of a client


@pytest.mark.parametrize("resume", [True, False])
def test_a_client_comes_back_and_goes_on(broker: Recorder, resume: bool) -> None:
    client, worker = broker.client({}, resume=resume), broker.worker()
    client.send(submit(1), submit(2))
    client.break_link()
    worker.send(done(worker.run().id))
    worker.send(done(worker.run().id))
    assert broker.counts() == {"submitted": 2, "done": 2}
    broker.step(29)
    back = client.relink("client")
    back.claim(Verb.WELCOME)
    back.claim_all(Verb.RESULT, Verb.RESULT)
    back.send(submit(3))
    worker.send(done(worker.run().id))
    back.claim(Verb.RESULT, 3)
    broker.step(40)
    assert broker.whats("returned") == [""]
    assert broker.whats("left") == []


def test_what_was_lost_with_the_link_comes_again_once_and_in_order(broker: Recorder) -> None:
    client = broker.client({"actor": "a", "method": "m", "stream": True}, resume=True)
    actor = broker.peer("actor", "a", credits=8)
    client.send(submit(1, verb=Verb.ASK))
    run = actor.run()
    actor.send([Verb.CHUNK, run.id, None, b"1", 0])
    client.claim(Verb.CHUNK)
    client.break_link(noticed=False)
    actor.send([Verb.CHUNK, run.id, None, b"2", 1], blobs=[b"blob"])
    actor.send([Verb.CHUNK, run.id, None, b"3", 0])
    client.send([Verb.CREDIT, 1, 5, None, 0])
    back = client.relink("client")
    back.claim(Verb.WELCOME, resumed=True, received=2)
    assert [(record.body, record.blobs) for record in back.claim_all()] == [(b"2", [b"blob"]), (b"3", [])]
    actor.claim(Verb.CREDIT, run.id)
    actor.send([Verb.CHUNK, run.id, None, b"4", 0], done(run.id))
    back.claim_all(Verb.CHUNK, Verb.RESULT)


def test_a_second_hello_on_the_new_link_repeats_nothing(broker: Recorder) -> None:
    client, worker = broker.client({}, resume=True), broker.worker()
    client.send(submit(1))
    client.break_link(noticed=False)
    worker.send(done(worker.run().id))
    link = broker.link()
    link.session = client.session
    again = hello("client", client.session, resume=True, received=0)
    link.send(again, step=False)
    link.send(again)
    link.claim_all(Verb.WELCOME, Verb.RESULT)


def test_a_client_that_got_more_than_was_sent_makes_no_sense(broker: Recorder) -> None:
    client = broker.client({}, resume=True)
    client.send(submit(1))
    client.break_link()
    link = broker.link()
    link.send(hello("client", client.session, resume=True, received=99))
    link.claim(Verb.ERROR, error="ProtocolError", again=False)
    assert broker.counts() == {"submitted": 1, "queued": 1}
    client.relink("client").claim(Verb.WELCOME, resumed=True)


def test_a_client_that_was_given_up_is_told_that_it_begins_anew(broker: Recorder) -> None:
    client = broker.client({}, resume=True)
    client.send(submit(1))
    client.break_link()
    broker.step(31)
    back = client.relink("client")
    back.claim(Verb.WELCOME, resumed=False, received=0)
    back.send(define(1), submit(1))
    assert broker.counts() == {"submitted": 2, "queued": 1, "cancelled": 1, "dropped": 1}


def test_messages_over_the_old_link_are_stale(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1))
    client.break_link()
    client.relink("client").claim(Verb.WELCOME)
    client.broken = False
    client.send(submit(2))
    client.claim(Verb.ERROR, again=True)
    assert broker.counts() == {"submitted": 1, "queued": 1}


def test_a_client_that_comes_back_before_the_loss_was_noticed(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    back = client.relink("client")
    back.claim(Verb.WELCOME)
    worker.send(done(worker.run().id))
    back.claim(Verb.RESULT, 1)
    client.nothing()


def test_a_session_comes_back_over_a_link_that_another_had(broker: Recorder) -> None:
    client, other = broker.client({}), broker.client({})
    client.send(submit(1))
    other.send(submit(1))
    client.break_link()
    other.send(hello("client", client.session))
    other.claim(Verb.WELCOME)
    assert other.as_client().route is None
    assert broker.mesh.routes[other.route].session == client.session


def test_a_client_that_did_nothing_is_not_waited_for(broker: Recorder) -> None:
    client = broker.client()
    client.break_link()
    assert client.session not in broker.mesh.sessions


def test_losing_the_link_twice_waits_from_the_second_time(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1))
    client.break_link()
    broker.step(20)
    back = client.relink("client")
    back.claim(Verb.WELCOME)
    back.break_link()
    broker.step(20)
    assert client.session in broker.mesh.sessions
    broker.step(11)
    assert client.session not in broker.mesh.sessions


# ---------------------------------------------------------------------- the link of a worker


def working(broker: Recorder, tasks: int = 1, **kind: Any) -> tuple[Link, Link, Link]:
    """Return a client, a node, and its worker that was given ``tasks`` short tasks."""
    client, node = broker.client(kind), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(100))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT, 100)
    client.send(*[submit(seq) for seq in range(1, tasks + 1)])
    return client, node, worker


@pytest.mark.parametrize("resume", [True, False])
def test_a_lost_worker_is_given_nothing_until_it_is_back(broker: Recorder, resume: bool) -> None:
    client, worker = broker.client({}), broker.worker(resume=resume)
    worker.break_link()
    client.send(submit(1))
    assert broker.counts()["queued"] == 1
    back = worker.relink("worker")
    back.claim(Verb.WELCOME)
    back.send(done(back.run().id))
    client.claim(Verb.RESULT, 1)


def test_what_a_lost_worker_has_not_begun_is_recalled(broker: Recorder) -> None:
    client, node, worker = working(broker, 3)
    runs = worker.runs()
    worker.break_link()
    recalls = node.claim_all(Verb.RECALL, Verb.RECALL, Verb.RECALL)
    assert [recall.id for recall in recalls] == [run.id for run in reversed(runs)]
    node.send([Verb.RECALLED, runs[0].id, 0, None, 0], *[[Verb.RECALLED, run.id, 1, None, 0] for run in runs[1:]])
    assert broker.counts() == {"submitted": 4, "running": 1, "queued": 2, "done": 1}
    back = worker.relink("worker")
    back.claim(Verb.WELCOME)
    back.send(done(runs[0].id), fail(runs[1].id, "Revoked"), fail(runs[2].id, "Revoked"))
    assert [run.head[1:] for run in back.runs()] == [[2, 1], [3, 1]]
    client.claim(Verb.RESULT, 1)
    assert "late" not in broker.counts()


def test_a_worker_that_counts_goes_on_where_it_was(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker(resume=True)
    client.send(submit(1))
    first = worker.run()
    worker.break_link(noticed=False)
    worker.send(done(first.id))
    client.send(submit(2))
    back = worker.relink("worker", running=[])
    back.claim(Verb.WELCOME, resumed=True)
    client.claim(Verb.RESULT, 1)
    back.send(done(back.run().id))
    client.claim(Verb.RESULT, 2)
    assert broker.counts() == {"submitted": 2, "done": 2}


def test_a_worker_that_does_not_count_keeps_what_it_says_that_it_holds(broker: Recorder) -> None:
    client, node, worker = working(broker, 3)
    runs = worker.runs()
    worker.break_link()
    node.claim_all(*[Verb.RECALL] * 3)
    back = worker.relink("worker", running=[runs[1].id])
    back.claim(Verb.WELCOME)
    assert [run.head[1:] for run in back.runs()] == [[1, 2], [3, 2]]
    back.send(done(runs[0].id), done(runs[1].id))
    client.claim(Verb.RESULT, 2)
    assert broker.counts()["late"] == 1


def test_a_worker_that_does_not_say_what_it_holds_keeps_all(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    worker.break_link()
    back = worker.relink("worker")
    back.claim(Verb.WELCOME)
    back.send(done(run.id))
    client.claim(Verb.RESULT, 1)


def test_a_worker_on_its_own_that_stays_away_is_given_up(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker(resume=True)
    client.send(submit(1))
    run = worker.run()
    worker.break_link()
    broker.step(31)
    other = broker.worker()
    assert other.run().head[1:] == [1, 2]
    back = worker.relink("worker", running=[run.id])
    back.claim(Verb.WELCOME, resumed=False)
    back.channel = None
    back.send(done(run.id))
    assert broker.counts()["late"] == 1


def test_a_lost_worker_of_a_living_node_is_halted_after_the_grace(broker: Recorder) -> None:
    _, node, worker = working(broker)
    run = worker.run()
    worker.break_link()
    node.claim(Verb.RECALL)
    broker.step(29)
    node.nothing()
    broker.step(2)
    node.claim(Verb.HALT, session=worker.session)
    assert broker.counts()["running"] == 1, "nothing is run again before the old process is gone"
    node.send(exited(worker, begun=run.id, last=run.id))
    assert broker.started(node).run().head[1:] == [1, 2]


def test_a_node_that_does_not_report_a_halted_worker_is_not_waited_for_for_ever(broker: Recorder) -> None:
    _, node, worker = working(broker)
    worker.run()
    worker.break_link()
    node.claim(Verb.RECALL)
    broker.step(61.1)
    node.claim(Verb.HALT)
    assert broker.started(node).run().head[1:] == [1, 2]


def test_the_broker_sees_a_workers_death_and_waits_for_its_nodes_word(broker: Recorder) -> None:
    _, node, worker = working(broker, 2)
    runs = worker.runs()
    broker.broker.peer_died(worker.session, broker.now, "its process ended")
    broker.step()
    assert broker.counts()["running"] == 2
    broker.broker.peer_died(worker.session, broker.now, "its process ended")
    node.send(exited(worker, begun=runs[0].id, last=runs[0].id))
    assert [run.head[1:] for run in broker.started(node).runs()] == [[1, 2], [2, 1]]


def test_a_worker_says_bye_and_its_node_says_the_rest(broker: Recorder) -> None:
    _, node, worker = working(broker, 2)
    runs = worker.runs()
    worker.send(fail(runs[1].id, "Revoked"), BYE)
    node.send(exited(worker, begun=runs[0].id, last=runs[0].id))
    assert [run.head[1:] for run in broker.started(node).runs()] == [[1, 2], [2, 1]]


def test_a_bye_without_a_node_ends_the_session_at_once(broker: Recorder) -> None:
    client, worker = broker.client({"retries": 0}), broker.worker()
    client.send(submit(1))
    worker.run()
    worker.send(BYE)
    failed = client.claim(Verb.FAILED, 1, error="WorkerDied", state="failed")
    assert "it said BYE" in failed.head["message"]


# ---------------------------------------------------------------------- workers and their nodes


def test_a_worker_may_come_before_its_node(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1))
    worker = broker.peer("worker", node=b"node-session", credits=8)
    worker.nothing()
    broker.peer("node", "late", session=b"node-session", workers=1)
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)


def test_a_worker_whose_node_never_comes_is_given_up(broker: Recorder) -> None:
    worker = broker.peer("worker", node=b"node-session")
    broker.step(31)
    worker.claim(Verb.STOP)
    assert worker.session not in broker.mesh.sessions


def test_a_worker_that_an_earlier_broker_had_asked_for_is_ended(broker: Recorder) -> None:
    node = broker.node(gpus=["gpu0"])
    worker = broker.worker(node, command=77)
    node.claim(Verb.HALT, session=worker.session)
    client = broker.client({})
    client.send(submit(1))
    worker.nothing()
    node.claim(Verb.START)


def test_a_second_process_for_one_start_is_ended(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node()
    client.send(submit(1))
    worker = broker.started(node)
    worker.run()
    other = broker.worker(node, command=worker.command)
    node.claim(Verb.HALT, session=other.session)


def test_a_dead_child_does_not_come_back(broker: Recorder) -> None:
    node = broker.node()
    node.send(exited(b"child-session", reason="it was killed"))
    link = broker.link()
    link.send(hello("worker", b"child-session", node=node.session))
    assert "it was killed" in link.claim(Verb.ERROR, error="Unreachable", again=False).head["message"]


def test_dead_children_are_not_remembered_without_end(broker: Recorder) -> None:
    for number in range(5000):
        broker.mesh.mark_dead(b"%08d" % number, "it was killed")
    assert len(broker.mesh.dead) == 4096


# ---------------------------------------------------------------------- nodes


def test_a_node_comes_back_and_gets_what_it_missed(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(resume=True)
    node.break_link(noticed=False)
    client.send(submit(1))
    back = node.relink("node")
    back.claim(Verb.WELCOME, resumed=True)
    worker = broker.started(back)
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)


def test_what_a_node_said_over_a_broken_link_is_not_lost(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1, resume=True)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    node.break_link(noticed=False)
    node.send(exited(worker, begun=run.id, last=run.id))
    back = node.relink("node")
    back.claim(Verb.WELCOME, resumed=True)
    assert broker.started(back).run().head[1:] == [1, 2]


def test_a_lost_node_is_asked_for_nothing_and_its_workers_go_on(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node()
    worker = broker.worker(node)
    node.break_link()
    client.send(submit(1), submit(2))
    for seq in (1, 2):
        worker.send(done(worker.run().id))
        client.claim(Verb.RESULT, seq)


def test_work_that_waited_for_a_lost_node_is_placed_when_it_is_back(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node()
    node.break_link()
    client.send(submit(1))
    back = node.relink("node")
    back.claim(Verb.WELCOME)
    broker.started(back).run()


def test_a_node_that_stays_away_is_given_up_and_its_workers_begin_anew(broker: Recorder) -> None:
    _, node, worker = working(broker, 2)
    worker.runs()
    node.break_link()
    broker.step(31)
    assert not broker.mesh.nodes
    assert broker.counts() == {"submitted": 3, "queued": 2, "done": 1, "redelivered": 2}
    worker.claim(Verb.ERROR, 0, again=True)
    worker.send(hello("worker", worker.session, node=node.session, credits=8))
    worker.claim(Verb.WELCOME)
    worker.nothing()
    back = node.relink("node")
    back.claim(Verb.WELCOME)
    assert [run.head[1:] for run in worker.runs()] == [[1, 2], [2, 2]]


def test_a_node_that_is_known_to_be_dead_is_not_waited_for(broker: Recorder) -> None:
    client, node, worker = working(broker, retries=0)
    worker.run()
    broker.broker.peer_died(node.session, broker.now, "its process ended")
    broker.step()
    failed = client.claim(Verb.FAILED, 1, error="WorkerDied")
    assert "its node node is gone: its process ended" in failed.head["message"]


def test_a_node_and_its_workers_attach_to_a_broker_that_was_restarted(broker: Recorder) -> None:
    _, node, worker = working(broker)
    run = worker.run()
    later = Recorder()
    later.broker = Broker(b"\1\1\1later", later.now)
    later.mesh = later.broker.mesh
    fresh = later.link()
    fresh.session = worker.session
    fresh.send(done(run.id))
    fresh.claim(Verb.ERROR, again=True)
    fresh.send(hello("worker", worker.session, node=node.session, credits=64, running=[run.id]))
    fresh.claim(Verb.WELCOME)
    later.peer("node", session=node.session, cpus=1, workers=1)
    fresh.send(done(run.id))
    assert later.counts() == {"late": 1}
    newer = later.client({})
    newer.send(submit(1))
    again = fresh.run()
    assert again.id != run.id
    fresh.send(done(again.id))
    newer.claim(Verb.RESULT, 1)
    later.finish()
