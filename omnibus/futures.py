"""``Future``: a ``concurrent.futures.Future`` that costs little until somebody waits for it, and that can be awaited.

The base class makes a condition, two lists and a lock for each future; most futures of a busy bus are never waited
for by another thread. Here they are made when first needed. The order of two writes makes that safe: whoever ends a
future writes its state *before* it looks for a condition, whoever waits makes the condition *before* looking at the
state; one of them sees the other.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Generator
from concurrent.futures._base import FINISHED, PENDING
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from omnibus.errors import Cancelled

__all__ = ["Future", "Owner"]

T = TypeVar("T")
_making = threading.Lock()


class Owner(Protocol):
    """What a future asks of the bus that made it."""

    def wait(self, future: Future[Any], timeout: float | None) -> bool:
        """Work until ``future`` is done or ``timeout`` seconds are over; return whether it is done."""
        ...

    def attend(self) -> None:
        """See to it that answers are received although nobody calls :meth:`wait`."""
        ...

    def cancel(self, seq: int) -> None:
        """Ask for the end of request ``seq``."""
        ...


if TYPE_CHECKING:
    _Base = concurrent.futures.Future[T]
else:

    class _Base(concurrent.futures.Future, Generic[T]):
        __slots__ = ()


class Future(_Base[T]):
    """The end of one task, to come.

    ``result(timeout)`` waits and returns the value or raises how the task ended; see ``omnibus.errors``. ``await
    future`` does the same on an asyncio loop. ``cancel()`` only asks: it returns whether the request was sent, and
    the broker's answer decides the end. ``seq`` is the number of the request within its session.
    """

    def __init__(self, owner: Owner, seq: int) -> None:
        self._owner = owner
        self.seq = seq
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._made: threading.Condition | None = None
        self.lane: Any = None
        self.size = 0

    # What the base class and concurrent.futures.wait() use, made on demand.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Callable[[Any], Any]] = []
                    self._made = threading.Condition()
        if self._state is PENDING:
            self._owner.attend()
        assert self._made is not None
        return self._made

    def done(self) -> bool:
        """Return whether the task has ended, in whatever way."""
        return self._state is FINISHED

    def running(self) -> bool:
        """Return false: a client is not told when its task begins."""
        return False

    def cancelled(self) -> bool:
        """Return whether the task ended by being cancelled."""
        return isinstance(self._exception, Cancelled)

    def cancel(self) -> bool:
        """Ask for the end of the task; return false if it has ended already. Its end says what came of it."""
        if self._state is FINISHED:
            return self.cancelled()
        self._owner.cancel(self.seq)
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the task's value; wait for it up to ``timeout`` seconds.

        Raises how the task ended where it did not end in a value, ``TimeoutError`` when it is not done in time.
        """
        if self._state is not FINISHED and not self._owner.wait(self, timeout):
            raise TimeoutError(f"request {self.seq} has not ended after {timeout} s; it goes on")
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # breaks the cycle of exception, traceback, frame and future
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the task ended in, or ``None``; wait for its end as :meth:`result` does."""
        if self._state is not FINISHED and not self._owner.wait(self, timeout):
            raise TimeoutError(f"request {self.seq} has not ended after {timeout} s; it goes on")
        return self._exception

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have ``fn(future)`` called when the task ends; at once if it has.

        It runs in the thread that receives the end: keep it short.
        """
        with self._condition:
            if self._state is not FINISHED:
                self._done_callbacks.append(fn)
                return
        _call(fn, self)

    def set_result(self, result: T) -> None:
        """End with a value; for the bus alone."""
        self._result = result
        self._state = FINISHED
        if self._made is not None:
            self._tell()

    def set_exception(self, exception: BaseException | None) -> None:
        """End with an error; for the bus alone."""
        self._exception = exception
        self._state = FINISHED
        if self._made is not None:
            self._tell()

    def _tell(self) -> None:
        assert self._made is not None
        with self._made:
            for waiter in self._waiters:
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
            self._made.notify_all()
            callbacks, self._done_callbacks = self._done_callbacks, []
        for fn in callbacks:
            _call(fn, self)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait on the running asyncio loop."""
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        if self._state is PENDING:
            return f"<Future {self.seq} pending>"
        if self._exception is not None:
            return f"<Future {self.seq} ended in {type(self._exception).__name__}>"
        return f"<Future {self.seq} done>"


def _call(fn: Callable[[Any], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        concurrent.futures._base.LOGGER.exception("exception calling callback for %r", future)
