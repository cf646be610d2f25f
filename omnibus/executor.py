"""``Executor``: a mesh behind the interface of ``concurrent.futures``, for code that expects one."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from omnibus.bus import Bus, connect
from omnibus.errors import UsageError
from omnibus.futures import Future

__all__ = ["Executor"]

R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """Runs calls on a mesh.

    ``bus`` is one that is open, which stays open; without it :func:`omnibus.connect` makes one with ``connecting``
    (``workers=2`` and the like), which ``shutdown`` closes. ``options`` are those of every task (``priority``,
    ``retries``, ...). Unlike a process pool it loses nothing when a worker dies, and its functions may stand in
    ``__main__``.
    """

    def __init__(self, bus: Bus | None = None, *, options: dict[str, Any] | None = None, **connecting: Any) -> None:
        if bus is not None and connecting:
            raise UsageError(f"give a bus or how to connect ({', '.join(connecting)}), not both")
        self._bus = bus if bus is not None else connect(**connecting)
        self._owns = bus is None
        self._submitter = self._bus.options(**(options or {}))
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._shut = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Have ``fn(*args, **kwargs)`` run, and return its future; raises ``RuntimeError`` after :meth:`shutdown`."""
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._submitter.submit(fn, *args, **kwargs)
            self._open.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def map(
        self, fn: Callable[..., R], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[R]:
        """Return the results in order; ``chunksize`` changes nothing, for the bus batches by itself."""
        return super().map(fn, *iterables, timeout=timeout, chunksize=chunksize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; cancel those that have not ended, or wait for all; close the bus if this made it."""
        with self._lock:
            self._shut = True
            unfinished = list(self._open)
        if cancel_futures:
            for future in unfinished:
                future.cancel()
        if wait:
            concurrent.futures.wait(unfinished)
            if self._owns:
                self._bus.close()
        elif self._owns:
            threading.Thread(target=self._close_later, args=(unfinished,), name="omnibus-shutdown").start()

    def _close_later(self, unfinished: list[Future[Any]]) -> None:
        concurrent.futures.wait(unfinished)
        self._bus.close()
