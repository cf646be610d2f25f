"""Which classes need a loop, and what a call is named in errors."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from omnibus.actors.calls import Calls, has_coroutines
from omnibus.actors.inbox import Work


class Plain:
    def method(self) -> None: ...

    @property
    def trap(self) -> None:
        raise AssertionError("looking at a class must not run its code")


class Later:
    async def method(self) -> None: ...


class Heir(Later):
    def other(self) -> None: ...


class Generator:
    async def method(self) -> AsyncIterator[int]:
        yield 1


class Static:
    @staticmethod
    async def method() -> None: ...


class Class:
    @classmethod
    async def method(cls) -> None: ...


class Partial:
    async def _method(self, number: int) -> None: ...

    method = functools.partialmethod(_method, 1)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Wrapped:
    @decorated
    async def method(self) -> None: ...


class SetUp:
    async def setup(self) -> None: ...


@pytest.mark.parametrize("cls", [Later, Heir, Generator, Static, Class, Partial, Wrapped, SetUp])
def test_a_class_with_coroutines_needs_a_loop(cls: type) -> None:
    assert has_coroutines(cls)


@pytest.mark.parametrize("cls", [Plain, object, lambda: Later()])
def test_other_classes_and_factories_need_none(cls: Any) -> None:
    assert not has_coroutines(cls)


@pytest.mark.parametrize(
    ("head", "call", "title"),
    [
        ({"fn": "package.module:function"}, len, "package.module:function"),
        ({"code": b"d", "name": "given"}, None, "given"),
        ({"code": b"d"}, None, "a function"),
        ({"code": b"d"}, test_other_classes_and_factories_need_none, "test_other_classes_and_factories_need_none"),
        ({"code": b"d"}, functools.partial(len), "functools.partial"),
        ({"method": "method"}, None, "Plain.method"),
    ],
)
def test_the_title_of_a_call_is_what_its_author_knows_it_by(head: dict[str, Any], call: Any, title: str) -> None:
    calls = Calls({}, code=True)
    calls.actor = Plain()
    work = Work(1, head, None)
    work.call = call
    assert title in calls.title(work)
