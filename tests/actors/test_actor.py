"""The base class is a convenience: what it offers does nothing until it is overridden."""

from __future__ import annotations

import omnibus
from omnibus.actors.calls import has_coroutines


class Plain(omnibus.Actor):
    def ping(self) -> str:
        return "pong"


class Coroutine(omnibus.Actor):
    async def ping(self) -> str:
        return "pong"


def test_the_base_class_adds_two_methods_that_do_nothing() -> None:
    actor = omnibus.Actor()
    assert actor.setup() is None and actor.teardown() is None
    assert {name for name in vars(omnibus.Actor) if not name.startswith("__")} == {"setup", "teardown"}


def test_an_actor_needs_a_loop_only_for_its_own_coroutines() -> None:
    assert not has_coroutines(Plain)
    assert has_coroutines(Coroutine)
