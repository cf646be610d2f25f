"""``current()``: what the code of a task or an actor learns of its attempt."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from typing import Any

import pytest

import omnibus
from omnibus import running
from omnibus.actors.inbox import Job, Work

SESSION = bytes(range(16))


def job(seq: int = 7, **head: Any) -> Job:
    return Job(40 + seq, Work(1, {"session": SESSION, **head}, None), seq, 2, b"\x90", ())


@pytest.fixture(autouse=True)
def nothing_runs_afterwards() -> Iterator[None]:
    yield
    running.leave()


def test_outside_of_an_attempt_there_is_none() -> None:
    with pytest.raises(omnibus.UsageError, match="nothing of Omnibus runs here"):
        omnibus.current()


def test_an_attempt_is_told_what_it_is() -> None:
    running.enter((job(name="mine"), {47}.__contains__))
    now = omnibus.current()
    assert (now.id, now.attempt, now.name) == (f"{SESSION.hex()}-7", 2, "mine")
    assert now.cancelled
    running.leave()
    with pytest.raises(omnibus.UsageError):
        omnibus.current()


def test_whether_it_is_cancelled_is_asked_anew_each_time() -> None:
    wanted: set[int] = set()
    running.enter((job(), wanted.__contains__))
    now = omnibus.current()
    assert not now.cancelled
    wanted.add(47)
    assert now.cancelled


def test_an_actor_in_the_making_has_a_name_and_no_id() -> None:
    running.enter((Job(1, Work(0, {"name": "counter"}, None), 0, 1, b"\x90", (), setup=True), {2}.__contains__))
    now = omnibus.current()
    assert (now.id, now.name, now.cancelled) == ("", "counter", False)
    assert repr(now) == "<Running counter attempt 1>"


def test_a_context_has_its_own_attempt_and_tasks_and_threads_inherit_it() -> None:
    async def look() -> list[str]:
        running.enter_context((job(8), set[int]().__contains__))
        inner = await asyncio.get_running_loop().create_task(asyncio.to_thread(lambda: omnibus.current().id))
        return [omnibus.current().id, inner]

    running.enter((job(7), set[int]().__contains__))
    assert contextvars.copy_context().run(asyncio.run, look()) == [f"{SESSION.hex()}-8"] * 2
    assert omnibus.current().id == f"{SESSION.hex()}-7"
