"""The catalog: bounds on what a client declares, and what workers are told to forget."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.protocol import Limits, Verb
from tests.brokers.support import Recorder, define, done, hello, submit


def test_kinds_of_a_session_are_bounded() -> None:
    broker = Recorder(limits=Limits(kinds=3))
    client = broker.client({}, {}, {})
    client.send(define(4))
    client.claim(Verb.ERROR, 4, error="CapacityExceeded")
    client.send(define(3, priority=1), [Verb.FORGET, 1, None, None, 0], define(4))
    broker.finish()


def test_a_number_that_is_declared_anew_is_another_kind(broker: Recorder) -> None:
    client, worker = broker.client({"fn": "a:a"}), broker.worker()
    client.send(submit(1))
    first = worker.run()
    client.send(define(1, fn="b:b"), submit(2))
    worker.claim(Verb.FORGET, first.head[0])
    worker.send(done(first.id))
    client.claim(Verb.RESULT, 1)
    worker.claim(Verb.DEFINE, fn="b:b")
    worker.claim(Verb.RUN)


def test_a_wrong_declaration_leaves_the_one_before(broker: Recorder) -> None:
    client, worker = broker.client({"fn": "a:a"}), broker.worker()
    client.send(define(1, fn="b:b", gpus=-1), submit(1))
    client.claim(Verb.ERROR, 1)
    worker.claim(Verb.DEFINE, fn="a:a")
    worker.claim(Verb.RUN)


def test_kinds_that_come_along_are_remembered_the_last_of_them(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    for seq in range(1, 301):
        client.send(submit(seq, {"fn": "a:b", "name": f"task-{seq}"}))
        records = worker.claim_all()
        worker.send(done(records[-1].id))
        client.claim(Verb.RESULT, seq)
    assert len(client.as_client().adhoc) == 256
    assert len(worker.as_worker().known) == 256
    worker.claim_all()


def test_a_map_that_comes_along_is_bounded(broker: Recorder) -> None:
    client = broker.client()
    client.send(submit(1, {"fn": "a:b", "unknown": "x" * 20_000}))
    client.claim(Verb.ERROR, 1, error="CapacityExceeded")


def test_a_kind_that_is_gone_when_its_task_begins_is_forgotten_when_the_worker_idles(broker: Recorder) -> None:
    client = broker.client({}, {})
    client.send(submit(1), submit(2), submit(3, 2), [Verb.FORGET, 1, None, None, 0])
    worker = broker.worker()
    forgotten = 0
    for seq in (1, 2, 3):
        records = worker.claim_all()
        forgotten += sum(record.verb == Verb.FORGET for record in records)
        assert records[-1].head[1] == seq
        worker.send(done(records[-1].id))
        client.claim(Verb.RESULT, seq)
    records = worker.claim_all()
    assert forgotten + len(records) == 1
    assert len(worker.as_worker().known) == 1


def test_code_is_kept_while_a_kind_is_made_of_it(broker: Recorder) -> None:
    client = broker.client()
    client.send(define(1, code=b"digest", body=b"pickle"), define(2, code=b"digest"))
    client.send([Verb.FORGET, 1, None, None, 0], define(3, code=b"digest"))
    client.send([Verb.FORGET, 2, None, None, 0], [Verb.FORGET, 3, None, None, 0])
    assert not client.as_client().codes
    client.send(define(4, code=b"digest"))
    assert "has not sent" in client.claim(Verb.ERROR, 4).head["message"]


def test_code_that_is_large_comes_and_goes_as_a_blob(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    client.send([Verb.DEFINE, 1, {"code": b"digest"}, None, 1], blobs=[bytes(100_000)])
    client.send(submit(1))
    assert worker.claim(Verb.DEFINE).blobs == [bytes(100_000)]
    worker.claim(Verb.RUN)


def test_where_strangers_may_connect_no_code_travels() -> None:
    broker = Recorder(code=False)
    link = broker.link()
    link.send(hello("client", b"session-"), define(1, code=b"digest", body=b"pickle"), define(2))
    link.claim(Verb.WELCOME, code=False)
    assert "name a function instead" in link.claim(Verb.ERROR, 1, error="Unauthorized").head["message"]
    link.send(submit(1, 2), [Verb.SPAWN, 3, {"code": b"digest"}, None, 0])
    link.claim(Verb.ERROR, 3)
    broker.finish()


def test_the_code_of_a_session_is_bounded(broker: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnibus.brokers.catalog._CODE_BYTES", 1000)
    client = broker.client()
    client.send(define(1, code=b"one", body=bytes(600)), define(2, code=b"two", body=bytes(600)))
    client.claim(Verb.ERROR, 2, error="CapacityExceeded")
    client.send(define(3, code=b"one"))


def test_the_priorities_of_a_session_are_bounded_and_those_that_it_left_give_way(broker: Recorder) -> None:
    client = broker.client()
    client.send(*[define(number, priority=number) for number in range(1, 257)])
    client.send(define(300, priority=300), submit(1, 1))
    client.claim(Verb.ERROR, 300, error="CapacityExceeded")
    client.send(*[[Verb.FORGET, number, None, None, 0] for number in (1, 2)])
    client.send(define(300, priority=300), define(301, priority=301))
    client.claim(Verb.ERROR, 301, error="CapacityExceeded")
    assert 1 in client.as_client().windows, "it has an unfinished task there"


@pytest.mark.parametrize("head", [{}, {"actor": "a", "method": "m"}])
def test_a_client_that_leaves_leaves_nothing_behind(broker: Recorder, head: dict[str, Any]) -> None:
    client, worker = broker.client(head), broker.worker()
    actor = broker.peer("actor", "a", credits=8)
    client.send(submit(1, verb=Verb.ASK if head else Verb.SUBMIT), submit(2, {"fn": "x:y"}))
    for link in (worker, actor):
        while link.records:
            records = link.claim_all()
            link.send(*[done(record.id) for record in records if record.verb == Verb.RUN])
    client.claim_all(Verb.RESULT, Verb.RESULT)
    client.send([Verb.BYE, 0, None, None, 0])
    for pool in (*broker.mesh.pools.values(), broker.mesh.limbo, broker.mesh.actors["a"].pool):
        assert (pool.users, pool.lines) == (0, {})
    assert not worker.as_worker().known
    assert not actor.as_worker().known
    worker.claim_all()
    actor.claim_all()


def test_a_kind_of_messages_finds_each_new_holder_of_the_name(broker: Recorder) -> None:
    client = broker.client({"actor": "a", "method": "m"})
    for seq in (1, 2):
        actor = broker.peer("actor", "a", credits=8)
        client.send(submit(seq, verb=Verb.ASK))
        run = actor.run()
        actor.send([Verb.TIMED, run.head[0], 5000, None, 0], done(run.id), [Verb.BYE, 0, None, None, 0])
        client.claim(Verb.RESULT, seq)
        client.send(submit(10 + seq, verb=Verb.ASK))
        client.claim(Verb.FAILED, 10 + seq, error="NotFound")
