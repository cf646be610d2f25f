"""``Actor``: the base class of what handles messages, one at a time, in a process of its own."""

from __future__ import annotations

from typing import Any

__all__ = ["Actor"]


class Actor:
    """An actor: an object that lives in its own process and whose public methods are its messages.

    Messages are handled one at a time, in the order in which each sender sent them, so a method may change ``self``
    without locks. The base class is a convenience: any class can be spawned, and whichever of the methods below it has
    are called. Names that begin with an underscore are private.

    A method may be a generator, which is a stream. Where any method is a coroutine function or an async generator, the
    actor lives on an asyncio loop, from its constructor on: what it starts there goes on between messages. Nothing
    interleaves at an ``await``, unless it was spawned with ``concurrency=n``: then so many coroutines run at a time. A
    cancelled message, or one whose ``timeout`` is over, gets ``asyncio.CancelledError`` at its ``await``.

    ::

        class Counter(omnibus.Actor):
            def __init__(self, start: int) -> None:
                self.value = start

            def add(self, n: int) -> int:
                self.value += n
                return self.value
    """

    def setup(self) -> Any:
        """Prepare, in the actor's own process, before its first message; may be a coroutine function.

        What it raises reaches the spawner as :class:`omnibus.SetupFailed`.
        """

    def teardown(self) -> Any:
        """Clean up, after the last message, when the actor is stopped in good order; may be a coroutine function."""
