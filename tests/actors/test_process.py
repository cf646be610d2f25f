"""A child process, for real: what it says, how it is ended, how it ends."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.actors.process import WITHIN_VARIABLE
from omnibus.face import WITHIN_VARIABLE as READ_VARIABLE
from omnibus.payload import decode
from omnibus.protocol import Record, Verb
from omnibus.sharedmem import Reason
from tests.actors.child import Child
from tests.support.sockets import open_context


@contextlib.contextmanager
def started(role: str = "worker", *, tcp: bool = False) -> Iterator[Child]:
    with open_context() as context, tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        child = Child(context, Path(folder), role, tcp=tcp)
        try:
            yield child
        finally:
            child.close()


@pytest.fixture
def worker() -> Iterator[Child]:
    with started() as child:
        child.welcome()
        yield child


@pytest.fixture
def actor() -> Iterator[Child]:
    with started("actor") as child:
        child.welcome()
        yield child


def made(actor: Child, cls: str, **head: Any) -> None:
    aid = actor.spawn(cls, **head)
    answer = actor.next()
    assert answer[:2] == [Verb.DONE, aid], answer


def value_of(record: Record) -> Any:
    assert record[0] == Verb.DONE, record
    return decode(record[3], (), code=False)


# --- work ------------------------------------------------------------------------------------------------------------


def test_a_worker_introduces_itself_and_works(worker: Child) -> None:
    hello = worker.hello
    assert (hello["role"], hello["session"], hello["node"]) == ("worker", worker.session, b"n" * 16)
    assert (hello["name"], hello["pid"], hello["credits"]) == ("it", worker.process.pid, 100)
    aids = [worker.run("double", number) for number in range(3)]
    answers = [worker.next() for _ in aids]
    assert [answer[1] for answer in answers] == aids
    assert [value_of(answer) for answer in answers] == [0, 2, 4]
    assert worker.page.last == aids[-1] and worker.page.running() is None


def test_an_idle_worker_has_loaded_little(worker: Child) -> None:
    worker.run("tests.actors.lightjobs:loaded")
    assert value_of(worker.next()) == []


def test_what_was_printed_is_there_before_the_answer(worker: Child) -> None:
    worker.run("write", "a part of a line")
    worker.next()
    assert worker.printed() == "a part of a line"


def test_a_bus_made_by_a_task_can_name_its_worker(worker: Child) -> None:
    assert WITHIN_VARIABLE == READ_VARIABLE
    worker.run("within")
    assert value_of(worker.next()) == worker.session.hex()


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "status", "words"), [(3, 3, ""), (None, 0, ""), ("enough", 1, "enough\n")])
def test_system_exit_ends_the_process_after_what_was_unsent(
    worker: Child, code: object, status: int, words: str
) -> None:
    path = worker.gate()
    worker.run("wait_at", path)
    worker.reached(path)
    before, leaving, behind = worker.run("double", 1), worker.run("leave", code), worker.run("double", 2)
    worker.let_go(path)
    assert value_of(worker.next()) == "let go"
    assert worker.next()[:2] == [Verb.DONE, before]
    given_back = worker.next()
    assert given_back[:2] == [Verb.FAIL, behind] and given_back[2]["error"] == "Revoked"
    assert worker.next()[0] == Verb.BYE
    assert worker.ended() == (status, "", words)
    assert (worker.page.running() or (0,))[0] == leaving  # which is to blame


def test_stop_gives_back_what_was_not_begun(worker: Child) -> None:
    path = worker.gate()
    worker.run("wait_at", path)
    worker.reached(path)
    behind = worker.run("double", 2)
    worker.tell([Verb.STOP, 0, None, None, 0])
    worker.let_go(path)
    assert value_of(worker.next()) == "let go"
    given_back = worker.next()
    assert given_back[:2] == [Verb.FAIL, behind] and given_back[2]["error"] == "Revoked"
    assert worker.next()[0] == Verb.BYE
    assert worker.ended() == (0, "", "")


def test_sigterm_ends_an_idle_worker_at_once(worker: Child) -> None:
    worker.run("double", 1)
    worker.next()
    worker.signal()
    assert worker.next()[0] == Verb.BYE
    assert worker.ended() == (0, "", "")


def test_sigterm_lets_the_running_attempt_finish(worker: Child) -> None:
    path = worker.gate()
    worker.run("wait_at", path)
    worker.reached(path)
    worker.signal()
    worker.let_go(path)
    assert value_of(worker.next()) == "let go"
    assert worker.next()[0] == Verb.BYE
    assert worker.ended()[0] == 0


@pytest.mark.parametrize(("reason", "error"), [(Reason.CANCEL, "Cancelled"), (Reason.TIMEOUT, "TaskTimeout")])
def test_sigterm_ends_the_attempt_that_the_page_names(worker: Child, reason: Reason, error: str) -> None:
    path = worker.gate()
    aid = worker.run("spin_at", path)
    worker.reached(path)
    worker.page.cancel(aid, reason)
    worker.signal()
    answer = worker.next()
    assert answer[:2] == [Verb.FAIL, aid] and answer[2]["error"] == error
    worker.run("double", 4)
    assert value_of(worker.next()) == 8


def test_a_refused_worker_says_why() -> None:
    with started() as child:
        number = child.next()[1]
        child.tell([Verb.ERROR, number, {"error": "ProtocolError", "message": "not that version"}, None, 0])
        status, _, words = child.ended()
        assert (status, words) == (1, "omnibus: the broker refused this process: not that version\n")


def test_a_worker_greets_anew_and_says_what_it_holds(worker: Child) -> None:
    worker.tell([Verb.ERROR, 0, {"error": "ProtocolError", "again": True, "message": "who are you?"}, None, 0])
    verb, number, hello, _, _ = worker.next()
    assert verb == Verb.HELLO and hello["running"] == []
    worker.tell([Verb.WELCOME, number, {"omb": 1, "epoch": b"e"}, None, 0])
    worker.run("double", 4)
    assert value_of(worker.next()) == 8


def test_nonsense_from_the_broker_is_a_fault(worker: Child) -> None:
    worker.tell_raw(b"nonsense", b"")
    status, _, words = worker.ended()
    assert status == 70 and "ProtocolError" in words


# --- a link that breaks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "cls"), [("worker", ""), ("actor", "Plain"), ("actor", "Patient")])
def test_what_went_under_with_the_link_is_said_again(role: str, cls: str) -> None:
    with started(role, tcp=True) as child:
        child.welcome(resumed=False, received=0)
        assert child.hello["resume"] is True
        count = 0
        if cls:
            made(child, cls)
            count += 1
        aid = child.run(".double" if cls else "double", 4)
        child.arrives()
        child.break_link()  # with the answer on it
        child.mend_link()
        child.welcome(resumed=True, received=count)
        assert child.hello["received"] == 1 + bool(cls)
        answer = child.next()
        assert answer[:2] == [Verb.DONE, aid] and value_of(answer) == 8
        child.run(".double" if cls else "double", 4)
        assert value_of(child.next()) == 8


# --- actors ----------------------------------------------------------------------------------------------------------


def test_a_plain_actor_lives_and_is_torn_down(actor: Child) -> None:
    made(actor, "Plain")
    actor.run(".get_pid")
    assert value_of(actor.next()) == actor.process.pid
    actor.tell([Verb.STOP, 0, None, None, 0])
    assert actor.next()[0] == Verb.BYE
    assert actor.ended() == (0, "torn down\n", "")


def test_an_actor_that_cannot_be_loaded_says_why(actor: Child) -> None:
    aid = actor.spawn("Nobody")
    answer = actor.next()
    assert answer[:2] == [Verb.FAIL, aid] and answer[2]["error"] == "SetupFailed"
    assert "there is no 'Nobody'" in answer[2]["message"]


def test_an_actor_with_coroutines_lives_on_a_loop(actor: Child) -> None:
    made(actor, "Patient")
    actor.run(".wait_for_ticks", 5)
    assert value_of(actor.next()) >= 5
    actor.run(".ticked")
    assert value_of(actor.next()) >= 5
    actor.tell([Verb.STOP, 0, None, None, 0])
    assert actor.next()[0] == Verb.BYE
    assert actor.ended() == (0, "torn down\n", "")


def test_sigterm_ends_an_idle_actor_with_coroutines(actor: Child) -> None:
    made(actor, "Patient")
    actor.signal()
    assert actor.next()[0] == Verb.BYE
    assert actor.ended() == (0, "torn down\n", "")


@pytest.mark.parametrize("method", [".wait_at", ".spin_at"])
def test_sigterm_ends_a_coroutine_or_a_plain_method_that_the_page_names(actor: Child, method: str) -> None:
    made(actor, "Patient")
    path = actor.gate()
    aid = actor.run(method, path)
    actor.reached(path)
    actor.page.cancel(aid, Reason.CANCEL)
    actor.signal()
    answer = actor.next()
    assert answer[:2] == [Verb.FAIL, aid] and answer[2]["error"] == "Cancelled"
    actor.run(".wait_for_ticks", 1)
    assert value_of(actor.next()) >= 1


def test_several_messages_at_a_time(actor: Child) -> None:
    made(actor, "Patient", concurrency=2)
    paths = [actor.gate() for _ in range(2)]
    aids = [actor.run(".wait_at", path) for path in paths]
    for path in paths:
        actor.reached(path)
    for aid in aids:
        actor.tell([Verb.CANCEL, aid, None, None, 0])
    assert {actor.next()[1] for _ in aids} == set(aids)


def test_system_exit_in_a_coroutine_ends_the_process(actor: Child) -> None:
    made(actor, "Patient")
    aid = actor.run(".leave", 5)
    assert actor.next()[0] == Verb.BYE
    status, out, words = actor.ended()
    assert (status, out, words) == (5, "", "")  # not torn down: it left by itself
    assert (actor.page.running() or (0,))[0] == aid


def test_nonsense_is_a_fault_on_a_loop_too(actor: Child) -> None:
    made(actor, "Patient")
    actor.tell_raw(b"nonsense", b"")
    status, _, words = actor.ended()
    assert status == 70 and "ProtocolError" in words
