"""The runner of one attempt after the other: what it answers, whatever the user's code does and however it is ended."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import pytest

import omnibus
from omnibus.actors.endings import Abort
from omnibus.actors.inbox import STREAM_CREDIT
from omnibus.payload import rebuild_cause
from omnibus.protocol import Record, Verb
from omnibus.sharedmem import Reason, StatusPage
from omnibus.streams import STREAM_CREDIT as READERS_CREDIT
from tests.actors import jobs
from tests.actors.bench import SESSION, Bench, error_of, value_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    jobs.seen.clear()
    bench = Bench()
    yield bench
    bench.close()


def ask_end(bench: Bench, reason: Reason = Reason.CANCEL) -> None:
    """Do what the supervisor does to an attempt that runs: mark the page, then signal."""
    running = bench.supervisor.running()
    assert running is not None
    bench.supervisor.cancel(running[0], reason)
    bench.runner.interrupt()


# --- values ----------------------------------------------------------------------------------------------------------


def test_a_call_is_answered_by_its_value(bench: Bench) -> None:
    kind = bench.define("double")
    assert value_of(bench.do(kind, 4)) == 8
    assert value_of(bench.do(kind, 4, by=3)) == 12


def test_a_coroutine_function_is_run_to_its_end(bench: Bench) -> None:
    assert value_of(bench.do(bench.define("double_later"), 4)) == 8


def test_code_by_value_is_loaded_once_for_all_kinds_that_name_it(bench: Bench) -> None:
    state: list[int] = []

    def grow() -> int:
        state.append(1)
        return len(state)

    pickle = cloudpickle.dumps(grow)
    kinds = [bench.define(code=b"digest", pickle=pickle, priority=priority) for priority in (1, 2)]
    assert [value_of(bench.do(kind)) for kind in kinds] == [1, 2]
    assert not state


def test_large_parts_of_a_value_travel_beside_it(bench: Bench) -> None:
    answer = bench.do(bench.define("many_parts"), 3)
    assert answer[4] == 3
    assert [len(blob) for blob in bench.told[-1][1]] == [70_000] * 3


def test_the_costs_of_calls_are_told(bench: Bench) -> None:
    kind = bench.define("double")
    bench.run(kind, 1)
    bench.runner.run_queued()
    assert [record[:2] for record in bench.inbox.records if record[0] == Verb.TIMED] == [[Verb.TIMED, kind]]
    assert bench.inbox.records[-1][2] > 0


def test_answers_of_quick_calls_wait_for_each_other_and_slow_calls_find_none(bench: Bench) -> None:
    quick, unknown = bench.define("double"), bench.define("who")
    bench.do(quick, 1)
    bench.inbox.works[quick].cost = bench.inbox.works[quick].told = 1000
    bench.flushed = 0
    for _ in range(3):
        bench.run(quick, 1)
    bench.run(unknown)
    bench.work()
    assert bench.flushed == 1  # before the one whose cost nobody knew


# --- errors of the user's code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "type_name", "message"),
    [
        ("ValueError", "builtins.ValueError", "ValueError: bad"),
        ("KeyboardInterrupt", "builtins.KeyboardInterrupt", "KeyboardInterrupt: bad"),
        ("GeneratorExit", "builtins.GeneratorExit", "GeneratorExit: bad"),
    ],
)
def test_an_exception_is_answered_by_its_type_and_message(
    bench: Bench, kind: str, type_name: str, message: str
) -> None:
    answer = bench.do(bench.define("fail"), kind, "bad")
    head = error_of(answer)
    assert (head["error"], head["type"], head["message"]) == ("RemoteError", type_name, message)
    assert 'raise KINDS[kind](*args)' in head["traceback"]


def test_the_traceback_begins_in_the_users_code(bench: Bench) -> None:
    for name in ("fail", "double"):
        head = error_of(bench.do(bench.define(name), "ValueError") if name == "fail" else bench.do(bench.define(name)))
        assert "runner.py" not in head["traceback"]
    assert head["traceback"] == "TypeError: double() missing 1 required positional argument: 'value'\n"


def test_the_arguments_of_an_exception_travel_where_they_are_plain(bench: Bench) -> None:
    answer = bench.do(bench.define("fail"), "ValueError", "bad", 3)
    cause = rebuild_cause("builtins.ValueError", answer[3])
    assert isinstance(cause, ValueError) and cause.args == ("bad", 3)
    assert bench.do(bench.define("fail"), "Unsendable")[3] is None


def test_a_group_shows_its_members(bench: Bench) -> None:
    head = error_of(bench.do(bench.define("fail"), "ExceptionGroup"))
    assert head["type"] == "builtins.ExceptionGroup"
    assert "ValueError: one" in head["traceback"] and "KeyError: 'two'" in head["traceback"]


@pytest.mark.parametrize(("kind", "why"), [("Evil", "RuntimeError"), ("Worse", "KeyboardInterrupt")])
def test_an_exception_whose_own_methods_raise_is_answered(bench: Bench, kind: str, why: str) -> None:
    head = error_of(bench.do(bench.define("fail"), kind))
    assert head["error"] == "RemoteError"
    assert kind in head["message"] and why in head["message"]


def test_text_that_is_no_utf8_is_escaped(bench: Bench) -> None:
    assert error_of(bench.do(bench.define("fail"), "Surrogate"))["message"] == r"ValueError: bad \udcff text"


@pytest.mark.parametrize("name", ["WorkerDied", "Cancelled", "NotPicklable"])
def test_an_error_of_omnibus_that_the_users_code_raises_is_the_users(bench: Bench, name: str) -> None:
    answer = bench.do(bench.define("fail"), name)
    head = error_of(answer)
    assert (head["error"], head["type"]) == ("RemoteError", f"omnibus.errors.{name}")
    assert isinstance(rebuild_cause(head["type"], answer[3]), getattr(omnibus, name))


def test_the_failure_of_another_task_goes_on_as_what_it_is(bench: Bench) -> None:
    answer = bench.do(bench.define("fail_remotely"))
    head = error_of(answer)
    assert (head["error"], head["type"], head["message"]) == ("RemoteError", "builtins.KeyError", "KeyError: 'inner'")
    assert "its traceback" in head["traceback"] and "fail_remotely" in head["traceback"]
    assert repr(rebuild_cause(head["type"], answer[3])) == "KeyError('inner')"


def test_system_exit_passes_without_an_answer_and_blames_the_attempt(bench: Bench) -> None:
    bench.run(bench.define("double"), 1)
    aid = bench.run(bench.define("fail"), "SystemExit", 3)
    with pytest.raises(SystemExit) as leaving:
        bench.work()
    assert leaving.value.code == 3
    assert [record[0] for record in bench.sent] == [Verb.DONE]  # and what went before is sent
    assert (bench.supervisor.running() or (0,))[0] == aid


class Large:
    """Something whose end can be seen."""


def test_an_attempt_that_failed_keeps_nothing_alive(bench: Bench) -> None:
    gone: list[bool] = []

    def fail_with_much() -> None:
        large = Large()
        weakref.finalize(large, gone.append, True)
        raise ValueError("no")

    kind = bench.define("double")
    bench.inbox.works[kind].call = fail_with_much
    bench.do(kind)
    assert gone == [True]


# --- errors of our own -----------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_sent_names_its_function(bench: Bench) -> None:
    plain = Bench(code=False)
    try:
        plain.runner.calls.load = lambda work: jobs.unsendable  # type: ignore[method-assign]
        head = error_of(plain.do(plain.define("unsendable")))
    finally:
        plain.close()
    assert head["error"] == "NotPicklable"
    assert head["message"].startswith("the result of tests.actors.jobs:unsendable: value cannot be sent")


def test_a_result_of_too_many_parts_is_refused(bench: Bench) -> None:
    bench.inbox.welcome = {"limits": {"blobs": 3, "message_bytes": 65_000}}
    kind = bench.define("many_parts")
    assert "3 large parts, and a message holds 3" in error_of(bench.do(kind, 3))["message"]
    head = error_of(bench.do(kind, 2))
    assert head["error"] == "CapacityExceeded" and "70000 bytes" in head["message"]


def test_a_module_that_is_not_there_says_where_it_was_looked_for(bench: Bench) -> None:
    head = error_of(bench.do(bench.define(fn="no_such_package.module:f")))
    assert head["error"] == "SetupFailed"
    assert "no_such_package" in head["message"] and "sys.path" in head["message"]


def test_a_module_that_comes_later_is_found(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = bench.define(fn="omnibus_test_latecomer:answer")
    assert error_of(bench.do(kind))["error"] == "SetupFailed"
    (tmp_path / "omnibus_test_latecomer.py").write_text("def answer(): return 42\n")
    __import__("importlib").invalidate_caches()
    assert value_of(bench.do(kind)) == 42
    del sys.modules["omnibus_test_latecomer"]


def test_code_that_did_not_come_is_a_set_up_failure(bench: Bench) -> None:
    head = error_of(bench.do(bench.define(code=b"unknown")))
    assert head["error"] == "SetupFailed" and "did not come along" in head["message"]


def test_arguments_that_cannot_be_read_name_the_function(bench: Bench) -> None:
    kind = bench.define("double")
    bench.do(kind, 1)
    bench.tell([Verb.RUN, 999, [kind, 1, 1], b"\xc1", 0])
    [answer] = bench.work()
    assert error_of(answer)["error"] == "ProtocolError"
    assert error_of(answer)["message"].startswith("the arguments of tests.actors.jobs:double: body of 1 bytes")


def test_code_by_value_is_refused_where_it_may_not_travel() -> None:
    plain = Bench(code=False)
    try:
        head = error_of(plain.do(plain.define(code=b"f", pickle=cloudpickle.dumps(len))))
    finally:
        plain.close()
    assert head["error"] == "Unauthorized"


# --- actors ----------------------------------------------------------------------------------------------------------


def make(bench: Bench, cls: str, *args: Any, **kwargs: Any) -> Record:
    aid = bench.spawn(cls, *args, **kwargs)
    [answer] = bench.work()
    assert answer[1] == aid
    return answer


def test_an_actor_is_made_set_up_and_torn_down(bench: Bench) -> None:
    assert value_of(make(bench, "Counter", 5)) is None
    kind = bench.define(method="add")
    assert [value_of(bench.do(kind, 2)) for _ in range(2)] == [7, 9]
    assert value_of(bench.do(bench.define(method="add_later"), 1)) == 10
    bench.runner.tear_down()
    assert jobs.seen == ["setup", "teardown"]


def test_an_actor_may_set_itself_up_by_a_coroutine(bench: Bench) -> None:
    make(bench, "Slow")
    assert value_of(bench.do(bench.define(method="is_ready"))) is True
    bench.runner.tear_down()
    assert jobs.seen == ["teardown"]


def test_an_actor_that_cannot_be_made_says_why(bench: Bench) -> None:
    head = error_of(make(bench, "Counter", bad=True))
    assert head["error"] == "SetupFailed"
    assert head["message"].startswith("actor it could not be set up: ValueError: will not count")
    assert 'raise ValueError("will not count")' in head["message"]  # the client shows no more than the message


def test_a_class_that_is_not_there_is_a_set_up_failure(bench: Bench) -> None:
    head = error_of(make(bench, "Countess"))
    assert head["error"] == "SetupFailed" and "did you mean 'Counter'" in head["message"]


@pytest.mark.parametrize(("name", "why"), [("subtract", "no method"), ("_private", "a private"), ("value", "not call")])
def test_an_unknown_message_says_what_there_is(bench: Bench, name: str, why: str) -> None:
    make(bench, "Counter")
    head = error_of(bench.do(bench.define(method=name)))
    assert head["error"] == "NotFound"
    assert f"actor Counter has no message {name!r} ({why}" in head["message"]
    assert head["message"].endswith("it has add, add_later")


def test_what_a_tear_down_raises_is_shown(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    make(bench, "Broken")
    bench.runner.tear_down()
    assert "ValueError: cannot clean up" in capfd.readouterr().err
    bench.runner.calls.actor = None


# --- revoked, cancelled ----------------------------------------------------------------------------------------------


def test_a_revoked_attempt_is_given_back(bench: Bench) -> None:
    kind = bench.define("double")
    first, second = bench.run(kind, 1), bench.run(kind, 2)
    assert bench.supervisor.revoke(second)
    one, two = bench.work()
    assert one[:2] == [Verb.DONE, first]
    assert two[:2] == [Verb.FAIL, second] and error_of(two)["error"] == "Revoked"
    assert value_of(bench.do(kind, 3)) == 6


def test_a_queued_attempt_is_cancelled_by_being_given_back(bench: Bench) -> None:
    kind = bench.define("double")
    first, second = bench.run(kind, 1), bench.run(kind, 2)
    bench.tell([Verb.CANCEL, second, None, None, 0])
    two, one = bench.work()
    assert error_of(two)["error"] == "Revoked" and two[1] == second
    assert one[:2] == [Verb.DONE, first]


def test_an_attempt_that_runs_cannot_be_revoked(bench: Bench) -> None:
    aid = bench.run(bench.define("count", stream=True), 100)
    bench.on_receive = lambda: bench.tell([Verb.REVOKE, aid, None, None, 0])
    bench.on_wait = lambda: bench.tell([Verb.CREDIT, aid, 100, None, 0])
    assert bench.work()[-1][:2] == [Verb.DONE, aid]


def test_wishes_for_what_has_ended_are_forgotten(bench: Bench) -> None:
    bench.tell([Verb.CANCEL, 7, None, None, 0])
    assert bench.inbox.cancelled == {7}
    bench.do(bench.define("double"), 1)
    assert not bench.inbox.cancelled


@pytest.mark.parametrize(("reason", "error"), [(Reason.CANCEL, "Cancelled"), (Reason.TIMEOUT, "TaskTimeout")])
def test_an_attempt_is_ended_where_it_stands(bench: Bench, reason: Reason, error: str) -> None:
    jobs.seen.append(lambda: ask_end(bench, reason))
    head = error_of(bench.do(bench.define("call_back", timeout=2.5)))
    assert head["error"] == error
    assert ("timeout of 2.5 s" in head["message"]) is (reason is Reason.TIMEOUT)


def test_an_attempt_that_carries_on_is_answered_by_its_value(bench: Bench) -> None:
    jobs.seen.append(lambda: ask_end(bench))
    assert value_of(bench.do(bench.define("swallow_abort"))) == "carried on"
    assert jobs.seen[1:] == ["Abort"]


@pytest.mark.parametrize("name", ["convert_abort", "surrender"])
def test_whatever_an_attempt_makes_of_its_end_it_was_cancelled(bench: Bench, name: str) -> None:
    jobs.seen.append(lambda: ask_end(bench))
    if name == "surrender":  # asked by the page alone
        jobs.seen[0] = lambda: bench.supervisor.cancel(bench.supervisor.last, Reason.TIMEOUT)
    head = error_of(bench.do(bench.define(name)))
    assert head["error"] == ("TaskTimeout" if name == "surrender" else "Cancelled")


def test_without_a_supervisor_the_broker_s_word_counts() -> None:
    jobs.seen.clear()
    bench = Bench(page=False)
    try:
        asked: list[bool] = []

        def look() -> None:
            now = omnibus.current()
            asked.append(now.cancelled)
            bench.on_receive = lambda: bench.tell([Verb.CANCEL, aid, None, None, 0])
            asked.append(now.cancelled)

        jobs.seen.append(look)
        aid = bench.run(bench.define("surrender"))
        [answer] = bench.work()
    finally:
        bench.close()
    assert asked == [False, True]
    assert error_of(answer)["error"] == "Cancelled"


def test_a_signal_that_is_about_no_attempt_is_not_the_runner_s(bench: Bench) -> None:
    assert not bench.runner.interrupt()
    told: list[bool] = []
    jobs.seen.append(lambda: told.append(bench.runner.interrupt()))
    assert value_of(bench.do(bench.define("call_back"))) == "done"
    assert told == [False]


def test_a_signal_that_comes_just_too_late_ends_nothing(bench: Bench) -> None:
    aid = bench.do(bench.define("double"), 1)[1]
    bench.supervisor.cancel(aid, Reason.CANCEL)
    assert bench.runner.interrupt()
    bench.runner.ended -= 10**9
    assert not bench.runner.interrupt()  # by now it means the process


# --- one answer for each attempt, wherever the signal strikes ---------------------------------------------------------

BEFORE = ("begin", "chunk", "_put", "_flush")  # where a wish that cannot be granted at once must not be forgotten
OURS = ("/actors/", "/omnibus/sharedmem.py", "/omnibus/running.py", "/omnibus/payload.py", "/omnibus/faults.py")


class Strike:
    """Sends the supervisor's signal before the ``at``-th instruction of our own code since the attempt began."""

    def __init__(self, bench: Bench, aid: int, at: int) -> None:
        self.at = at
        self.steps = 0
        self.fired = False
        self.tore: list[str] = []
        self.where = ""
        self._bench = bench
        self._aid = aid

    def __enter__(self) -> Strike:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(part in name for part in OURS) or ("/tests/" in name and not name.endswith("jobs.py")):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        supervisor = self._bench.supervisor
        if event == "opcode" and not self.fired and supervisor.last == self._aid:
            running = supervisor.running()
            if running is not None:
                self.steps += 1
                if self.steps == self.at:
                    self.fired = True
                    self.where = frame.f_code.co_name
                    supervisor.cancel(self._aid, Reason.CANCEL)
                    try:
                        self._bench.runner.interrupt()
                    except Abort:
                        self.tore = [each.f_code.co_filename for each in stack(frame) if is_shell(each)]
                        raise
        return self._step


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_shell(frame: FrameType) -> bool:
    """Tell whether a message would be half sent or half read if this were left here."""
    code = frame.f_code
    return code.co_filename.endswith("/actors/inbox.py") or code in (Bench._flush.__code__, StatusPage.begin.__code__)


def exhaust(prepare: Callable[[Bench], int], *, stride: int) -> tuple[int, set[str]]:
    """Strike at each instruction in turn; return how many there are, and how the attempts ended."""
    at, ends = 1, set()
    while True:
        jobs.seen.clear()
        bench = Bench()
        try:
            after = bench.define("double")
            bench.do(after, 1)
            aid = prepare(bench)
            with Strike(bench, aid, at) as strike:
                said = bench.work()
            answers = [record for record in said if record[0] in (Verb.DONE, Verb.FAIL)]
            assert [record[1] for record in answers] == [aid], (at, answers)
            assert bench.supervisor.running() is None and bench.runner.inside == 0, at
            assert not bench.inbox.credits and not strike.tore, at
            assert value_of(bench.do(after, 4)) == 8, at
            end = "value" if answers[0][0] == Verb.DONE else error_of(answers[0])["error"]
            assert end == "Cancelled" or strike.where not in BEFORE, (at, strike.where)
            ends.add(end)
        finally:
            bench.close()
        if not strike.fired:
            return at, ends
        at += stride


def test_a_signal_at_any_instruction_of_a_call_leaves_one_answer() -> None:
    steps, ends = exhaust(lambda bench: bench.run(bench.define("double"), 4), stride=1)
    assert steps > 100
    assert ends == {"value", "Cancelled"}


def test_a_signal_at_any_instruction_of_a_failing_call_leaves_one_answer() -> None:
    steps, ends = exhaust(lambda bench: bench.run(bench.define("fail"), "ValueError"), stride=3)
    assert steps > 200
    assert ends == {"RemoteError", "Cancelled"}


def test_a_signal_at_any_instruction_of_a_stream_leaves_one_answer(capfd: pytest.CaptureFixture[str]) -> None:
    def prepare(bench: Bench) -> int:
        aid = bench.run(bench.define("count", stream=True), STREAM_CREDIT + 1)

        def receive() -> None:
            if waited:
                bench.tell([Verb.CREDIT, aid, waited.pop(), None, 0])

        waited: list[int] = []
        bench.on_wait, bench.on_receive = lambda: waited.append(5), receive
        return aid

    steps, ends = exhaust(prepare, stride=61)
    assert steps > 1000
    assert ends == {"value", "Cancelled"}


@pytest.mark.filterwarnings("ignore:coroutine 'double_later' was never awaited")
def test_a_signal_at_any_instruction_of_a_coroutine_leaves_one_answer() -> None:
    def prepare(bench: Bench) -> int:
        kind = bench.define("double_later")
        bench.do(kind, 1)  # the loop is made
        return bench.run(kind, 4)

    steps, ends = exhaust(prepare, stride=3)
    gc.collect()
    assert steps > 100
    assert ends == {"value", "Cancelled"}


# --- streams ---------------------------------------------------------------------------------------------------------


def stream(bench: Bench, name: str, *args: Any) -> tuple[list[Any], Record]:
    """Run a stream to its end with all the credit that it wants; return its parts and its answer."""
    aid = bench.run(bench.define(name, stream=True), *args)
    bench.on_wait = lambda: bench.tell([Verb.CREDIT, aid, 10, None, 0])
    *chunks, answer = bench.work()
    assert {record[1] for record in chunks} <= {aid} and answer[1] == aid
    assert not bench.inbox.credits
    return [value_of(chunk) for chunk in chunks], answer


def test_both_ends_of_a_stream_begin_with_the_same_credit() -> None:
    assert STREAM_CREDIT == READERS_CREDIT


@pytest.mark.parametrize("name", ["count", "count_later", "return_count"])
@pytest.mark.parametrize("number", [0, 5, 100])
def test_generators_and_iterables_are_streamed(bench: Bench, name: str, number: int) -> None:
    parts, answer = stream(bench, name, number)
    assert parts == list(range(number))
    assert value_of(answer) is None


def test_a_stream_goes_as_far_as_its_credit(bench: Bench) -> None:
    waits: list[int] = []
    aid = bench.run(bench.define("count", stream=True), 100)

    def grant() -> None:
        waits.append(len(bench.sent))
        bench.tell([Verb.CREDIT, aid, 40, None, 0])

    bench.on_wait = grant
    bench.work()
    assert waits == [STREAM_CREDIT, STREAM_CREDIT + 40]


def test_a_stream_that_fails_midway_sent_what_came_before(bench: Bench) -> None:
    parts, answer = stream(bench, "count_badly", 3)
    assert parts == [0, 1, 2]
    assert error_of(answer)["message"] == "ValueError: midway"


def test_a_part_that_cannot_be_sent_names_the_function() -> None:
    plain = Bench(code=False)
    try:
        plain.runner.calls.load = lambda work: jobs.yields_unsendable  # type: ignore[method-assign]
        parts, answer = stream(plain, "yields_unsendable")
    finally:
        plain.close()
    assert parts == [1]
    assert error_of(answer)["error"] == "NotPicklable"
    assert "a part of what tests.actors.jobs:yields_unsendable yields" in error_of(answer)["message"]


def test_what_is_no_iterable_cannot_be_streamed(bench: Bench) -> None:
    _, answer = stream(bench, "double", 4)
    assert error_of(answer)["error"] == "UsageError"
    assert "tests.actors.jobs:double returned a int, which cannot be streamed" in error_of(answer)["message"]


@pytest.mark.parametrize("name", ["count", "count_later"])
def test_a_generator_is_no_value(bench: Bench, name: str) -> None:
    head = error_of(bench.do(bench.define(name), 3))
    assert head["error"] == "NotPicklable"
    assert f"jobs:{name} returned a" in head["message"] and "return a list" in head["message"]
    make(bench, "Counter")
    bench.runner.calls.actor.count = jobs.count
    assert "Counter.count returned a generator" in error_of(bench.do(bench.define(method="count"), 3))["message"]


def test_a_stream_that_nobody_wants_is_closed_while_it_waits(bench: Bench) -> None:
    aid = bench.run(bench.define("count", stream=True), 100)
    bench.on_wait = lambda: bench.tell([Verb.CANCEL, aid, None, None, 0])
    *chunks, answer = bench.work()
    assert len(chunks) == STREAM_CREDIT
    assert error_of(answer)["error"] == "Cancelled"
    assert jobs.seen[-1] == "closed"


def test_a_stream_that_nobody_wants_is_closed_at_its_next_part(bench: Bench) -> None:
    aid = bench.run(bench.define("count_later", stream=True), 100)
    bench.on_receive = lambda: bench.tell([Verb.CANCEL, aid, None, None, 0])
    *chunks, answer = bench.work()
    assert len(chunks) == 1
    assert error_of(answer)["error"] == "Cancelled"
    assert jobs.seen == ["closed"]


def test_a_stream_that_waits_is_ended_by_the_signal(bench: Bench) -> None:
    bench.run(bench.define("count", stream=True, timeout=1.0), 100)
    bench.on_wait = lambda: ask_end(bench, Reason.TIMEOUT)
    *_, answer = bench.work()
    assert error_of(answer)["error"] == "TaskTimeout"
    assert jobs.seen[-1] == "closed"


def test_what_a_generator_raises_while_it_is_closed_is_shown(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    aid = bench.run(bench.define("count_stubbornly", stream=True), 100)
    bench.on_wait = lambda: bench.tell([Verb.CANCEL, aid, None, None, 0])
    *_, answer = bench.work()
    assert error_of(answer)["error"] == "Cancelled"
    assert "ValueError: while closing" in capfd.readouterr().err


# --- current() -------------------------------------------------------------------------------------------------------


def test_the_running_attempt_knows_itself(bench: Bench) -> None:
    kind = bench.define("who", name="mine")
    aid = bench.run(kind, attempt=3)
    [answer] = bench.work()
    assert tuple(value_of(answer)) == (f"{SESSION.hex()}-{aid * 10}", 3, "mine", False)
    with pytest.raises(omnibus.UsageError, match="nothing of Omnibus runs here"):
        omnibus.current()


def test_threads_of_an_attempt_know_it_too(bench: Bench) -> None:
    found: list[str] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: found.append(omnibus.current().id))
        thread.start()
        thread.join()

    jobs.seen.append(look)
    aid = bench.do(bench.define("call_back"))[1]
    assert found == [f"{SESSION.hex()}-{aid * 10}"]


def test_an_abort_says_why() -> None:
    assert Abort("timeout").reason == "timeout"
