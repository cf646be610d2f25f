"""Running jobs on an asyncio loop: those of an actor with coroutines, or of one in somebody else's process.

A coroutine, or a stream, is an asyncio task of its own. Nothing interleaves by default: the next message begins when
the one before has been answered; with ``concurrency`` so many are under way at once. What a method leaves running on
the loop goes on. Plain methods run inline, and keep the loop from turning meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from omnibus import running
from omnibus.errors import OmnibusError, SetupFailed
from omnibus.payload import encode
from omnibus.protocol import Blob
from omnibus.sharedmem import StatusPage

from .aiolink import AsyncLink
from .calls import has_coroutines
from .endings import Abort, Ending, Fault, aborted, check_size, not_a_stream, not_a_value, of_mesh
from .inbox import STREAM_CREDIT, Inbox, Job
from .runner import ENCODING, LAST_WORDS, LATER, QUICK, RUNNING, Runner

__all__ = ["AsyncRunner"]

_clock: Final = time.perf_counter_ns


class Attempt:
    """One coroutine or stream under way. ``reason`` is why it should end, where somebody wants that."""

    __slots__ = ("began", "job", "reason", "task", "timer")

    def __init__(self, job: Job, began: int) -> None:
        self.job = job
        self.began = began
        self.reason = ""
        self.task: asyncio.Task[None]
        self.timer: asyncio.TimerHandle | None = None

    def end(self, reason: str) -> None:
        """Cancel it; the first reason counts."""
        if not self.reason:
            self.reason = reason
            self.task.cancel()


class AsyncRunner(Runner):
    """Runs the jobs of one :class:`Inbox` on the running loop, by way of ``link``.

    ``hosted``: the process is somebody else's, and nothing here may end it.
    """

    def __init__(
        self,
        inbox: Inbox,
        page: StatusPage | None,
        link: AsyncLink,
        *,
        code: bool,
        concurrency: int = 1,
        hosted: bool = False,
    ) -> None:
        super().__init__(inbox, page, code=code, flush=link.flush, receive=link.look, wait=lambda: None)
        self.leaving: SystemExit | None = None
        self._link = link
        self._loop = link.loop
        self._most = concurrency
        self._hosted = hosted
        self._attempts: dict[int, Attempt] = {}
        self._credit: dict[int, asyncio.Future[None]] = {}
        self._inline: tuple[int, float] = (0, 0.0)
        self._interrupted: KeyboardInterrupt | None = None
        self._wanted = self._is_unwanted
        self._enter = self._enter_context
        inbox.active = self._attempts.keys()

    def work(self) -> None:
        """Begin what may begin, for a while; what is left waits for the next turn of the link."""
        self._heed()
        inbox = self.inbox
        queue = inbox.queue
        first = began = _clock()
        while queue and len(self._attempts) < self._most and not inbox.stopping:
            job = queue.popleft()
            work = job.work
            if (not work.told or work.cost > QUICK) and inbox.records:
                self._flush()
            try:
                copy_context().run(self.run, job)
            except SystemExit:
                return  # noted, and the link ends
            ended = self.ended = _clock()
            if job.aid not in self._attempts:
                self._time(job, ended - began)
            began = ended
            if ended - first > QUICK:
                self._link.post()
                return
        if self._interrupted is not None:
            interrupted, self._interrupted = self._interrupted, None
            raise interrupted

    def _time(self, job: Job, cost: int) -> None:
        work = job.work
        work.cost = cost if not work.cost else (7 * work.cost + cost) >> 3
        if not job.setup:
            self.inbox.timed(work)

    def _heed(self) -> None:
        """Do what was asked of attempts that are under way: end, or send on."""
        inbox = self.inbox
        for aid in inbox.cancelled:
            attempt = self._attempts.get(aid)
            if attempt is not None:
                attempt.end("cancel")
        inbox.cancelled.clear()
        for aid in [aid for aid in self._credit if inbox.credits.get(aid, 0) > 0]:
            waiter = self._credit.pop(aid)
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ how the loop differs

    def _enter_context(self, scope: running.Scope) -> None:
        job: Job = scope[0]
        timeout = job.work.timeout
        self._inline = (job.aid, self._loop.time() + timeout if timeout else float("inf"))
        running.enter_context(scope)

    def _exit(self, job: Job) -> None:
        page = self._page
        if page is not None and page.last == job.aid:  # of several under way the page knows the newest
            page.end()
        if job.work.stream:
            self.inbox.credits.pop(job.aid, None)

    def _leave(self, job: Job, leaving: SystemExit) -> Ending:
        if self._hosted:
            return self._ending(job, leaving, RUNNING)
        self.inside = 0
        self._depart(leaving)
        raise leaving

    def _depart(self, leaving: SystemExit) -> None:
        """Have the process exit: the link ends, and whoever runs it looks here."""
        self.leaving = leaving
        self._link.stop()

    def _ending(self, job: Job, error: BaseException, stage: int) -> Ending:
        attempt = self._attempts.get(job.aid)
        if attempt is not None and attempt.reason:
            return aborted(attempt.reason, job.work.timeout)
        if isinstance(error, Abort):
            return aborted(error.reason, job.work.timeout)
        if isinstance(error, KeyboardInterrupt) and self._hosted and _in_main_thread():
            self._interrupted = error  # somebody's Ctrl-C is not the actor's to keep
            self._link.post()
        return super()._ending(job, error, stage)

    def _maker(self, job: Job) -> Callable[..., Any]:
        self.check(self.calls.load(job.work))
        return super()._maker(job)

    def check(self, cls: Any) -> None:
        """Raise :class:`SetupFailed` where ``concurrency`` was asked for, and is of no use."""
        if self._most > 1 and not has_coroutines(cls):
            name = getattr(cls, "__qualname__", repr(cls))
            raise SetupFailed(
                f"concurrency={self._most} is for coroutines, and {name} has none: its methods run one after the "
                "other; make them async, or leave the option out"
            )

    def _is_unwanted(self, aid: int) -> bool:
        attempt = self._attempts.get(aid)
        if attempt is not None and attempt.reason:
            return True
        if self._page is not None and self._page.cancelled(aid):
            return True
        inline, until = self._inline
        return inline == aid and (self._loop.time() > until or super()._is_unwanted(aid))

    def _reason(self, aid: int) -> str:
        attempt = self._attempts.get(aid)
        if attempt is not None and attempt.reason:
            return attempt.reason
        if self._page is not None:
            return self._page.reason
        inline, until = self._inline
        return "timeout" if inline == aid and self._loop.time() > until else "cancel"

    def _miss(self, aid: int) -> None:
        self._missed = aid
        assert self._page is not None
        self._loop.call_soon_threadsafe(self._end_attempt, aid, self._page.reason)

    def _end_attempt(self, aid: int, reason: str) -> None:
        attempt = self._attempts.get(aid)
        if attempt is not None:
            attempt.end(reason)

    def roused(self) -> None:
        """Learn, in a signal's handler, that the process is to stop."""
        self._loop.call_soon_threadsafe(self._link.post)

    # ------------------------------------------------------------------ coroutines and streams

    def _go_on(self, job: Job, value: Any) -> Any:
        """Have the loop bring to its end what a call only began."""
        if type(value) is not CoroutineType and not job.work.stream:
            raise Fault(not_a_value(self.calls.title(job.work), value))
        self.inside = 0
        aid = job.aid
        attempt = self._attempts[aid] = Attempt(job, _clock())
        attempt.task = self._loop.create_task(self._finish(job, value))
        attempt.task.add_done_callback(lambda task: self._conclude_unbegun(job, value))
        if job.work.timeout:
            attempt.timer = self._loop.call_later(job.work.timeout, attempt.end, "timeout")
        if self._missed == aid and self._page is not None:
            attempt.end(self._page.reason)
        return LATER

    async def _finish(self, job: Job, value: Any) -> None:
        """Bring one attempt to its end, and queue its answer."""
        try:
            body, blobs = await self._value(job, value)
        except SystemExit as leaving:
            if not self._hosted:
                self._depart(leaving)
                return
            self._conclude(job, self._ending(job, leaving, RUNNING))
        except BaseException as error:
            self._conclude(job, self._ending(job, error, RUNNING))
        else:
            self._conclude(job, None, body, blobs)

    async def _value(self, job: Job, value: Any) -> tuple[bytes, list[Blob]]:
        if type(value) is CoroutineType:
            value = await value
        if job.work.stream:
            await self._stream_on(job, value)
            value = None
        elif isinstance(value, (GeneratorType, AsyncGeneratorType)):
            raise Fault(not_a_value(self.calls.title(job.work), value))
        try:
            body, blobs = encode(value, code=self._code)
            if blobs:
                check_size(blobs, self.inbox.welcome)
        except OmnibusError as error:
            raise Fault(type(error)(of_mesh(error, self._where(job, ENCODING))[0]["message"])) from None
        return body, blobs

    def _conclude(self, job: Job, ending: Ending | None, body: bytes = b"", blobs: list[Blob] | None = None) -> None:
        """Queue the one answer of an attempt."""
        attempt = self._attempts.pop(job.aid)
        if attempt.timer is not None:
            attempt.timer.cancel()
        self._exit(job)
        if ending is None:
            self.inbox.answer(job.aid, body, blobs or ())
        else:
            self.inbox.fail(job.aid, *ending)
        self.ended = _clock()
        self._time(job, self.ended - attempt.began)
        self._link.post()

    def _conclude_unbegun(self, job: Job, value: Any) -> None:
        """Answer for a task that was cancelled before its first step, so that none of its code ran."""
        attempt = self._attempts.get(job.aid)
        if attempt is not None and attempt.task.cancelled():
            if type(value) is CoroutineType:
                value.close()
            self._conclude(job, aborted(attempt.reason or "stop", job.work.timeout))

    async def _stream_on(self, job: Job, value: Any) -> None:
        """Send what ``value`` yields, as far as its credits go; wait for more when they are used up."""
        self.inbox.credits[job.aid] = STREAM_CREDIT
        try:
            if hasattr(type(value), "__aiter__"):
                async for part in value:
                    await self._push_on(job, part)
            else:
                for part in self._step(job, value):
                    await self._push_on(job, part)
        finally:
            await self._close_on(value)

    def _step(self, job: Job, value: Any) -> Iterator[Any]:
        """Yield the parts of an iterable; a signal may end what computes one."""
        try:
            parts = iter(value)
        except TypeError:
            raise Fault(not_a_stream(self.calls.title(job.work), value)) from None
        while True:
            self.inside = job.aid
            try:
                part = next(parts)
            except StopIteration:
                return
            finally:
                self.inside = 0
            yield part

    async def _push_on(self, job: Job, part: Any) -> None:
        """Send one part, let the loop turn, and wait for credit."""
        aid, credits = job.aid, self.inbox.credits
        self.inbox.chunk(aid, *self.encode_part(job, part))
        self._flush()
        await asyncio.sleep(0)
        while credits[aid] <= 0:
            waiter = self._credit[aid] = self._loop.create_future()
            try:
                await waiter
            finally:
                self._credit.pop(aid, None)

    async def _close_on(self, value: Any) -> None:
        """Let a generator that was left early clean up; its errors are its own, and only shown."""
        try:
            if type(value) is GeneratorType:
                value.close()
            elif type(value) is AsyncGeneratorType:
                await value.aclose()
        except Exception:
            traceback.print_exc()

    # ------------------------------------------------------------------ the end

    async def finish(self, patience: float | None) -> None:
        """Let what is under way come to its end; after ``patience`` seconds, end it."""
        for wait, reason in ((patience, "stop"), (LAST_WORDS, "")):
            tasks = [attempt.task for attempt in self._attempts.values()]
            if tasks:
                await asyncio.wait(tasks, timeout=wait)
            for attempt in list(self._attempts.values()) if reason else ():
                attempt.end(reason)

    async def tear_down_on(self) -> None:
        """Let the actor clean up; its errors are its own, and only shown."""
        teardown = getattr(self.calls.actor, "teardown", None)
        try:
            done = teardown() if callable(teardown) else None
            if isinstance(done, Coroutine):
                await done
        except Exception:
            traceback.print_exc()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
