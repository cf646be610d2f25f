"""Streams and subscriptions as iterators: what collects parts as they come, and gives credit back for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from omnibus.futures import Future
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import Verb

__all__ = ["STREAM_CREDIT", "SUBSCRIPTION_CREDIT", "Parts", "Stream", "StreamEnd", "Subscription"]

STREAM_CREDIT = 32
"""Chunks that a stream may be ahead of its reader; both ends begin with it."""
SUBSCRIPTION_CREDIT = 1024
"""Events that a subscription may be ahead of its reader."""


class Parts:
    """What has come and was not taken yet.

    A :class:`omnibus.peer.Sink`; ``notify`` is called when something came or it ended.

    ``seq`` is the request's number, ``window`` the credit that both ends began with: half of it is given back at a
    time.
    """

    def __init__(self, peer: ClientPeer, seq: int, window: int, sent: Callable[[], None]) -> None:
        self.waiting: deque[tuple[Any, int]] = deque()
        self.missed = 0
        self.ended = False
        self.error: BaseException | None = None
        self.notify: Callable[[], None] | None = None
        self.seq = seq
        self._peer = peer
        self._window = window
        self._sent = sent
        self._taken = 0

    def feed(self, value: Any, number: int, missed: int) -> None:
        """Take a part that came."""
        self.waiting.append((value, number))
        self.missed += missed
        if self.notify is not None:
            self.notify()

    def end(self, error: BaseException | None) -> None:
        """Learn that nothing more comes."""
        self.ended = True
        self.error = error
        if self.notify is not None:
            self.notify()

    def open(self) -> None:
        """Begin to receive."""
        self._peer.sinks[self.seq] = self

    def finish(self, error: BaseException | None) -> None:
        """End, and receive no more."""
        self._peer.sinks.pop(self.seq, None)
        self.end(error)

    def take(self) -> tuple[Any, int]:
        """Return the next part and its number; the caller saw that one waits."""
        part = self.waiting.popleft()
        self._taken += 1
        if self._taken >= self._window // 2 and not self.ended:
            self._tell(Verb.CREDIT, self._taken)
            self._taken = 0
        return part

    def close(self, verb: int) -> None:
        """Want no more: tell the other side by ``verb``, once."""
        if self._peer.sinks.pop(self.seq, None) is not None:
            self._tell(verb, None)
        self.ended = True
        self.waiting.clear()

    def _tell(self, verb: int, head: Any) -> None:
        if self._peer.failure is None:
            self._peer.out.append([verb, self.seq, head, None, 0])
            self._sent()


class StreamEnd:
    """The ending of a streamed request: what its future would be."""

    __slots__ = ("lane", "parts", "size")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.lane: Lane | None = None
        self.size = 0
        parts.open()

    def set_result(self, result: Any, /) -> None:
        """Learn that the generator has ended."""
        self.parts.finish(None)

    def set_exception(self, exception: BaseException | None, /) -> None:
        """Learn how it failed."""
        self.parts.finish(exception)


class _Waiter:
    """Lets a thread wait for the next part by way of a future, so that it drives the socket meanwhile."""

    def __init__(self, parts: Parts, make: Callable[[int], Future[None]]) -> None:
        self._parts = parts
        self._make = make
        self._next: Future[None] | None = None
        parts.notify = self._wake

    def _wake(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.set_result(None)

    def wait(self, timeout: float | None) -> None:
        """Wait until a part is there or the end came; raises ``TimeoutError``."""
        parts = self._parts
        while not parts.waiting and not parts.ended:
            future = self._next = self._make(parts.seq)
            if parts.waiting or parts.ended:
                return
            future.result(timeout)


class Stream(Iterator[Any]):
    """Iterates over what a generator method yields. The method's error is raised where its next part would be.

    The sender is at most :data:`STREAM_CREDIT` parts ahead. ``close()``, leaving a ``with`` block, or dropping the
    iterator cancels the rest.
    """

    def __init__(self, parts: Parts, make: Callable[[int], Future[None]]) -> None:
        self._parts = parts
        self._waiter = _Waiter(parts, make)

    def __next__(self) -> Any:
        parts = self._parts
        if not parts.waiting:
            self._waiter.wait(None)
        if parts.waiting:
            return parts.take()[0]
        if parts.error is not None:
            error, parts.error = parts.error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """Cancel what is left; does nothing after the end."""
        if not self._parts.ended:
            self._parts.close(Verb.CANCEL)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Subscription(Iterator[Any]):
    """Iterates over what is published under a topic, without end; :meth:`get` waits for a bounded time.

    ``number`` is that of the event returned last; ``missed`` counts events that the broker no longer had when this
    reader came for them.
    """

    def __init__(self, topic: str, parts: Parts, make: Callable[[int], Future[None]]) -> None:
        self.topic = topic
        self.number = 0
        self._parts = parts
        self._waiter = _Waiter(parts, make)

    @property
    def missed(self) -> int:
        """Events lost to this reader so far."""
        return self._parts.missed

    def get(self, timeout: float | None = None) -> Any:
        """Return the next event; raises ``TimeoutError`` when none comes in time, or why the bus ended."""
        parts = self._parts
        if not parts.waiting:
            self._waiter.wait(timeout)
        if parts.waiting:
            value, self.number = parts.take()
            return value
        if parts.error is not None:
            raise parts.error
        raise StopIteration

    def __next__(self) -> Any:
        return self.get()

    def close(self) -> None:
        """Stop following the topic."""
        if not self._parts.ended:
            self._parts.close(Verb.UNSUBSCRIBE)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
