"""Running jobs one after the other: load, call, answer. The loop of a worker, and of an actor without coroutines.

Single-threaded on purpose: what the status page says of it is then exact. Results collect and go out together while
calls are quick; a call that is not known to be quick finds nothing unsent before it.

**One answer for each attempt.** A signal may end an attempt by an :class:`Abort` between any two instructions, also
while its result is put into words. So the word ``inside`` says when: it names the attempt while an ``Abort`` may be
raised, it is cleared by whoever raises one (there is no second), and an answer is queued only once it is clear. A
signal that comes for an attempt whose ``inside`` is not set yet, or not set for now because the mesh's own code runs,
leaves its wish in ``missed``.
"""

from __future__ import annotations

import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from omnibus import running
from omnibus.errors import OmnibusError
from omnibus.payload import decode_call, encode
from omnibus.protocol import Blob
from omnibus.sharedmem import StatusPage

from . import endings
from .calls import Calls
from .endings import Abort, Ending, Fault
from .inbox import STREAM_CREDIT, Inbox, Job

if TYPE_CHECKING:
    import asyncio

__all__ = ["ENCODING", "LAST_WORDS", "LATER", "QUICK", "RUNNING", "Runner", "close_loop"]

QUICK: Final = 200_000
"""Nanoseconds: what results may wait for each other, and what a call begun with results unsent may take."""
LATER: Final = object()
"""Stands for a value that is not there yet: its answer is somebody else's to queue."""
LAST_WORDS: Final = 1.0
"""Seconds that a coroutine which is cancelled because its actor ends has for that."""
_SPECIAL: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})
_LATE: Final = 100_000_000
"""Nanoseconds after an attempt within which a signal that was meant for it may still come."""
_clock: Final = time.perf_counter_ns


LOADING, DECODING, RUNNING, ENCODING = range(4)
"""Where an attempt stands, as plain numbers: what raised is judged by that."""


class Runner:
    """Runs the jobs of one :class:`Inbox`.

    ``flush`` sends what the inbox has to say, ``receive`` takes what has come, ``wait`` blocks until something comes:
    it may be left by an :class:`Abort` and must not have taken anything then. ``page`` is the status page, ``None``
    where no supervisor watches. ``code``: whether code by value may be loaded.
    """

    def __init__(
        self,
        inbox: Inbox,
        page: StatusPage | None,
        *,
        code: bool,
        flush: Callable[[], None],
        receive: Callable[[], object],
        wait: Callable[[], None],
    ) -> None:
        self.inbox = inbox
        self.calls = Calls(inbox.works, code=code)
        self.inside = 0
        self.ended = 0
        self._flush = flush
        self._receive = receive
        self._wait = wait
        self._page = page
        self._code = code
        inbox.on_restricted = self.restrict
        self._flushed = 0
        self._missed = -1
        self._aborted = -1
        self._loop: Any = None
        self._awaited: Any = None
        self._thread = threading.get_ident()
        self._enter: Callable[[running.Scope], None] = running.enter
        self._wanted: Callable[[int], bool] = self._is_unwanted if page is None else page.cancelled

    def restrict(self) -> None:
        """Load no more code by value: the broker says that strangers may send some."""
        self._code = self.calls.code = False

    def run_queued(self) -> None:
        """Run what is queued, answering as it goes.

        Returns when the queue is empty, or when the answers should be sent and news received.
        """
        inbox = self.inbox
        queue = inbox.queue
        began = self._flushed = _clock()
        while queue:
            job = queue.popleft()
            work = job.work
            if (not work.told or work.cost > QUICK) and inbox.records:
                self._flush()
                self._flushed = began
            self.run(job)
            ended = self.ended = _clock()
            cost = ended - began
            began = ended
            work.cost = cost if not work.cost else (7 * work.cost + cost) >> 3
            if not work.told or not work.told <= 2 * work.cost <= 4 * work.told:
                inbox.timed(work)
            if ended - self._flushed > QUICK:
                break
        running.leave()

    def run(self, job: Job) -> None:
        """Make one attempt and queue its answer.

        ``SystemExit`` passes, without an answer and with the page saying that the attempt runs: the process's exit is
        what becomes of it.
        """
        aid, work, _, _, body, blobs, setup = job
        page = self._page
        inbox = self.inbox
        if inbox.cancelled:
            self._heed()
        if page is not None and not page.begin(aid):
            inbox.fail(aid, *endings.revoked("it was recalled before it began"))
            return
        self._enter((job, self._wanted))
        stage = LOADING
        ending: Ending | None = None
        result: bytes = b""
        buffers: list[Any] = []
        try:
            try:
                self.inside = aid
                if self._missed == aid:
                    self._abort(aid)
                call = self._maker(job) if setup else work.call or self.calls.find(work)
                stage = DECODING
                args, kwargs = decode_call(body, blobs, code=self._code)
                stage = RUNNING
                value = call(*args, **kwargs)
                if work.stream or type(value) in _SPECIAL:
                    value = self._go_on(job, value)
                    if value is LATER:
                        return
                stage = ENCODING
                result, buffers = encode(value, code=self._code)
                if buffers:
                    endings.check_size(buffers, inbox.welcome)
            except Abort:
                raise
            except SystemExit as leaving:
                ending = self._leave(job, leaving)
            except BaseException as error:
                ending = self._ending(job, error, stage)
            self.inside = 0
        except Abort as abort:
            ending = endings.aborted(abort.reason, work.timeout)
        self._exit(job)
        if ending is None:
            inbox.answer(aid, result, buffers)
        else:
            inbox.fail(aid, *ending)

    def _exit(self, job: Job) -> None:
        """Note that ``job`` is over."""
        if self._page is not None:
            self._page.end()
        if job.work.stream:
            self.inbox.credits.pop(job.aid, None)

    def _leave(self, job: Job, leaving: SystemExit) -> Ending:
        """Let the process exit."""
        self.inside = 0
        raise leaving

    # ------------------------------------------------------------------ being ended

    def interrupt(self) -> bool:
        """Take a signal, in its handler: say whether it was meant for an attempt, or end that by an ``Abort``."""
        page = self._page
        if page is None:
            return False
        aid = self.inside
        if aid:
            if page.cancelled(aid):
                self._abort(aid)
            return False
        now = page.running()
        if now is None:
            return _clock() - self.ended < _LATE and page.cancelled(page.last)
        if not page.cancelled(now[0]):
            return False
        self._miss(now[0])
        return True

    def roused(self) -> None:
        """Learn, in a signal's handler, that the process is to stop."""

    def _abort(self, aid: int) -> NoReturn:
        """End the attempt that runs, for its supervisor's reason."""
        self.inside = 0
        self._aborted = aid
        assert self._page is not None
        raise Abort(self._page.reason)

    def _miss(self, aid: int) -> None:
        """Remember that ``aid``, which has begun and cannot be interrupted right now, should end."""
        self._missed = aid
        task = self._awaited
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def _heed(self) -> None:
        """Forget whose end was asked for: none of these waits, and none of these runs."""
        self.inbox.cancelled.clear()

    def _is_unwanted(self, aid: int) -> bool:
        """Say whether ``aid`` should end, where there is no page that could say so: what came says it."""
        if threading.get_ident() == self._thread:
            self._receive()
        return aid in self.inbox.cancelled

    def _reason(self, aid: int) -> str:
        """Return why ``aid`` should end."""
        return "cancel" if self._page is None else self._page.reason

    # ------------------------------------------------------------------ what went wrong

    def _ending(self, job: Job, error: BaseException, stage: int) -> Ending:
        """Return how an attempt ends that raised ``error``."""
        if self._aborted == job.aid or (endings.is_surrender(error) and self._wanted(job.aid)):
            return endings.aborted(self._reason(job.aid), job.work.timeout)  # whatever the user's code made of it
        if isinstance(error, Fault):
            return endings.of_mesh(error.error)
        if isinstance(error, OmnibusError) and stage != RUNNING:
            return endings.of_mesh(error, self._where(job, stage))
        setup = f"actor {job.work.head.get('name', '')}".rstrip() if job.setup else ""
        return endings.of_user(error, code=self._code, setup=setup)

    def _where(self, job: Job, stage: int) -> str:
        if stage == DECODING:
            return f"the arguments of {self.calls.title(job.work)}"
        if stage == ENCODING:
            return f"the result of {self.calls.title(job.work)}"
        return ""

    # ------------------------------------------------------------------ the actor

    def _maker(self, job: Job) -> Callable[..., Any]:
        """Return what makes the actor of a set-up job."""
        return functools.partial(self.calls.make, self.calls.load(job.work))

    def tear_down(self) -> None:
        """Let the actor clean up, and end what its coroutines left; its errors are its own, and only shown."""
        try:
            teardown = getattr(self.calls.actor, "teardown", None)
            done = teardown() if callable(teardown) else None
            if type(done) is CoroutineType:
                self._await(done)
            self._end_loop()
        except Exception:
            traceback.print_exc()

    # ------------------------------------------------------------------ coroutines

    def _go_on(self, job: Job, value: Any) -> Any:
        """Bring to its end what a call only began: a coroutine, a stream."""
        if type(value) is CoroutineType:
            value = self._await(value)
        if job.work.stream:
            return self._stream(job, value)
        if type(value) in _SPECIAL:
            raise Fault(endings.not_a_value(self.calls.title(job.work), value))
        return value

    def _await(self, coroutine: Any) -> Any:
        """Run a coroutine to its end: nothing else runs meanwhile but what it started itself."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        aid = self.inside
        self.inside = 0  # an exception out of a signal's handler may get lost in a loop: it cancels the task instead
        task = self._awaited = self._loop.create_task(coroutine)
        try:
            if self._missed == aid:
                task.cancel()
            value = self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self._missed == aid:
                self._abort(aid)
            raise
        finally:
            self._awaited = None
        self.inside = aid
        return value

    def _end_loop(self) -> None:
        """Cancel what runs on the loop still, and close it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            close_loop(loop)

    # ------------------------------------------------------------------ streams

    def _stream(self, job: Job, value: Any) -> None:
        """Send what ``value`` yields, as far as its credits go; wait for more when they are used up."""
        aid = job.aid
        parts = self._parts(job, value)
        self.inbox.credits[aid] = STREAM_CREDIT
        try:
            for part in parts:
                self._push(aid, *self.encode_part(job, part))
        finally:
            self._close(value)

    def encode_part(self, job: Job, part: Any) -> tuple[bytes, list[Blob]]:
        """Return the body and the blobs of a part of a stream."""
        try:
            body, buffers = encode(part, code=self._code)
            if buffers:
                endings.check_size(buffers, self.inbox.welcome)
        except OmnibusError as error:
            raise Fault(type(error)(f"a part of what {self.calls.title(job.work)} yields: {error}")) from None
        return body, buffers

    def _push(self, aid: int, body: bytes, blobs: list[Blob]) -> None:
        """Send one part, see what came, and wait for credit. Only the waiting may be interrupted."""
        inbox = self.inbox
        self.inside = 0
        inbox.chunk(aid, body, blobs)
        self._flush()
        self._receive()
        while inbox.credits[aid] <= 0 and aid not in inbox.cancelled:
            self._unmask(aid)
            self._wait()
            self.inside = 0
            self._receive()
        self._unmask(aid)
        if aid in inbox.cancelled:
            self.inside = 0
            raise Abort("cancel")

    def _unmask(self, aid: int) -> None:
        """Let ``aid`` be interrupted again; do what was asked for meanwhile."""
        self.inside = aid
        if self._missed == aid:
            self._abort(aid)

    def _parts(self, job: Job, value: Any) -> Iterator[Any]:
        if hasattr(type(value), "__aiter__"):
            return self._drain(value.__aiter__())
        try:
            return iter(value)
        except TypeError:
            raise Fault(endings.not_a_stream(self.calls.title(job.work), value)) from None

    def _drain(self, iterator: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._await(_whole(iterator.__anext__()))
            except StopAsyncIteration:
                return

    def _close(self, value: Any) -> None:
        """Let a generator that was left early clean up; its errors are its own, and only shown."""
        try:
            if type(value) is GeneratorType:
                value.close()
            elif type(value) is AsyncGeneratorType:
                self._await(_whole(value.aclose()))
        except Exception:
            traceback.print_exc()


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on a loop, and close it; threads that it lent out are not waited for."""
    import asyncio

    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LAST_WORDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _whole(awaitable: Any) -> Any:
    """Make a coroutine of what can only be awaited, as a task takes nothing else."""
    return await awaitable
