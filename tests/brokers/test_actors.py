"""Actors: spawning, set-up, names, restarts, stopping, and those that live in someone else's process."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.actors import LIFE, ActorEntry
from omnibus.brokers.kinds import Shape
from omnibus.brokers.pools import Pool
from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder, define, done, exited, fail, hello, submit

ASK = {"actor": "a", "method": "m"}
BYE: Record = [Verb.BYE, 0, None, None, 0]


def spawn(seq: int = 1, body: bytes | None = b"args", **head: Any) -> Record:
    if "code" not in head:
        head.setdefault("cls", "module:Class")
    return [Verb.SPAWN, seq, head, body, 0]


def stop(seq: int, name: object, **more: Any) -> Record:
    return [Verb.STOP, seq, {"actor": name, **more}, None, 0]


def ask(seq: int, kind: int = 1) -> Record:
    return submit(seq, kind, verb=Verb.ASK)


def set_up(actor: Link, error: str | None = None) -> None:
    """Have the actor's process make the actor, or fail to."""
    setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1]
    actor.send(done(setup.id) if error is None else fail(setup.id, error))


def running(broker: Recorder, **head: Any) -> tuple[Link, Link, Link]:
    """Return a client with a kind of message, a node, and the ready actor ``a``."""
    client, node = broker.client(ASK), broker.node()
    client.send(spawn(50, name="a", **head))
    actor = broker.started(node, role="actor")
    set_up(actor)
    client.claim(Verb.RESULT, 50)
    return client, node, actor


def gone(actor: Link, **more: Any) -> Record:
    return exited(actor, name="a", role="actor", **more)


# ---------------------------------------------------------------------- spawning


def test_a_spawn_starts_a_process_that_makes_the_actor(broker: Recorder) -> None:
    client, node = broker.client(), broker.node(cpus=4, gpus=["g0", "g1"], memory=1000)
    more: dict[str, Any] = {"env": {"A": "b"}, "restart": {"max": 2, "base": 0.5}}
    client.send(spawn(3, name="a", cpus=2, gpus=1, memory=10, mailbox=7, concurrency=4, **more))
    start = node.records[0]
    assert start.head == {
        "name": "a", "role": "actor", "credits": 7, "env": {"A": "b"}, "restart": {"max": 2, "base": 0.5},
        "cpus": 2, "devices": ["g0"], "shape": [2, 1, 10],
    }  # fmt: skip
    actor = broker.started(node, role="actor")
    declared, setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)
    assert declared.id == 0
    assert setup.head == declared.head == {"cls": "module:Class", "name": "a", "concurrency": 4}
    assert setup.body == b"args"
    client.nothing()
    actor.send(done(setup.id))
    client.claim(Verb.RESULT, 3)
    entry = node.as_node()
    assert (entry.free_gpus, entry.free_memory) == ({"g0": 0.0, "g1": 1.0}, 990)


def test_a_shipped_class_comes_with_its_code(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    shipped = define(1, code=b"digest", body=b"pickle")
    client.send(shipped, [Verb.SPAWN, 2, {"code": b"digest"}, None, 1], blobs=[b"arguments"])
    actor = broker.started(node, role="actor")
    declared, setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)
    assert (declared.head["code"], declared.body) == (b"digest", b"pickle")
    assert setup.blobs == [b"arguments"]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, "names its class by either 'cls' or 'code'"),
        ({"cls": "a:B", "code": b"x"}, "names its class by either 'cls' or 'code'"),
        ({"code": b"unknown"}, "has not sent"),
        ({"cls": 5}, "'cls' must be"),
        ({"code": "text"}, "'code' must be"),
        ({"cls": "a:B", "name": ""}, "'name' must be"),
        ({"cls": "a:B", "anonymous": 1}, "'anonymous' must be"),
        ({"cls": "a:B", "mailbox": 0}, "'mailbox' must be"),
        ({"cls": "a:B", "concurrency": 0}, "'concurrency' must be"),
        ({"cls": "a:B", "env": ["A"]}, "'env' must be"),
        ({"cls": "a:B", "env": {"A": "x" * 70_000}}, "'env' must be"),
        ({"cls": "a:B", "restart": 3}, "SPAWN's 'restart' carries a map"),
        ({"cls": "a:B", "restart": {"max": "x"}}, "'max' must be"),
        ({"cls": "a:B", "gpus": 1.5}, "'gpus' must be"),
    ],
)
def test_a_wrong_spawn_says_why_and_starts_nothing(broker: Recorder, head: dict[str, Any], expected: str) -> None:
    client, node = broker.client(), broker.node()
    client.send([Verb.SPAWN, 1, head, None, 0])
    assert expected in client.claim(Verb.ERROR, 1, error="ProtocolError").head["message"]
    node.nothing()
    assert not broker.mesh.actors


def test_without_a_node_there_is_no_place(broker: Recorder) -> None:
    client = broker.client()
    client.send(spawn(1, name="a"))
    refusal = client.claim(Verb.FAILED, 1, error="CapacityExceeded", state="refused")
    assert "no node is up; start one with `omnibus node`" in refusal.head["message"]


def test_where_no_node_is_large_enough_the_refusal_says_what_there_is(broker: Recorder) -> None:
    client = broker.client()
    broker.node("small", cpus=2, gpus=["g0"])
    client.send(spawn(1, name="a", gpus=3))
    refusal = client.claim(Verb.FAILED, 1, error="CapacityExceeded", state="refused")
    free = "and no node has that free (small: cpus=2 gpus=1 of 1 memory=0)"
    assert f"asks for cpus=1 gpus=3, {free}" in refusal.head["message"]


def test_where_all_is_taken_by_actors_there_is_no_place(broker: Recorder) -> None:
    client, node = broker.client(), broker.node(gpus=["g0"])
    client.send(spawn(1, name="a", gpus=1), spawn(2, name="b", gpus=1))
    client.claim(Verb.FAILED, 2, error="CapacityExceeded", state="refused")
    node.claim(Verb.START, name="a")


def test_an_idle_worker_makes_room_for_an_actor(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0"])
    client.send(submit(1))
    worker = broker.started(node)
    run = worker.run()
    client.send(spawn(2, name="a", gpus=1))
    client.claim(Verb.FAILED, 2, error="CapacityExceeded", state="refused")
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    client.send(spawn(3, name="a", gpus=1), spawn(4, name="b", gpus=1), spawn(5, name="c", gpus=1))
    node.claim(Verb.HALT, session=worker.session)
    client.send(stop(6, "c"))
    client.claim(Verb.FAILED, 5, error="NotFound")
    client.claim(Verb.RESULT, 6)
    node.send(exited(worker))
    client.claim(Verb.FAILED, 4, error="CapacityExceeded", state="refused")
    set_up(broker.started(node, role="actor"))
    client.claim(Verb.RESULT, 3)


def test_an_actor_that_waits_for_room_loses_its_node(broker: Recorder) -> None:
    client, node = broker.client({"gpus": 1}), broker.node(gpus=["g0"])
    client.send(submit(1))
    worker = broker.started(node)
    worker.send(done(worker.run().id))
    client.send(spawn(3, name="a", gpus=1))
    node.claim(Verb.HALT)
    node.send(BYE)
    client.claim_all(Verb.RESULT, Verb.FAILED)


# ---------------------------------------------------------------------- set-up and names


def test_a_set_up_that_fails_reaches_the_spawner_and_ends_the_process(broker: Recorder) -> None:
    client, node = broker.client(ASK), broker.node(gpus=["g0"])
    client.send(spawn(1, name="a", gpus=1))
    actor = broker.started(node, role="actor")
    client.send(ask(2))
    setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1]
    actor.send(fail(setup.id, "SetupFailed", type="ValueError", traceback="..."))
    client.claim(Verb.FAILED, 2, error="SetupFailed")
    client.claim(Verb.FAILED, 1, error="SetupFailed", type="ValueError", traceback="...", state="failed")
    node.claim(Verb.HALT, session=actor.session)
    assert node.as_node().free_gpus == {"g0": 0.0}, "its process is not gone yet"
    actor.send(done(setup.id))
    node.send(gone(actor))
    assert node.as_node().free_gpus == {"g0": 1.0}
    assert broker.counts() == {"late": 1}


def test_a_process_that_dies_in_set_up_is_a_failed_set_up(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    client.send(spawn(1, name="a"))
    actor = broker.started(node, role="actor")
    actor.claim_all(Verb.DEFINE, Verb.SPAWN)
    node.send(gone(actor, reason="killed by SIGSEGV"))
    assert "killed by SIGSEGV" in client.claim(Verb.FAILED, 1, error="SetupFailed", state="failed").head["message"]


def test_a_process_that_never_comes_is_a_failed_set_up(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    client.send(spawn(1, name="a"))
    start = node.claim(Verb.START)
    node.send(exited(b"child-session", start.id, name="a", role="actor", reason="fork failed"))
    client.claim(Verb.FAILED, 1, error="SetupFailed", message="fork failed")
    assert not node.as_node().holdings


def test_messages_wait_for_the_set_up(broker: Recorder) -> None:
    client, node = broker.client(ASK), broker.node()
    client.send(spawn(1, name="a"), ask(2))
    actor = broker.started(node, role="actor")
    client.send(ask(3))
    set_up(actor)
    client.claim(Verb.RESULT, 1)
    for seq in (2, 3):
        run = actor.run()
        assert run.head[1] == seq
        actor.send(done(run.id))
        client.claim(Verb.RESULT, seq)
    assert broker.counts(messages=True) == {"submitted": 2, "done": 2}
    assert broker.counts() == {}


def test_a_name_is_held_by_one(broker: Recorder) -> None:
    client, _, _ = running(broker)
    client.send(spawn(60, name="a"))
    refusal = client.claim(Verb.FAILED, 60, error="AlreadyExists", state="refused")
    assert "an actor named 'a' is ready; stop it first, or pick another name" in refusal.head["message"]
    other = broker.client()
    other.send(spawn(50, name="a"))
    other.claim(Verb.FAILED, 50, error="AlreadyExists")


def test_the_same_request_again_is_the_same_actor(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    client.send(spawn(1, name="a"), spawn(1, name="a"), spawn(2), spawn(2))
    set_up(broker.started(node, role="actor"))
    set_up(broker.started(node, role="actor"))
    client.claim_all(Verb.RESULT, Verb.RESULT)
    client.send(spawn(1, name="a"))
    client.claim(Verb.RESULT, 1)


def test_an_actor_that_is_not_there(broker: Recorder) -> None:
    client = broker.client(ASK, {**ASK, "tell": True})
    client.send(ask(1), submit(2, 2, verb=Verb.TELL))
    client.claim(Verb.FAILED, 1, error="NotFound", state="refused")
    assert broker.counts(messages=True) == {"refused": 2}


# ---------------------------------------------------------------------- messages


def test_one_message_at_a_time_in_order_whatever_its_method(broker: Recorder) -> None:
    client, _, actor = running(broker)
    client.send(define(2, actor="a", method="n"), ask(1), ask(2, 2), ask(3))
    for seq in (1, 2, 3):
        run = actor.run()
        assert run.head[1] == seq
        actor.send(done(run.id))
        client.claim(Verb.RESULT, seq)


def test_a_concurrent_actor_gets_several_at_a_time_even_long_ones(broker: Recorder) -> None:
    client, _, actor = running(broker, concurrency=3)
    client.send(*[ask(seq) for seq in range(1, 6)])
    runs = actor.runs()
    assert len(runs) == 3
    broker.step(10)
    actor.send(done(runs[1].id))
    assert actor.run().head[1] == 4
    client.claim(Verb.RESULT, 2)


def test_the_mailbox_bounds_what_an_actor_holds(broker: Recorder) -> None:
    client = broker.client(ASK)
    actor = broker.peer("actor", "a", credits=2)
    client.send(ask(1))
    run = actor.run()
    actor.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT, 1)
    client.send(*[ask(seq) for seq in range(2, 7)])
    assert len(actor.runs()) == 2


def test_an_actor_does_not_wait_for_cpus(broker: Recorder) -> None:
    client, node = broker.client(ASK, {}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(spawn(50, name="a"), *[submit(seq, 2) for seq in range(10, 20)])
    worker.run()
    actor = broker.started(node, role="actor")
    set_up(actor)
    client.claim(Verb.RESULT, 50)
    client.send(ask(1))
    actor.send(done(actor.run().id))
    client.claim(Verb.RESULT, 1)


# ---------------------------------------------------------------------- restarts


def test_a_restart_keeps_the_queue(broker: Recorder) -> None:
    client, node, actor = running(broker, restart={"max": 3})
    client.send(ask(1), ask(2))
    run = actor.run()
    node.send(gone(actor, begun=run.id, last=run.id, restart_in=0.1))
    client.claim(Verb.FAILED, 1, error="WorkerDied", state="failed")
    client.send(ask(3))
    assert broker.mesh.actors["a"].state == "restarting"
    again = broker.peer("actor", "a", node=node.session, command=actor.command, credits=8, incarnation=1)
    again.command = actor.command
    set_up(again)
    for seq in (2, 3):
        again.send(done(again.run().id))
        client.claim(Verb.RESULT, seq)
    node.send(gone(again))
    client.send(ask(4))
    client.claim(Verb.FAILED, 4, error="NotFound")
    assert not node.as_node().holdings


def test_a_message_with_retries_is_delivered_again(broker: Recorder) -> None:
    client, node, actor = running(broker, restart={"max": 3})
    client.send(define(2, retries=1, **ASK), ask(1, 2))
    run = actor.run()
    node.send(gone(actor, begun=run.id, last=run.id, restart_in=0.1))
    again = broker.peer("actor", "a", node=node.session, credits=8)
    set_up(again)
    assert again.run().head[1:] == [1, 2]


def test_an_answer_that_was_under_way_when_the_actor_died_counts(broker: Recorder) -> None:
    client, node, actor = running(broker)
    client.send(ask(1))
    run = actor.run()
    node.send(gone(actor, begun=0, last=run.id), step=False)
    actor.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    assert not broker.mesh.actors


def test_an_answer_that_does_not_come_after_all_is_a_failure(broker: Recorder) -> None:
    client, node, actor = running(broker)
    client.send(define(2, retries=1, **ASK), ask(1, 2))
    run = actor.run()
    node.send(gone(actor, begun=0, last=run.id))
    broker.step(1)
    client.claim(Verb.FAILED, 1, error="NotFound", state="failed")


def test_a_restart_that_fails_ends_the_actor(broker: Recorder) -> None:
    client, node, actor = running(broker, restart={"max": 1})
    node.send(gone(actor, restart_in=0.1))
    client.send(ask(1))
    node.send(exited(b"second-child", actor.command, name="a", role="actor", reason="gave up"))
    client.claim(Verb.FAILED, 1, error="WorkerDied")
    assert not broker.mesh.actors
    assert not node.as_node().holdings


def test_restarts_are_counted_and_said_once(broker: Recorder) -> None:
    _, node, actor = running(broker, restart={"max": 3})
    for _ in range(3):
        node.send(gone(actor, restart_in=0.1))
    assert broker.mesh.actors["a"].restarts == 1


# ---------------------------------------------------------------------- stopping


def test_a_stop_is_answered_when_the_process_is_gone(broker: Recorder) -> None:
    client, node, actor = running(broker)
    client.send(ask(1), ask(2))
    run = actor.run()
    client.send(stop(3, "a", grace=2.5), stop(3, "a"), stop(4, "a"), stop(0, "a"))
    actor.claim(Verb.STOP)
    node.claim(Verb.HALT, name="a", session=actor.session, grace=2.5)
    client.send(spawn(5, name="a"))
    client.claim(Verb.FAILED, 5, error="AlreadyExists")
    actor.send(done(run.id), BYE)
    client.claim(Verb.RESULT, 1)
    node.send(gone(actor))
    client.claim(Verb.FAILED, 2, error="NotFound")
    client.claim_all(Verb.RESULT, Verb.RESULT)
    client.send(stop(6, "a"), stop(0, "a"))
    client.claim(Verb.FAILED, 6, error="NotFound", state="refused")


@pytest.mark.parametrize("head", [None, {"actor": 5}, {"actor": "a", "grace": -1}, {"actor": "a", "grace": "x"}])
def test_a_stop_names_an_actor_and_a_grace(broker: Recorder, head: object) -> None:
    client, _, _ = running(broker)
    client.send([Verb.STOP, 1, head, None, 0])
    client.claim(Verb.ERROR, 1)
    assert broker.mesh.actors["a"].state == "ready"


def test_a_stop_before_the_process_has_come(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    client.send(spawn(1, name="a"), stop(2, "a"))
    start = node.claim(Verb.START)
    node.claim(Verb.HALT, name="a")
    actor = broker.peer("actor", "a", node=node.session, command=start.id)
    node.claim(Verb.HALT, session=actor.session)
    node.send(exited(actor, start.id, name="a", role="actor"))
    client.claim(Verb.FAILED, 1, error="NotFound")
    client.claim(Verb.RESULT, 2)


def test_a_stop_between_two_processes_ends_the_actor_at_once(broker: Recorder) -> None:
    client, node, actor = running(broker, restart={"max": 3}, cpus=1)
    node.send(gone(actor, restart_in=5))
    client.send(stop(1, "a"))
    node.claim(Verb.HALT, name="a")
    client.claim(Verb.RESULT, 1)
    assert not node.as_node().holdings
    late = broker.peer("actor", "a", node=node.session)
    node.claim(Verb.HALT, session=late.session)


def test_a_stop_that_its_node_says_nothing_about_ends_in_time(broker: Recorder) -> None:
    client, node, actor = running(broker)
    client.send(ask(2))
    actor.run()
    client.send(stop(1, "a", grace=1))
    actor.claim(Verb.STOP)
    node.claim(Verb.HALT)
    broker.step(30.9)
    client.nothing()
    broker.step(0.2)
    client.claim(Verb.FAILED, 2, error="NotFound", message="actor a: it was stopped")
    client.claim(Verb.RESULT, 1)
    assert not broker.mesh.actors


def test_an_unnamed_actor_ends_with_its_owner_and_a_named_one_does_not(broker: Recorder) -> None:
    client, node, named = running(broker)
    client.send(spawn(1), spawn(2, name="label", anonymous=True))
    first, second = broker.started(node, role="actor"), broker.started(node, role="actor")
    set_up(first)
    set_up(second)
    client.claim_all(Verb.RESULT, Verb.RESULT)
    client.send(BYE)
    first.claim(Verb.STOP)
    second.claim(Verb.STOP)
    named.nothing()
    node.claim_all(Verb.HALT, Verb.HALT)
    assert broker.mesh.actors["a"].state == "ready"
    other = broker.client(ASK)
    other.send(ask(1))
    named.send(done(named.run().id))
    other.claim(Verb.RESULT, 1)


# ---------------------------------------------------------------------- actors in someone else's process


def test_an_embedded_actor_is_ready_at_once(broker: Recorder) -> None:
    client = broker.client(ASK)
    actor = broker.peer("actor", "a", credits=8)
    client.send(ask(1))
    actor.send(done(actor.run().id))
    client.claim(Verb.RESULT, 1)


def test_an_embedded_actors_name_must_be_free(broker: Recorder) -> None:
    running(broker)
    broker.peer("actor", "b")
    for name in ("a", "b"):
        link = broker.link()
        link.send(hello("actor", b"session-" + link.route, name=name))
        link.claim(Verb.WELCOME)
        assert "two live holders" in link.claim(Verb.ERROR, error="AlreadyExists", again=False).head["message"]
        assert b"session-" + link.route not in broker.mesh.sessions


def test_an_embedded_actor_ends_with_its_session(broker: Recorder) -> None:
    client = broker.client(ASK)
    actor = broker.peer("actor", "a", credits=8)
    client.send(ask(1), ask(2))
    actor.run()
    actor.send(BYE)
    client.claim(Verb.FAILED, 1, error="WorkerDied")
    client.claim(Verb.FAILED, 2, error="WorkerDied", message="actor a: it said BYE")
    again = broker.peer("actor", "a", credits=8)
    client.send(ask(3))
    assert again.claim(Verb.DEFINE)
    again.claim(Verb.RUN)


def test_an_embedded_actor_is_told_to_stop(broker: Recorder) -> None:
    client = broker.client(ASK)
    actor = broker.peer("actor", "a", credits=8)
    client.send(ask(1), stop(2, "a"))
    run = actor.claim_all(Verb.STOP, Verb.DEFINE, Verb.RUN)[2]
    actor.send(done(run.id), BYE)
    client.claim_all(Verb.RESULT, Verb.RESULT)


@pytest.mark.parametrize("resume", [True, False])
def test_an_embedded_actor_that_lost_its_link_goes_on(broker: Recorder, resume: bool) -> None:
    client = broker.client(ASK)
    actor = broker.peer("actor", "a", credits=8, resume=resume)
    client.send(ask(1))
    run = actor.run()
    actor.break_link()
    client.send(ask(2))
    back = actor.relink("actor", name="a")
    back.claim(Verb.WELCOME)
    back.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    assert back.run().head[1] == 2


def test_a_supervised_actor_that_holds_no_message_any_more_has_lost_it(broker: Recorder) -> None:
    client, node, actor = running(broker)
    client.send(ask(1))
    actor.run()
    actor.break_link()
    back = actor.relink("actor", name="a", node=node.session, running=[])
    back.claim(Verb.WELCOME)
    client.claim(Verb.FAILED, 1, error="WorkerDied")
    client.send(ask(2))
    back.send(done(back.run().id))
    client.claim(Verb.RESULT, 2)
    node.nothing()


def test_a_set_up_survives_a_broken_link(broker: Recorder) -> None:
    client, node = broker.client(), broker.node()
    client.send(spawn(1, name="a"))
    start = node.claim(Verb.START)
    actor = broker.peer("actor", "a", node=node.session, command=start.id, resume=True)
    setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1]
    actor.break_link()
    actor.send(done(setup.id))
    actor.relink("actor", name="a", node=node.session).claim(Verb.WELCOME)
    client.claim(Verb.RESULT, 1)


# ---------------------------------------------------------------------- the table


def test_every_state_leads_to_the_end() -> None:
    for state in LIFE:
        reached, waiting = {state}, [state]
        while waiting:
            for following in LIFE[waiting.pop()]:
                if following not in reached:
                    reached.add(following)
                    waiting.append(following)
        assert "ended" in reached


def test_a_step_that_the_table_does_not_have_is_a_mistake() -> None:
    actor = ActorEntry("a", Pool(Shape(), "actor a"), None, named=True)
    with pytest.raises(AssertionError, match="actor a is placing and cannot become ready"):
        actor.become("ready")
