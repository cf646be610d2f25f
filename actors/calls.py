"""What the jobs of one process call: functions by name or value, the methods of its actor, and its making."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from omnibus.errors import NotFound, SetupFailed
from omnibus.functions import allowed, load

from .inbox import Work

__all__ = ["Calls", "has_coroutines"]


class Calls:
    """Finds what works call. ``actor`` is the actor once it was made; ``code``: whether code by value may be loaded."""

    def __init__(self, works: Mapping[int, Work], *, code: bool) -> None:
        self.actor: Any = None
        self._works = works
        self.code = code

    def find(self, work: Work) -> Callable[..., Any]:
        """Return what ``work`` calls, and keep it there.

        A failure is not kept: a module that is mended, or an attribute that the actor gets later, is found next time.
        Raises :class:`SetupFailed` for code that cannot be loaded, :class:`NotFound` for an actor's unknown method.
        """
        method = work.head.get("method")
        work.call = self._method(method) if method is not None else self._same(work) or self.load(work)
        return work.call

    def load(self, work: Work) -> Callable[..., Any]:
        """Return the function or the class that the head of ``work`` names, or that its code is."""
        source = work.head.get("fn") or work.head.get("cls") or work.code
        if source is None:
            raise SetupFailed("the code of this function did not come along; submit it again over a new bus")
        return load(source, code=self.code, allow=allowed(os.environ))

    def _same(self, work: Work) -> Callable[..., Any] | None:
        """Return the same code that was loaded for another kind, so that its globals are there once."""
        code = work.code
        if code is None:
            return None
        return next((other.call for other in self._works.values() if other.code is code and other.call), None)

    def _method(self, name: str) -> Callable[..., Any]:
        kind = type(self.actor)
        found = None if name.startswith("_") else getattr(self.actor, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
        public = [each for each in dir(kind) if each[0] != "_" and callable(getattr(kind, each, None))]
        messages = ", ".join(each for each in public if each not in ("setup", "teardown")) or "none at all"
        what = "a private name" if name.startswith("_") else "no method" if found is None else "not callable"
        raise NotFound(f"actor {kind.__qualname__} has no message {name!r} ({what}); it has {messages}")

    def make(self, cls: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make the actor and let it set itself up; return a coroutine where that is not done yet."""
        actor = cls(*args, **kwargs)
        setup = getattr(actor, "setup", None)
        rest = setup() if callable(setup) else None
        if inspect.iscoroutine(rest):
            return self._settle(actor, rest)
        self.actor = actor
        return None

    async def _settle(self, actor: Any, rest: Any) -> None:
        await rest
        self.actor = actor

    def title(self, work: Work) -> str:
        """Return what ``work`` is called in an error's message."""
        head = work.head
        if "method" in head:
            return f"{type(self.actor).__qualname__}.{head['method']}"
        call = work.call
        if call is None or "fn" in head:
            return str(head.get("fn") or head.get("cls") or head.get("name") or "a function")
        name = getattr(call, "__qualname__", None) or type(call).__qualname__
        return f"{getattr(call, '__module__', None) or '?'}.{name}"


def has_coroutines(cls: Any) -> bool:
    """Say whether a class has coroutine functions or async generators among its methods: it needs a loop of its own."""
    if not isinstance(cls, type):
        return False
    for name in dir(cls):
        found = inspect.unwrap(_function(inspect.getattr_static(cls, name, None)))
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            return True
    return False


def _function(found: Any) -> Any:
    """Return the function under a static method, a class method or a partial one."""
    while isinstance(found, (staticmethod, classmethod, functools.partialmethod, functools.partial)):
        found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found.func
    return found
