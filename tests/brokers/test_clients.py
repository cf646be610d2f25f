"""What clients send, as the core takes it: tasks, numbers, windows, cancels, questions, and their leaving."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import pytest

from omnibus.protocol import Limits, Record, Verb
from tests.brokers.support import Link, Recorder, define, done, exited, fail, submit


def cancel(seq: int) -> Record:
    return [Verb.CANCEL, seq, None, None, 0]


def fetch(number: int, session: object, seq: object) -> Record:
    return [Verb.FETCH, number, {"session": session, "seq": seq}, None, 0]


BYE: Record = [Verb.BYE, 0, None, None, 0]

# ---------------------------------------------------------------------- tasks


def test_a_task_goes_to_a_worker_and_its_result_to_the_client(broker: Recorder) -> None:
    client, worker = broker.client({"fn": "a:b", "priority": 3}), broker.worker()
    client.send(submit(1))
    kind = worker.claim(Verb.DEFINE, fn="a:b", session=client.session)
    run = worker.claim(Verb.RUN)
    assert run.head == [kind.id, 1, 1]
    assert run.body == b"body"
    worker.send(done(run.id))
    assert client.claim(Verb.RESULT, 1).body == b"result"
    assert broker.counts() == {"submitted": 1, "done": 1}


def test_blobs_travel_with_their_records(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    tasks: list[Record] = [[Verb.SUBMIT, 1, 1, None, 2], [Verb.SUBMIT, 2, 1, b"x", 0], [Verb.SUBMIT, 3, 1, b"y", 1]]
    client.send(*tasks, blobs=[b"1", b"2", b"3"])
    assert client.as_client().windows[0].size == 5
    first = worker.run()
    assert (first.body, first.blobs) == (None, [b"1", b"2"])
    worker.send([Verb.DONE, first.id, None, b"r", 2], blobs=[b"4", b"5"])
    result = client.claim(Verb.RESULT, 1)
    assert (result.body, result.blobs) == (b"r", [b"4", b"5"])
    second = worker.run()
    assert (second.body, second.blobs) == (b"x", [])
    worker.send(done(second.id))
    client.claim(Verb.RESULT, 2)
    third = worker.run()
    assert (third.body, third.blobs) == (b"y", [b"3"])


def test_a_simple_client_carries_its_map_along(broker: Recorder) -> None:
    client, worker = broker.client(), broker.worker()
    client.send(submit(1, {"fn": "a:b"}), submit(2, {"fn": "a:b"}))
    kind = worker.claim(Verb.DEFINE)
    run = worker.claim(Verb.RUN)
    worker.send(done(run.id))
    assert worker.claim(Verb.RUN).head[0] == kind.id, "the same map is the same kind"
    client.claim(Verb.RESULT, 1)


@pytest.mark.parametrize("head", [None, 7, True, "fn", [], {"fn": 5}, {}])
def test_a_submit_must_name_a_kind_of_task(broker: Recorder, head: object) -> None:
    client = broker.client({}, {"actor": "x", "method": "m"})
    client.send(submit(1, head), submit(2, 2))
    client.claim(Verb.ERROR, 1, error="ProtocolError", again=False)
    client.claim(Verb.ERROR, 2, error="ProtocolError")
    assert broker.counts() == {}
    client.send(submit(1))
    assert broker.counts() == {"submitted": 1, "queued": 1}, "a number that was refused may be used again"


def test_an_ask_must_name_a_kind_of_message(broker: Recorder) -> None:
    client = broker.client({}, {"actor": "x", "method": "m"})
    client.send(submit(1, 1, verb=Verb.ASK), submit(2, 9, verb=Verb.TELL))
    client.claim(Verb.ERROR, 1)
    client.claim(Verb.ERROR, 2)


# ---------------------------------------------------------------------- numbers


def test_the_same_number_again_is_the_same_task_while_it_waits_and_runs(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1), submit(1))
    client.send(submit(1))
    worker = broker.worker()
    run = worker.run()
    client.send(submit(1))
    assert broker.counts() == {"submitted": 1, "running": 1}
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)


def test_the_same_number_after_the_end_does_not_run_again(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    for seq in (1, 2, 5):
        client.send(submit(seq))
        worker.send(done(worker.run().id))
        client.claim(Verb.RESULT, seq)
    for seq in (1, 2, 5):
        client.send(submit(seq))
        refusal = client.claim(Verb.FAILED, seq, error="NotFound", state="refused")
        assert f"number {seq} " in refusal.head["message"]
    worker.nothing()
    client.send(submit(3))
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 3)
    assert broker.counts() == {"submitted": 4, "done": 4}


def test_the_same_number_after_the_end_of_a_detached_task_gives_its_end_again(broker: Recorder) -> None:
    client, worker = broker.client({"detached": True}), broker.worker()
    client.send(submit(1))
    worker.send(done(worker.run().id, b"kept"))
    client.claim(Verb.RESULT, 1)
    client.send(submit(1))
    assert client.claim(Verb.RESULT, 1).body == b"kept"


def test_a_message_whose_number_comes_again_is_not_handled_again(broker: Recorder) -> None:
    client = broker.client({"actor": "a", "method": "m"})
    actor = broker.peer("actor", "a", credits=8)
    client.send(submit(1, verb=Verb.ASK), submit(1, verb=Verb.ASK))
    actor.send(done(actor.run().id))
    client.claim(Verb.RESULT, 1)
    client.send(submit(1, verb=Verb.ASK))
    client.claim(Verb.FAILED, 1, state="refused")
    client.send(define(2, actor="a", method="m", tell=True), submit(1, 2, verb=Verb.TELL))
    actor.nothing()


# ---------------------------------------------------------------------- windows


@pytest.fixture
def narrow() -> Iterator[Recorder]:
    """Return a recorder whose clients have small windows."""
    recorder = Recorder(limits=Limits(window_tasks=2, window_bytes=100))
    yield recorder
    recorder.finish()


def test_a_full_window_refuses_and_its_number_may_come_again(narrow: Recorder) -> None:
    client, worker = narrow.client({}), narrow.worker()
    client.send(submit(1), submit(2), submit(3))
    refusal = client.claim(Verb.FAILED, 3, error="CapacityExceeded", state="refused")
    assert "its window is 2 tasks and 100 bytes" in refusal.head["message"]
    assert narrow.counts() == {"submitted": 2, "queued": 1, "running": 1, "refused": 1}
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)
    client.send(submit(3))
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 2)
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 3)
    assert client.as_client().windows[0].tasks == 0


def test_bytes_fill_a_window_too_and_one_large_task_always_fits(narrow: Recorder) -> None:
    client = narrow.client({})
    client.send(submit(1, body=bytes(1000)), submit(2, body=b"x"))
    client.claim(Verb.FAILED, 2, error="CapacityExceeded")
    client.send(cancel(1), submit(2, body=bytes(60)), submit(3, body=bytes(41)))
    client.claim(Verb.FAILED, 1, error="Cancelled")
    client.claim(Verb.FAILED, 3, error="CapacityExceeded")


def test_windows_are_of_one_client_and_one_lane(narrow: Recorder) -> None:
    client, other = narrow.client({}, {"priority": 1}, {}), narrow.client({})
    client.send(submit(1, 1), submit(2, 3), submit(3, 2), submit(4, 2))
    other.send(submit(1), submit(2))
    client.send(submit(5, 1))
    client.claim(Verb.FAILED, 5, error="CapacityExceeded")
    assert narrow.counts()["queued"] == 6


# ---------------------------------------------------------------------- order


def test_work_of_one_client_and_lane_is_first_in_first_out_whatever_its_kinds(broker: Recorder) -> None:
    client = broker.client({"fn": "a:a"}, {"fn": "b:b"})
    client.send(*[submit(seq, 1 + seq % 2) for seq in range(1, 9)])
    worker = broker.worker()
    order = []
    for _ in range(8):
        run = worker.run()
        order.append(run.head[1])
        worker.send(done(run.id))
    assert order == [1, 2, 3, 4, 5, 6, 7, 8]
    client.claim_all(*[Verb.RESULT] * 8)


def test_clients_take_turns(broker: Recorder) -> None:
    flood, other = broker.client({}), broker.client({})
    flood.send(*[submit(seq) for seq in range(1, 6)])
    other.send(submit(1), submit(2))
    worker = broker.worker()
    order = []
    for _ in range(7):
        run = worker.run()
        order.append(run.head[1])
        worker.send(done(run.id))
    assert order == [1, 1, 2, 2, 3, 4, 5]
    flood.claim_all(*[Verb.RESULT] * 5)
    other.claim_all(*[Verb.RESULT] * 2)


# ---------------------------------------------------------------------- cancel


def test_a_waiting_task_is_cancelled_at_once(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1), cancel(1))
    client.claim(Verb.FAILED, 1, error="Cancelled", state="cancelled", attempts=0)
    client.send(cancel(1))
    worker = broker.worker()
    worker.nothing()
    assert broker.counts() == {"submitted": 1, "cancelled": 1}


def test_a_dispatched_task_that_has_not_begun_is_revoked(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    client.send(cancel(1))
    worker.claim(Verb.CANCEL, run.id)
    worker.send(fail(run.id, "Revoked"))
    client.claim(Verb.FAILED, 1, error="Cancelled", state="cancelled", attempts=0)


def test_a_running_task_is_aborted_through_its_node(broker: Recorder) -> None:
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1))
    run = worker.run()
    client.send(cancel(1), cancel(1))
    client.send(cancel(1))
    worker.claim(Verb.CANCEL, run.id)
    node.claim(Verb.ABORT, run.id, session=worker.session, reason="cancel", grace=1.0)
    worker.send(fail(run.id, "Cancelled"))
    client.claim(Verb.FAILED, 1, error="Cancelled", state="cancelled", attempts=1)
    client.send(cancel(1))
    assert broker.counts() == {"submitted": 1, "cancelled": 1}


def test_a_task_that_ends_first_is_done_all_the_same(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    client.send(cancel(1))
    worker.claim(Verb.CANCEL)
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    assert broker.counts() == {"submitted": 1, "done": 1}


def test_a_worker_killed_for_a_cancel_ends_the_task_and_blames_no_other(broker: Recorder) -> None:
    client, node = broker.client({"retries": 0}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1), submit(2))
    run = worker.claim_all(Verb.DEFINE, Verb.RUN)[1]
    worker.send([Verb.TIMED, run.head[0], 10, None, 0], done(run.id))
    client.claim(Verb.RESULT, 1)
    second = worker.run()
    client.send(submit(3))
    third = worker.run()
    client.send(cancel(2))
    worker.claim(Verb.CANCEL, second.id)
    node.claim(Verb.ABORT, second.id)
    node.send(exited(worker, begun=second.id, last=second.id, cause="cancel", aborted=second.id))
    client.claim(Verb.FAILED, 2, error="Cancelled", state="cancelled")
    assert third.head[2] == 1
    again = broker.started(node).run()
    assert again.head[1:] == [3, 1], "what had not begun goes back for free"


def test_what_a_worker_says_was_cancelled_is(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    worker.send(fail(worker.run().id, "Cancelled"))
    client.claim(Verb.FAILED, 1, error="Cancelled", state="cancelled")
    assert broker.counts() == {"submitted": 1, "cancelled": 1}


def test_unknown_numbers_are_not_cancelled(broker: Recorder) -> None:
    client = broker.client({})
    client.send(cancel(1), cancel(99))
    client.nothing()


# ---------------------------------------------------------------------- failure


def test_an_error_reaches_the_client_as_the_worker_told_it(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    told = {"error": "RemoteError", "type": "ValueError", "traceback": "..."}
    worker.send([Verb.FAIL, run.id, told, b"pickle", 1], blobs=[b"b"])
    failed = client.claim(Verb.FAILED, 1, **told, state="failed", attempts=1)
    assert (failed.body, failed.blobs) == (b"pickle", [b"b"])


# ---------------------------------------------------------------------- detached tasks


def test_a_detached_end_is_kept_for_whoever_fetches_it(broker: Recorder) -> None:
    client, worker, other = broker.client({"detached": True}), broker.worker(), broker.client()
    client.send(submit(1), submit(2))
    worker.send(done(worker.run().id, b"one"))
    worker.send(fail(worker.run().id))
    client.claim(Verb.RESULT, 1)
    client.claim(Verb.FAILED, 2)
    client.send(BYE)
    worker.claim(Verb.FORGET)
    for _ in range(2):
        other.send(fetch(7, client.session, 1), fetch(8, client.session, 2))
        assert other.claim(Verb.RESULT, 7).body == b"one"
        other.claim(Verb.FAILED, 8, error="RemoteError", state="failed")


def test_a_fetch_of_an_unfinished_task_is_to_be_repeated(broker: Recorder) -> None:
    client, worker, other = broker.client({"detached": True}), broker.worker(), broker.client()
    client.send(submit(1))
    run = worker.run()
    other.send(fetch(3, client.session, 1))
    other.claim(Verb.FAILED, 3, error="Pending", state="refused")
    client.send(BYE)
    worker.claim(Verb.FORGET)
    other.send(fetch(4, client.session, 1))
    other.claim(Verb.FAILED, 4, error="Pending", state="refused")
    worker.send(done(run.id))
    other.send(fetch(5, client.session, 1))
    other.claim(Verb.RESULT, 5)


def test_a_detached_task_outlives_its_client(broker: Recorder) -> None:
    client, worker, other = broker.client({"detached": True}, {}), broker.worker(), broker.client()
    client.send(submit(1), submit(2), submit(3, 2))
    client.send(BYE)
    assert len(broker.mesh.ghosts) == 1
    assert broker.counts() == {"submitted": 3, "running": 1, "queued": 1, "cancelled": 1, "dropped": 1}
    for _ in range(2):
        records = worker.claim_all()
        (run,) = [record for record in records if record.verb == Verb.RUN]
        worker.send(done(run.id))
    other.send(fetch(3, client.session, 1), fetch(4, client.session, 2))
    other.claim_all(Verb.RESULT, Verb.RESULT)
    assert not broker.mesh.ghosts
    worker.claim_all(Verb.FORGET)


def test_an_end_is_kept_for_an_hour(broker: Recorder) -> None:
    client, worker = broker.client({"detached": True}), broker.worker()
    client.send(submit(1))
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)
    broker.now += 3599
    client.send(fetch(2, client.session, 1))
    client.claim(Verb.RESULT, 2)
    broker.now += 2
    broker.step()
    client.send(fetch(3, client.session, 1))
    client.claim(Verb.FAILED, 3, error="NotFound", state="refused")
    assert len(broker.mesh.shelf) == 0


def test_only_detached_tasks_can_be_fetched(broker: Recorder) -> None:
    client, worker, other = broker.client({}), broker.worker(), broker.client()
    client.send(submit(1))
    worker.send(done(worker.run().id))
    client.claim(Verb.RESULT, 1)
    other.send(fetch(1, client.session, 1), fetch(2, b"nobody--", 1), fetch(3, client.session, 9))
    for number in (1, 2, 3):
        other.claim(Verb.FAILED, number, error="NotFound", state="refused")


@pytest.mark.parametrize(
    ("session", "seq"), [(None, 1), ("text", 1), (b"session-", None), (b"session-", "1"), (b"x" * 65, 1)]
)
def test_a_fetch_names_a_task(broker: Recorder, session: object, seq: object) -> None:
    client = broker.client()
    client.send(fetch(1, session, seq))
    client.claim(Verb.ERROR, 1, error="ProtocolError")


# ---------------------------------------------------------------------- credit, status


def test_credit_for_a_stream_goes_to_its_worker(broker: Recorder) -> None:
    client = broker.client({"actor": "a", "method": "m", "stream": True})
    actor = broker.peer("actor", "a", credits=8)
    client.send(submit(1, verb=Verb.ASK))
    run = actor.run()
    actor.send([Verb.CHUNK, run.id, None, b"part", 1], blobs=[b"blob"])
    chunk = client.claim(Verb.CHUNK, 1)
    assert (chunk.body, chunk.blobs) == (b"part", [b"blob"])
    client.send([Verb.CREDIT, 1, 16, None, 0])
    assert actor.claim(Verb.CREDIT, run.id).head == 16
    actor.send(done(run.id, None))
    client.claim(Verb.RESULT, 1)
    client.send([Verb.CREDIT, 1, 16, None, 0])


@pytest.mark.parametrize("head", [0, -1, 1.0, "1", None, True, 1 << 40])
def test_credit_is_a_positive_count(broker: Recorder, head: object) -> None:
    client = broker.client()
    client.send([Verb.CREDIT, 1, head, None, 0])
    client.claim(Verb.ERROR, 1)


def test_status_is_a_plain_map(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1), [Verb.STATUS, 2, None, None, 0])
    report = msgpack.unpackb(client.claim(Verb.RESULT, 2).body, strict_map_key=False)
    assert report["tasks"]["queued"] == 1
    assert report["lanes"] == {0: 1}


# ---------------------------------------------------------------------- leaving


def leaving(broker: Recorder) -> tuple[Link, Link, Link]:
    """Return a client with one task running and one waiting, the worker and its node."""
    client, node = broker.client({}), broker.node(cpus=1)
    worker = broker.worker(node)
    client.send(submit(1), submit(2))
    return client, worker, node


def test_a_client_that_says_bye_has_its_tasks_cancelled(broker: Recorder) -> None:
    client, worker, node = leaving(broker)
    run = worker.run()
    client.send(BYE)
    assert broker.counts() == {"submitted": 2, "running": 1, "cancelled": 1, "dropped": 1}
    worker.claim(Verb.CANCEL, run.id)
    worker.claim(Verb.FORGET)
    node.claim(Verb.ABORT, run.id)
    assert len(broker.mesh.ghosts) == 1
    worker.send(done(run.id))
    assert broker.counts() == {"submitted": 2, "done": 1, "cancelled": 1, "dropped": 2}
    assert not broker.mesh.ghosts


def test_what_follows_a_bye_is_not_heard(broker: Recorder) -> None:
    client = broker.client({})
    client.send(submit(1), BYE, submit(2))
    assert broker.counts() == {"submitted": 1, "cancelled": 1, "dropped": 1}


def test_a_client_that_is_lost_for_the_grace_has_its_tasks_cancelled(broker: Recorder) -> None:
    client, worker, node = leaving(broker)
    run = worker.run()
    client.break_link()
    broker.step(29.9)
    worker.send(done(run.id))
    assert broker.counts() == {"submitted": 2, "running": 1, "done": 1}, "its other task goes on meanwhile"
    second = worker.run()
    broker.step(0.2)
    node.claim(Verb.ABORT, second.id)
    worker.claim(Verb.CANCEL, second.id)
    worker.claim(Verb.FORGET)
    worker.send(fail(second.id, "Cancelled"))
    assert broker.counts() == {"submitted": 2, "done": 1, "cancelled": 1, "dropped": 2}


def test_a_client_whose_process_ended_is_not_waited_for(broker: Recorder) -> None:
    client, worker, node = leaving(broker)
    run = worker.run()
    broker.broker.peer_died(client.session, broker.now, "its process ended")
    broker.step()
    worker.claim(Verb.CANCEL, run.id)
    worker.claim(Verb.FORGET)
    node.claim(Verb.ABORT, run.id)
    assert broker.whats("left") == ["its process ended"]


def test_define_and_forget(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send(submit(1))
    run = worker.run()
    forget: Record = [Verb.FORGET, 1, None, None, 0]
    client.send(forget, submit(2), forget, [Verb.FORGET, 9, None, None, 0])
    worker.claim(Verb.FORGET, run.head[0])
    client.claim(Verb.ERROR, 2)
    worker.send(done(run.id))
    client.claim(Verb.RESULT, 1)
    client.send(define(1), submit(2))
    assert worker.claim(Verb.DEFINE).id != run.head[0]
    worker.claim(Verb.RUN)


def test_whoever_names_a_kind_that_was_refused_is_told_why(broker: Recorder) -> None:
    client = broker.client()
    client.send(define(1, gpus=1.5), submit(2, 1), define(3, actor="a", method=""), submit(4, 3, verb=Verb.ASK))
    for number in (1, 2, 3, 4):
        key = "'gpus'" if number < 3 else "'method'"
        assert f"a kind: {key} must be" in client.claim(Verb.ERROR, number).head["message"]
    client.send(define(1), submit(2, 1, verb=Verb.ASK))
    assert "names no kind of message" in client.claim(Verb.ERROR, 2).head["message"]
