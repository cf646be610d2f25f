"""``Actor``: the base class of what handles messages, one at a time, in a process of its own."""

from __future__ import annotations

from typing import Any

__all__ = ["Actor"]


class Actor:
    """An actor: an object that lives in its own process and whose public methods are its messages.

    Messages are handled one at a time, in the order in which each sender sent them, so a method may change ``self``
    without locks. A method may be a coroutine function (nothing interleaves at its ``await``), a generator (a
    stream), or an async generator. Names that begin with an underscore are private. The base class is a convenience:
    any class can be spawned, and whichever of these methods it has are called.

    ::

        class Counter(omnibus.Actor):
            def __init__(self, start: int) -> None:
                self.value = start

            def add(self, n: int) -> int:
                self.value += n
                return self.value
    """

    def setup(self) -> Any:
        """Prepare, in the actor's own process, before its first message.

        What it raises reaches the spawner as ``SetupFailed``.
        """

    def teardown(self) -> Any:
        """Clean up, after the last message, when the actor is stopped in good order."""
