"""Running jobs one after the other: load, call, answer. The loop of a worker, and of an actor whose messages do not interleave.

Single-threaded on purpose: what the status page says of it is then exact. Results collect and go out together while calls are
quick; a call that is not known to be quick finds nothing unsent before it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from omnibus import running
from omnibus.errors import Cancelled, NotFound, OmnibusError, SetupFailed, TaskTimeout
from omnibus.functions import load
from omnibus.payload import decode_call, encode, encode_error

from .inbox import Inbox, Job, Work

__all__ = ["Abort", "Runner"]

_QUICK = 200_000
"""Nanoseconds: what results may wait for each other, and what a call may take and still be begun with results unsent."""


class Abort(BaseException):
    """Raised inside a running attempt to end it: by a signal of the supervisor's ladder. ``reason`` is ``cancel`` or ``timeout``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Runner:
    """Runs the jobs of one :class:`Inbox`.

    ``flush`` sends what the inbox has to say, ``receive(block)`` takes what has come. ``page`` is the status page, or ``None`` where no supervisor watches. ``code``: whether
    code by value may be loaded.
    """

    def __init__(
        self, inbox: Inbox, flush: Callable[[], None], page: Any, *, code: bool, receive: Callable[[bool], None]
    ) -> None:
        self.inbox = inbox
        self.actor: Any = None
        self.inside = 0
        self._flush = flush
        self._receive = receive
        self._page = page
        self._code = code
        self._flushed = 0
        self._loop: Any = None

    def run_queued(self) -> None:
        """Run what is queued, answering as it goes; returns when the queue is empty or the answers should be sent and news received."""
        inbox = self.inbox
        queue = inbox.queue
        clock = time.perf_counter_ns
        began = self._flushed = clock()
        while queue:
            job = queue.popleft()
            work = job.work
            if (not work.told or work.cost > _QUICK) and inbox.records:
                self._flush()
                self._flushed = began
            self.run(job)
            ended = clock()
            cost = ended - began
            began = ended
            work.cost = cost if not work.cost else (7 * work.cost + cost) >> 3
            if not work.told or not work.told <= 2 * work.cost <= 4 * work.told:
                inbox.timed(work)
            if ended - self._flushed > _QUICK:
                return

    def run(self, job: Job) -> None:
        """Make one attempt and queue its answer. ``SystemExit`` passes: the process's exit decides."""
        page = self._page
        inbox = self.inbox
        if page is not None and not page.begin(job.aid):
            inbox.fail(job.aid, {"error": "Revoked", "message": "it was recalled before it began"}, None)
            return
        running.enter(job, page)
        self.inside = job.aid
        try:
            if job.setup:
                self._set_up(job)
                inbox.answer(job.aid, b"\xc0", ())
                return
            work = job.work
            call = work.call
            if call is None:
                call = self._load(work)
            args, kwargs = decode_call(job.body, job.blobs, code=self._code)
            value = call(*args, **kwargs)
            if type(value) is CoroutineType:
                value = self._await(value)
            if work.stream:
                self._stream(job, value)
                inbox.answer(job.aid, b"\xc0", ())
                return
            body, blobs = encode(value, code=self._code)
            inbox.answer(job.aid, body, blobs)
        except Abort as abort:
            self._aborted(job, abort.reason)
        except SystemExit:
            raise
        except BaseException as error:
            self._failed(job, error)
        finally:
            self.inside = 0
            if page is not None:
                page.end()
            running.leave()

    def _aborted(self, job: Job, reason: str) -> None:
        if reason == "timeout":
            head = {"error": TaskTimeout.__name__, "message": f"it ran longer than its timeout of {job.work.timeout} s and was stopped"}
        else:
            head = {"error": Cancelled.__name__, "message": "it was cancelled while it ran"}
        self.inbox.fail(job.aid, head, None)

    def _failed(self, job: Job, error: BaseException) -> None:
        """Queue the error: Omnibus's own by its class, the user's as a ``RemoteError`` with its traceback."""
        if isinstance(error, OmnibusError):
            self.inbox.fail(job.aid, {"error": type(error).__name__, "message": str(error)}, None)
            return
        described, body = encode_error(error, code=self._code)
        name = SetupFailed.__name__ if job.setup else "RemoteError"
        message = f"{described['type'].removeprefix('builtins.')}: {described['message']}"
        head = {"error": name, "message": message, "type": described["type"], "traceback": described["traceback"]}
        self.inbox.fail(job.aid, head, body)

    # ------------------------------------------------------------------ what to call

    def _load(self, work: Work) -> Callable[..., Any]:
        """Load what ``work`` runs; a failure is remembered, and raised for each of its jobs."""
        if work.broken is not None:
            raise work.broken
        head = work.head
        try:
            if "method" in head:
                work.call = self._method(head["method"])
            else:
                work.call = load(head.get("fn") or work.code, code=self._code, allow=())
        except Exception as error:
            work.broken = error
            raise
        return work.call

    def _method(self, name: str) -> Callable[..., Any]:
        found = getattr(self.actor, name, None)
        if name.startswith("_") or not callable(found):
            public = [each for each in dir(self.actor) if not each.startswith("_") and callable(getattr(self.actor, each))]
            raise NotFound(f"{type(self.actor).__name__} has no message {name!r}; it has {', '.join(public)}")
        return found  # type: ignore[no-any-return]

    def _set_up(self, job: Job) -> None:
        """Make the actor, and let it set itself up."""
        head = job.work.head
        cls = load(head.get("cls") or job.work.code, code=self._code, allow=())
        args, kwargs = decode_call(job.body, job.blobs, code=self._code)
        actor = cls(*args, **kwargs)
        setup = getattr(actor, "setup", None)
        if callable(setup):
            ready = setup()
            if inspect.isawaitable(ready):
                self._await(ready)
        self.actor = actor

    def tear_down(self) -> None:
        """Let the actor clean up; its errors are its own, and only shown."""
        teardown = getattr(self.actor, "teardown", None)
        if callable(teardown):
            done = teardown()
            if inspect.isawaitable(done):
                self._await(done)

    def _await(self, awaitable: Any) -> Any:
        """Run a coroutine to its end: one message at a time, so nothing interleaves."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def whole() -> Any:
            return await awaitable

        return self._loop.run_until_complete(whole())

    # ------------------------------------------------------------------ streams

    def _stream(self, job: Job, value: Any) -> None:
        """Send what ``value`` yields, as far as its credits go; wait for more when they are used up."""
        inbox = self.inbox
        inbox.credits[job.aid] = 32
        parts = value if hasattr(value, "__next__") else self._drain(value) if hasattr(value, "__anext__") else iter(value)
        try:
            for part in parts:
                body, blobs = encode(part, code=self._code)
                inbox.chunk(job.aid, body, blobs)
                self._flush()
                while inbox.credits[job.aid] <= 0 and job.aid not in inbox.cancelled:
                    self._receive(True)
                if job.aid in inbox.cancelled:
                    raise Abort("cancel")
        finally:
            del inbox.credits[job.aid]
            inbox.cancelled.discard(job.aid)
            close = getattr(value, "close", None)
            if close is not None:
                close()

    def _drain(self, value: Any) -> Any:
        while True:
            try:
                yield self._await(value.__anext__())
            except StopAsyncIteration:
                return
