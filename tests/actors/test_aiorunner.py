"""The runner on a loop: what interleaves, how coroutines and streams end, and that each attempt is answered once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import omnibus
from omnibus.actors.aiorunner import AsyncRunner
from omnibus.actors.inbox import STREAM_CREDIT
from omnibus.protocol import Record, Verb
from omnibus.sharedmem import Reason, StatusPage
from tests.actors import aiojobs
from tests.actors.bench import SESSION, Feed, error_of, value_of
from tests.support.events import aeventually


class Link:
    """Stands for the link: what it is asked to send the bench collects."""

    def __init__(self, bench: Bench) -> None:
        self.loop = asyncio.get_running_loop()
        self.posts = 0
        self.stopped = False
        self.on_look: Callable[[], None] = lambda: None
        self._bench = bench

    def post(self) -> None:
        self.posts += 1
        self.loop.call_soon(self._bench.turn)

    def flush(self) -> None:
        self._bench.collect()
        self.post()

    def look(self) -> None:
        self.on_look()

    def stop(self) -> None:
        self.stopped = self._bench.inbox.stopping = True


class Bench(Feed):
    """An :class:`AsyncRunner` whose actor is made; the test is its broker, and its supervisor where it has a page."""

    def __init__(self, *, concurrency: int = 1, hosted: bool = False, page: bool = False) -> None:
        super().__init__()
        self.supervisor = StatusPage.create() if page else None
        self.page = StatusPage.attach(os.dup(self.supervisor.fd)) if self.supervisor is not None else None
        self.link = Link(self)
        link: Any = self.link
        self.runner = AsyncRunner(self.inbox, self.page, link, code=True, concurrency=concurrency, hosted=hosted)

    def turn(self) -> None:
        """Do what a link does at each of its turns."""
        self.runner.work()
        self.collect()

    def answers(self, aid: int) -> list[Record]:
        """Return how an attempt was answered so far."""
        return [record for record in self.sent if record[1] == aid and record[0] in (Verb.DONE, Verb.FAIL)]

    def parts(self, aid: int) -> list[Any]:
        """Return what a stream has sent so far."""
        return [value_of(record) for record in self.sent if record[:2] == [Verb.CHUNK, aid]]

    async def answer(self, aid: int) -> Record:
        """Wait for the one answer of an attempt."""
        self.turn()
        await aeventually(lambda: self.answers(aid), what=f"{aid} is answered")
        [answer] = self.answers(aid)
        return answer

    async def ask(self, method: str, *args: Any, **head: Any) -> Record:
        """Send a message; return its answer."""
        return await self.answer(self.run(self.method(method, **head), *args))

    def method(self, name: str, **head: Any) -> int:
        return self.define(method=name, **head)

    async def make(self, cls: str = "Patient", **kwargs: Any) -> Record:
        aid = self.spawn(cls, **kwargs)
        return await self.answer(aid)

    async def close(self) -> None:
        await self.runner.finish(0)
        await self.runner.tear_down_on()
        if self.page is not None and self.supervisor is not None:
            self.page.close()
            self.supervisor.close()


def on_bench(**options: Any) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test on a bench whose actor is a :class:`Patient`."""

    def decorate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def whole() -> None:
            aiojobs.seen.clear()
            aiojobs.gates.clear()
            bench = Bench(**options)
            try:
                assert value_of(await bench.make()) is None
                await test(bench)
            finally:
                await bench.close()

        def run() -> None:
            asyncio.run(whole())

        run.__name__ = test.__name__
        return run

    return decorate


@pytest.fixture(autouse=True)
def spawned_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.actors.bench.JOBS", "tests.actors.aiojobs")


# --- one at a time, or several ---------------------------------------------------------------------------------------


@on_bench()
async def test_nothing_interleaves_at_an_await(bench: Bench) -> None:
    kind = bench.method("pass_gate")
    first, second = bench.run(kind, "a"), bench.run(kind, "b")
    bench.turn()
    aiojobs.gate("b").set()
    await aeventually(lambda: aiojobs.seen == ["a begins"])
    aiojobs.gate("a").set()
    assert value_of(await bench.answer(first)) == "a"
    assert value_of(await bench.answer(second)) == "b"
    assert aiojobs.seen == ["a begins", "a ends", "b begins", "b ends"]


@on_bench(concurrency=2)
async def test_so_many_run_at_a_time_as_were_asked_for(bench: Bench) -> None:
    kind = bench.method("pass_gate")
    aids = [bench.run(kind, name) for name in "abc"]
    bench.turn()
    await aeventually(lambda: len(aiojobs.seen) == 2)
    assert aiojobs.seen == ["a begins", "b begins"]
    aiojobs.gate("b").set()
    assert value_of(await bench.answer(aids[1])) == "b"
    await aeventually(lambda: "c begins" in aiojobs.seen)
    assert sorted(bench.inbox.active) == [aids[0], aids[2]]


@on_bench()
async def test_plain_methods_run_inline_and_in_order(bench: Bench) -> None:
    plain, later = bench.method("double_now"), bench.method("double")
    aids = [bench.run(kind, number) for number, kind in enumerate([plain, later, plain])]
    await bench.answer(aids[-1])
    done = [record for record in bench.sent if record[0] == Verb.DONE and record[1] in aids]
    assert [record[1] for record in done] == aids
    assert [value_of(record) for record in done] == [0, 2, 4]


@on_bench()
async def test_what_a_method_leaves_on_the_loop_goes_on_between_messages(bench: Bench) -> None:
    before = value_of(await bench.ask("ticked"))
    await aeventually(lambda: bench.runner.calls.actor.ticks > before + 10)
    assert value_of(await bench.ask("ticked")) > before + 10


@on_bench()
async def test_the_loop_has_its_turn_among_many_quick_messages(bench: Bench) -> None:
    kind = bench.method("double_now")
    for number in range(2000):
        last = bench.run(kind, number)
    posts = bench.link.posts
    bench.turn()
    assert bench.inbox.queue and bench.link.posts == posts + 1
    await bench.answer(last)


def test_several_at_a_time_need_coroutines() -> None:
    async def whole() -> None:
        bench = Bench(concurrency=3)
        head = error_of(await bench.make("Plain", concurrency=3))
        assert head["error"] == "SetupFailed"
        assert "concurrency=3 is for coroutines, and Plain has none" in head["message"]

    asyncio.run(whole())


def test_a_set_up_that_raises_is_the_spawner_s_to_know() -> None:
    async def whole() -> None:
        bench = Bench()
        head = error_of(await bench.make("Unready", name="sleepy"))
        assert head["error"] == "SetupFailed"
        assert head["message"].startswith("actor sleepy could not be set up: ValueError: not today")

    asyncio.run(whole())


# --- how attempts end ------------------------------------------------------------------------------------------------


@on_bench()
async def test_an_exception_is_the_user_s(bench: Bench) -> None:
    head = error_of(await bench.ask("fail", "bad"))
    assert (head["error"], head["message"]) == ("RemoteError", "ValueError: bad")
    assert "aiorunner.py" not in head["traceback"] and "raise ValueError(message)" in head["traceback"]
    assert error_of(await bench.ask("cancel_itself"))["type"] == "asyncio.exceptions.CancelledError"
    assert error_of(await bench.ask("subtract"))["error"] == "NotFound"


@on_bench()
async def test_a_generator_is_no_value(bench: Bench) -> None:
    for method in ("stream", "stream_now", "unsendable"):
        head = error_of(await bench.ask(method, *([3] if method != "unsendable" else [])))
        assert head["error"] == "NotPicklable" and "ref.stream" in head["message"]


@on_bench()
async def test_a_value_that_cannot_be_sent_names_its_method(bench: Bench) -> None:
    bench.runner.restrict()
    aiojobs.seen.append(object)
    bench.runner.calls.actor.later = _return_object
    head = error_of(await bench.ask("later"))
    assert head["error"] == "NotPicklable"
    assert head["message"].startswith("the result of Patient.later: value cannot be sent")


async def _return_object() -> object:
    return object()


@on_bench()
async def test_a_running_message_is_cancelled(bench: Bench) -> None:
    aid = bench.run(bench.method("pass_gate"), "a")
    bench.turn()
    await aeventually(lambda: aiojobs.seen)
    bench.tell([Verb.CANCEL, aid, None, None, 0])
    assert error_of(await bench.answer(aid))["error"] == "Cancelled"
    assert aiojobs.seen == ["a begins", "a ends"]


@on_bench()
async def test_a_message_that_is_cancelled_before_its_first_step_is_answered(bench: Bench) -> None:
    aid = bench.run(bench.method("pass_gate"), "a")
    bench.runner.work()
    bench.tell([Verb.CANCEL, aid, None, None, 0])
    assert error_of(await bench.answer(aid))["error"] == "Cancelled"
    assert aiojobs.seen == []
    assert value_of(await bench.ask("double", 2)) == 4


@on_bench()
async def test_a_queued_message_is_given_back(bench: Bench) -> None:
    kind = bench.method("pass_gate")
    bench.run(kind, "a")
    second = bench.run(kind, "b")
    bench.turn()
    bench.tell([Verb.CANCEL, second, None, None, 0])
    assert error_of(await bench.answer(second))["error"] == "Revoked"


@on_bench()
async def test_a_message_that_carries_on_is_answered_by_its_value(bench: Bench) -> None:
    aid = bench.run(bench.method("insist"), "a")
    bench.turn()
    await asyncio.sleep(0)
    bench.tell([Verb.CANCEL, aid, None, None, 0])
    assert value_of(await bench.answer(aid)) == "carried on"


@pytest.mark.parametrize("method", ["pass_gate", "convert"])
def test_a_message_that_runs_too_long_is_ended(method: str) -> None:
    @on_bench()
    async def run(bench: Bench) -> None:
        head = error_of(await bench.ask(method, "a", timeout=0.02))
        assert head["error"] == "TaskTimeout" and "0.02 s" in head["message"]
        assert value_of(await bench.ask("double", 2, timeout=5.0)) == 4

    run()


@on_bench()
async def test_what_is_under_way_when_the_actor_ends_is_told_so(bench: Bench) -> None:
    kind = bench.method("pass_gate")
    aid, waiting = bench.run(kind, "a"), bench.run(kind, "b")
    bench.turn()
    await aeventually(lambda: aiojobs.seen)
    bench.inbox.stopping = True
    await bench.runner.finish(0)
    head = error_of(await bench.answer(aid))
    assert (head["error"], head["message"]) == ("WorkerDied", "its actor was stopped while it ran")
    assert [job.aid for job in bench.inbox.queue] == [waiting]


@on_bench()
async def test_what_is_under_way_may_finish(bench: Bench) -> None:
    aid = bench.run(bench.method("pass_gate"), "a")
    bench.turn()
    asyncio.get_running_loop().call_soon(aiojobs.gate("a").set)
    await bench.runner.finish(None)
    assert value_of(await bench.answer(aid)) == "a"


# --- exits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["leave", "leave_now"])
def test_system_exit_ends_a_process_of_its_own(method: str) -> None:
    @on_bench()
    async def run(bench: Bench) -> None:
        aid = bench.run(bench.method(method), 7)
        bench.turn()
        await aeventually(lambda: bench.link.stopped)
        assert bench.runner.leaving is not None and bench.runner.leaving.code == 7
        assert bench.answers(aid) == []

    run()


@pytest.mark.parametrize("method", ["leave", "leave_now"])
def test_system_exit_is_an_error_in_somebody_else_s_process(method: str) -> None:
    @on_bench(hosted=True)
    async def run(bench: Bench) -> None:
        head = error_of(await bench.ask(method, 7))
        assert (head["error"], head["message"]) == ("RemoteError", "SystemExit: 7")
        assert not bench.link.stopped

    run()


def test_a_ctrl_c_is_answered_and_goes_on_to_its_host() -> None:
    answers: list[Record] = []

    @on_bench(hosted=True)
    async def run(bench: Bench) -> None:
        aid = bench.run(bench.method("interrupt"))
        try:
            await bench.answer(aid)
            await aeventually(lambda: False)
        finally:
            answers.extend(bench.answers(aid))

    with pytest.raises(KeyboardInterrupt):
        run()
    assert error_of(answers[0])["message"] == "KeyboardInterrupt"


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["stream", "stream_now", "stream_list"])
@pytest.mark.parametrize("number", [0, 5, STREAM_CREDIT - 1])
def test_generators_and_iterables_are_streamed(method: str, number: int) -> None:
    @on_bench()
    async def run(bench: Bench) -> None:
        aid = bench.run(bench.method(method, stream=True), number)
        assert value_of(await bench.answer(aid)) is None
        assert bench.parts(aid) == list(range(number))
        assert not bench.inbox.credits

    run()


@on_bench()
async def test_a_stream_goes_as_far_as_its_credit(bench: Bench) -> None:
    aid = bench.run(bench.method("stream", stream=True), 50)
    bench.turn()
    await aeventually(lambda: len(bench.parts(aid)) == STREAM_CREDIT)
    bench.tell([Verb.CREDIT, aid, 10, None, 0])
    bench.turn()
    await aeventually(lambda: len(bench.parts(aid)) == STREAM_CREDIT + 10)
    bench.tell([Verb.CREDIT, aid, 10, None, 0])
    await bench.answer(aid)
    assert bench.parts(aid) == list(range(50))


@pytest.mark.parametrize("method", ["stream", "stream_now"])
def test_a_stream_that_nobody_wants_is_closed_while_it_waits(method: str) -> None:
    @on_bench()
    async def run(bench: Bench) -> None:
        aid = bench.run(bench.method(method, stream=True), 100)
        bench.turn()
        await aeventually(lambda: len(bench.parts(aid)) == STREAM_CREDIT)
        bench.tell([Verb.CANCEL, aid, None, None, 0])
        assert error_of(await bench.answer(aid))["error"] == "Cancelled"
        assert aiojobs.seen == ["closed"]
        assert value_of(await bench.ask("double", 2)) == 4

    run()


@on_bench()
async def test_a_stream_that_fails_midway_sent_what_came_before(bench: Bench) -> None:
    aid = bench.run(bench.method("stream_badly", stream=True), 3)
    assert error_of(await bench.answer(aid))["message"] == "ValueError: midway"
    assert bench.parts(aid) == [0, 1, 2]


@on_bench()
async def test_what_is_no_iterable_cannot_be_streamed(bench: Bench) -> None:
    for method in ("double", "double_now"):
        head = error_of(await bench.ask(method, 4, stream=True))
        assert head["error"] == "UsageError" and "cannot be streamed" in head["message"]


def test_what_a_generator_raises_while_it_is_closed_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    @on_bench()
    async def run(bench: Bench) -> None:
        aid = bench.run(bench.method("stream_stubbornly", stream=True), 100)
        bench.turn()
        await aeventually(lambda: len(bench.parts(aid)) == STREAM_CREDIT)
        bench.tell([Verb.CANCEL, aid, None, None, 0])
        assert error_of(await bench.answer(aid))["error"] == "Cancelled"

    run()
    assert "ValueError: while closing" in capfd.readouterr().err


# --- the supervisor --------------------------------------------------------------------------------------------------


@on_bench(page=True)
async def test_a_revoked_message_is_given_back(bench: Bench) -> None:
    assert bench.supervisor is not None
    kind = bench.method("double")
    first, second = bench.run(kind, 1), bench.run(kind, 2)
    assert bench.supervisor.revoke(second)
    assert value_of(await bench.answer(first)) == 2
    assert error_of(await bench.answer(second))["error"] == "Revoked"


@on_bench(page=True)
async def test_the_supervisor_s_signal_cancels_a_coroutine(bench: Bench) -> None:
    assert bench.supervisor is not None
    aid = bench.run(bench.method("pass_gate"), "a")
    bench.turn()
    await aeventually(lambda: aiojobs.seen)
    assert (bench.supervisor.running() or (0,))[0] == aid
    bench.supervisor.cancel(aid, Reason.TIMEOUT)
    assert bench.runner.interrupt()
    assert error_of(await bench.answer(aid))["error"] == "TaskTimeout"
    assert bench.supervisor.running() is None


@on_bench(page=True)
async def test_the_supervisor_s_signal_ends_a_plain_method_where_it_stands(bench: Bench) -> None:
    supervisor = bench.supervisor
    assert supervisor is not None

    def strike() -> None:
        supervisor.cancel(supervisor.last, Reason.CANCEL)
        bench.runner.interrupt()

    aiojobs.seen.append(strike)
    assert error_of(await bench.ask("call"))["error"] == "Cancelled"
    assert supervisor.running() is None and bench.runner.inside == 0


@on_bench(page=True, concurrency=3)
async def test_of_several_under_way_the_page_shows_the_newest(bench: Bench) -> None:
    supervisor = bench.supervisor
    assert supervisor is not None
    kind = bench.method("pass_gate")
    first, second = bench.run(kind, "a"), bench.run(kind, "b")
    bench.turn()
    assert (supervisor.running() or (0,))[0] == second
    aiojobs.gate("b").set()
    await bench.answer(second)
    assert supervisor.running() is None and supervisor.last == second
    aiojobs.gate("a").set()
    assert value_of(await bench.answer(first)) == "a"


# --- current() -------------------------------------------------------------------------------------------------------


@on_bench()
async def test_the_attempt_its_tasks_and_its_threads_know_it(bench: Bench) -> None:
    aid = bench.run(bench.method("who"))
    assert value_of(await bench.answer(aid)) == [f"{SESSION.hex()}-{aid * 10}"] * 3
    with pytest.raises(omnibus.UsageError):
        omnibus.current()


@on_bench(hosted=True)
async def test_a_plain_method_sees_that_it_should_end(bench: Bench) -> None:
    found: list[bool] = []

    def look() -> None:
        now = omnibus.current()
        found.append(now.cancelled)
        bench.link.on_look = lambda: bench.tell([Verb.CANCEL, aid, None, None, 0])
        found.append(now.cancelled)
        raise omnibus.Cancelled("so be it")

    aiojobs.seen.append(look)
    aid = bench.run(bench.method("call"))
    assert error_of(await bench.answer(aid))["error"] == "Cancelled"
    assert found == [False, True]


@on_bench(hosted=True)
async def test_a_plain_method_sees_that_its_time_is_over(bench: Bench) -> None:
    def wait() -> None:
        now = omnibus.current()
        while not now.cancelled:
            pass
        raise omnibus.Cancelled("time is over")

    aiojobs.seen.append(wait)
    head = error_of(await bench.ask("call", timeout=0.02))
    assert head["error"] == "TaskTimeout" and "0.02 s" in head["message"]


@on_bench(concurrency=2)
async def test_a_wish_that_a_plain_method_came_upon_reaches_its_neighbour(bench: Bench) -> None:
    neighbour = bench.run(bench.method("pass_gate"), "a")
    bench.turn()
    await aeventually(lambda: aiojobs.seen)

    def look() -> bool:
        bench.link.on_look = lambda: bench.tell([Verb.CANCEL, neighbour, None, None, 0])
        return omnibus.current().cancelled

    aiojobs.seen.insert(0, look)
    kind = bench.method("call")
    aids = [bench.run(kind), bench.run(kind)]
    bench.runner.work()
    assert [value_of(await bench.answer(aid)) for aid in aids] == [False, False]
    assert error_of(await bench.answer(neighbour))["error"] == "Cancelled"
