"""REQ peers: one reply for each request, when all that it asked is answered."""

from __future__ import annotations

import pytest

from omnibus.protocol import Verb
from tests.brokers.support import Link, Recorder, define, done, exited, hello, submit


@pytest.fixture
def asker(broker: Recorder) -> Link:
    """Return a REQ client with a kind of task."""
    return broker.client({}, lockstep=True)


def test_a_hello_is_answered_by_one_message_with_a_delimiter(broker: Recorder) -> None:
    client = broker.peer("client", lockstep=True)
    assert client.messages == 1


def test_requests_that_have_no_answer_get_an_empty_reply(broker: Recorder, asker: Link) -> None:
    before = asker.messages
    asker.send(define(2))
    asker.send([Verb.FORGET, 2, None, None, 0])
    asker.send([Verb.CANCEL, 5, None, None, 0])
    asker.send()
    assert asker.messages - before == 4
    asker.nothing()


def test_a_reply_waits_for_all_that_was_asked(broker: Recorder, asker: Link) -> None:
    worker = broker.worker()
    before = asker.messages
    asker.send(submit(1), submit(2), [Verb.STATUS, 3, None, None, 0])
    worker.send(done(worker.run().id))
    broker.step(5)
    assert asker.messages == before
    worker.send(done(worker.run().id))
    assert asker.messages == before + 1
    assert [(record.verb, record.id) for record in asker.claim_all()] == [
        (Verb.RESULT, 3),
        (Verb.RESULT, 1),
        (Verb.RESULT, 2),
    ]
    broker.step(20)
    assert asker.messages == before + 1, "a REQ peer is sent no probe"


def test_a_fault_is_an_answer(broker: Recorder, asker: Link) -> None:
    before = asker.messages
    asker.send(submit(1, 99))
    asker.claim(Verb.ERROR, 1)
    broker.receive(asker.route, [b"", b"nonsense"])
    broker.step()
    asker.claim(Verb.ERROR, 0)
    asker.send([994, 3, None, None, 0])
    asker.claim(Verb.ERROR, 3)
    assert asker.messages - before == 3


def test_a_fault_about_a_kind_does_not_answer_the_task_of_its_number(broker: Recorder) -> None:
    client, worker = broker.client({}, lockstep=True), broker.worker()
    before = client.messages
    client.send(define(2, gpus=-1), submit(2, 1))
    assert client.messages == before
    worker.send(done(worker.run().id))
    client.claim_all(Verb.ERROR, Verb.RESULT)
    assert client.messages == before + 1


def test_a_tell_that_nobody_waits_for_does_not_hold_up_the_reply(broker: Recorder) -> None:
    actor = broker.peer("actor", "a", credits=8)
    client = broker.client({"actor": "a", "method": "m", "tell": True}, {"actor": "a", "method": "m"}, lockstep=True)
    before = client.messages
    client.send(submit(1, verb=Verb.TELL))
    assert client.messages == before + 1
    actor.send(done(actor.run().id))
    client.send(submit(2, 2, verb=Verb.TELL))
    assert client.messages == before + 1
    actor.send(done(actor.run().id))
    client.claim(Verb.RESULT, 2)


def test_a_spawn_and_a_stop_are_waited_for(broker: Recorder) -> None:
    client, node = broker.client(lockstep=True), broker.node()
    before = client.messages
    client.send([Verb.SPAWN, 1, {"cls": "a:B", "name": "b"}, None, 0])
    actor = broker.started(node, role="actor")
    setup = actor.claim_all(Verb.DEFINE, Verb.SPAWN)[1]
    assert client.messages == before
    actor.send(done(setup.id))
    client.claim(Verb.RESULT, 1)
    client.send([Verb.STOP, 2, {"actor": "b"}, None, 0])
    actor.claim(Verb.STOP)
    node.claim(Verb.HALT)
    assert client.messages == before + 1
    node.send(exited(actor, name="b", role="actor"))
    client.claim(Verb.RESULT, 2)
    assert client.messages == before + 2


def test_a_stream_is_refused_for_it_is_no_single_answer(broker: Recorder, asker: Link) -> None:
    asker.send(define(5, actor="a", method="m", stream=True))
    asker.claim(Verb.ERROR, 5)


def test_events_come_with_the_next_reply(broker: Recorder, asker: Link) -> None:
    asker.send([Verb.SUBSCRIBE, 6, {"topic": "t"}, None, 0])
    asker.claim(Verb.RESULT, 6)
    broker.client().send([Verb.PUBLISH, 0, {"topic": "t"}, b"news", 0])
    asker.nothing()
    asker.send([Verb.PING, 7, None, None, 0])
    asker.claim_all(Verb.EVENT, Verb.PONG)


def test_each_of_several_requests_under_way_gets_a_reply(broker: Recorder, asker: Link) -> None:
    worker = broker.worker()
    before = asker.messages
    asker.send(submit(1))
    asker.send(submit(2))
    asker.send()
    run = worker.run()
    worker.send(done(run.id))
    assert asker.messages == before + 1
    worker.send(done(worker.run().id))
    assert asker.messages == before + 3
    asker.claim_all(Verb.RESULT, Verb.RESULT)


def test_a_silent_req_peer_is_given_up_in_the_end_and_may_return(broker: Recorder, asker: Link) -> None:
    broker.step(599)
    assert asker.session in broker.mesh.sessions
    broker.step(3)
    assert asker.session not in broker.mesh.sessions
    for _ in range(2):
        asker.send(submit(1))
        asker.claim(Verb.ERROR, 0, again=True)
    asker.send(hello("client", asker.session), define(1), submit(1))
    worker = broker.worker()
    worker.send(done(worker.run().id))
    asker.claim_all(Verb.WELCOME, Verb.RESULT)


def test_a_req_peer_that_asks_again_on_a_new_link_gets_what_was_lost(broker: Recorder, asker: Link) -> None:
    worker = broker.worker()
    asker.send(submit(1))
    asker.break_link(noticed=False)
    worker.send(done(worker.run().id))
    assert broker.whats("lost") == ["its link broke"]
    again = broker.link(lockstep=True)
    again.send(hello("client", asker.session), submit(1))
    assert again.messages == 1
    again.claim_all(Verb.WELCOME, Verb.RESULT, Verb.FAILED)
    worker.nothing()
