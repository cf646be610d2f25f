"""Futures: cheap until waited for, and right whoever comes first."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest

from omnibus.errors import Cancelled
from omnibus.futures import Future


class Owner:
    """A bus that is driven by a thread of its own."""

    def __init__(self) -> None:
        self.attended = 0
        self.cancelled: list[int] = []
        self.waits: list[float | None] = []
        self.on_wait: Any = lambda future: True

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        self.waits.append(timeout)
        return bool(self.on_wait(future))

    def attend(self) -> None:
        self.attended += 1

    def cancel(self, seq: int) -> None:
        self.cancelled.append(seq)


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_a_future_that_is_done_needs_no_condition(owner: Owner) -> None:
    future: Future[int] = Future(owner, 1)
    assert not future.done()
    future.set_result(7)
    assert future.done() and future.result() == 7 and future.exception() is None
    assert owner.waits == [] and future._made is None


def test_result_waits_by_way_of_the_owner(owner: Owner) -> None:
    future: Future[int] = Future(owner, 1)
    owner.on_wait = lambda waiting: waiting.set_result(3) is None
    assert future.result(timeout=2) == 3
    assert owner.waits == [2]


def test_a_timeout_names_the_request_and_leaves_it(owner: Owner) -> None:
    future: Future[int] = Future(owner, 41)
    owner.on_wait = lambda waiting: False
    with pytest.raises(TimeoutError, match="request 41"):
        future.result(0.5)
    with pytest.raises(TimeoutError, match="request 41"):
        future.exception(0.5)
    assert not future.done()


def test_an_error_is_raised_each_time(owner: Owner) -> None:
    future: Future[int] = Future(owner, 1)
    future.set_exception(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.result()
    assert isinstance(future.exception(), ValueError)


def test_cancel_asks_and_the_end_decides(owner: Owner) -> None:
    future: Future[int] = Future(owner, 5)
    assert future.cancel() and owner.cancelled == [5] and not future.cancelled()
    future.set_exception(Cancelled("it was"))
    assert future.cancelled() and future.cancel() and owner.cancelled == [5]
    done: Future[int] = Future(owner, 6)
    done.set_result(1)
    assert not done.cancel()


def test_callbacks_run_once_before_and_after_the_end(owner: Owner) -> None:
    future: Future[int] = Future(owner, 1)
    seen: list[Any] = []
    future.add_done_callback(lambda ended: seen.append(("early", ended.result())))
    future.set_result(1)
    future.add_done_callback(lambda ended: seen.append(("late", ended.result())))
    assert seen == [("early", 1), ("late", 1)]
    assert owner.attended == 1


def test_a_callback_that_raises_does_not_stop_the_others(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    future: Future[int] = Future(owner, 1)
    seen: list[int] = []
    future.add_done_callback(lambda ended: 1 / 0)
    future.add_done_callback(lambda ended: seen.append(1))
    future.set_result(1)
    assert seen == [1]
    assert "exception calling callback" in caplog.text


def test_wait_and_as_completed_of_the_standard_library(owner: Owner) -> None:
    futures: list[Future[int]] = [Future(owner, number) for number in range(3)]
    futures[0].set_result(0)
    threading.Timer(0.02, lambda: [future.set_result(future.seq) for future in futures[1:]]).start()
    done, waiting = concurrent.futures.wait(futures, timeout=10)
    assert done == set(futures) and not waiting
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, timeout=10)) == [0, 1, 2]


def test_wait_for_the_first_exception(owner: Owner) -> None:
    futures: list[Future[int]] = [Future(owner, number) for number in range(2)]
    threading.Timer(0.02, lambda: futures[1].set_exception(ValueError("first"))).start()
    done, waiting = concurrent.futures.wait(futures, timeout=10, return_when=concurrent.futures.FIRST_EXCEPTION)
    assert done == {futures[1]} and waiting == {futures[0]}


def test_many_threads_race_with_the_end(owner: Owner) -> None:
    """Whoever looks for the condition and whoever makes it, one sees the other: nobody waits for ever."""
    for _ in range(300):
        future: Future[int] = Future(owner, 1)
        start = threading.Barrier(3)
        seen: list[int] = []

        def wait(future: Future[int] = future, start: threading.Barrier = start, seen: list[int] = seen) -> None:
            start.wait()
            with future._condition:
                if future.done() or future._condition.wait(10):
                    seen.append(1)

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        future.set_result(1)
        for thread in threads:
            thread.join(10)
        assert seen == [1, 1]


def test_await(owner: Owner) -> None:
    async def main() -> int:
        future: Future[int] = Future(owner, 1)
        asyncio.get_running_loop().call_soon(future.set_result, 9)
        done: Future[int] = Future(owner, 2)
        done.set_result(1)
        return await future + await done

    assert asyncio.run(main()) == 10


def test_repr_says_how_it_stands(owner: Owner) -> None:
    future: Future[int] = Future(owner, 8)
    assert repr(future) == "<Future 8 pending>"
    future.set_exception(KeyError("x"))
    assert repr(future) == "<Future 8 ended in KeyError>"
    ended: Future[int] = Future(owner, 9)
    ended.set_result(1)
    assert repr(ended) == "<Future 9 done>" and not ended.running()
