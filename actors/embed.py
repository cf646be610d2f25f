"""``omnibus.serve``: an actor in this process, in a thread of its own or on a running asyncio loop.

It is a worker peer of role ``actor`` without a supervisor. So nothing can end what a method does but the method itself:
``timeout`` and ``cancel`` cancel a coroutine, and a plain method that wants to know looks at
``omnibus.current().cancelled``. Nothing here touches signals, or ends the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from omnibus.address import Target
from omnibus.errors import ConnectTimeout, OmnibusError, SetupFailed, UsageError
from omnibus.handshake import describe, new_session
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.rundir import resolve

from .aiolink import AsyncLink
from .aiorunner import AsyncRunner
from .inbox import Inbox
from .runner import close_loop

__all__ = ["Served", "serve"]

_PATIENCE: Final = 5.0
"""Seconds that what an actor handles may still take when its end was asked for from elsewhere."""
_EXIT_PATIENCE: Final = 1.0


def serve(
    cls: Any,
    /,
    *args: Any,
    name: str | None = None,
    address: str | None = None,
    insecure: bool = False,
    timeout: float = 10.0,
    mailbox: int = 1024,
    concurrency: int = 1,
    thread: bool | None = None,
    **kwargs: Any,
) -> Served:
    """Make ``cls(*args, **kwargs)`` an actor of a mesh, in this process; anyone finds it by its ``name``.

    Outside of an asyncio loop it lives in a thread, and is ready when this returns: use what is returned as a context
    manager, or call its ``stop()``. In a coroutine it lives on the running loop: ``async with serve(...)``, or ``await
    serve(...)`` and later ``await served.stop()``. There plain methods run on the loop, and keep it from anything else
    meanwhile. ``thread=True`` gives it a thread there too.

    ``address`` and ``insecure`` say which mesh, as for :func:`omnibus.connect`; one that ``connect`` embedded in this
    process is meant by ``address=bus.address``. ``timeout`` bounds the wait for the broker. ``mailbox`` is how many
    messages it may hold, ``concurrency`` how many coroutines run at a time.

    Raises (or raises when awaited) :class:`omnibus.SetupFailed` with the cause where making it or its ``setup``
    raised, :class:`omnibus.AlreadyExists` where the name is taken, :class:`omnibus.ConnectTimeout` where nobody
    answers, :class:`omnibus.UsageError` where there is no mesh.
    """
    target = resolve(address, insecure=insecure)
    if target is None:
        raise UsageError(
            "no mesh to serve in: give address= (bus.address of a bus that embeds one), set $OMNIBUS_ADDRESS, or "
            "start one by `omnibus up`"
        )
    for what, value in (("mailbox", mailbox), ("concurrency", concurrency)):
        if type(value) is not int or value < 1:
            raise UsageError(f"{what} must be a whole number from 1 on, not {value!r}")
    name = f"{getattr(cls, '__name__', 'actor')}-{os.urandom(3).hex()}" if name is None else name
    plan = _Plan(target, name, cls, args, kwargs, timeout, mailbox, concurrency)
    if thread or (thread is None and asyncio._get_running_loop() is None):
        return _in_thread(plan)
    return Served(plan)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be served, and where."""

    target: Target
    name: str
    cls: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout: float
    mailbox: int
    concurrency: int


class Served:
    """An actor that lives in this process; made by :func:`serve`.

    ``failure`` is why it ended by itself: :class:`omnibus.Unreachable` where its broker is gone; the process goes on.
    """

    def __init__(self, plan: _Plan) -> None:
        self.name = plan.name
        self.failure: BaseException | None = None
        self._plan = plan
        self._life: _Life | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = "not started"

    @property
    def actor(self) -> Any:
        """The object itself. Its methods run in its thread or on its loop: mind that when you touch it."""
        return self._life.actor if self._life is not None else None

    @property
    def running(self) -> bool:
        """Whether it takes messages."""
        return self._state == "ready"

    def stop(self, timeout: float = _PATIENCE) -> Any:
        """Stop it: what it handles is finished within ``timeout`` seconds, or cancelled; what waits is given back.

        Returns whether it ended in time: a plain method cannot be interrupted, and its thread ends when that does. On
        a loop, await what this returns. Stopping twice does nothing.
        """
        if self._life is not None:
            self._life.ask_to_stop(timeout)
        if self._thread is None:
            return self._ended(timeout + 1.0)
        if self._thread is threading.current_thread() or not self._mine():
            return False
        self._thread.join(timeout + 1.0)
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it has ended, for as long as it is served; raise its ``failure`` where it has one.

        Returns whether it has. On a loop, await what this returns.
        """
        if self._thread is None:
            return self._over(timeout)
        self._thread.join(timeout)
        return self._told(not self._thread.is_alive())

    def _told(self, ended: bool) -> bool:
        if ended and self.failure is not None:
            raise self.failure
        return ended

    # ------------------------------------------------------------------ in a thread

    def _start(self) -> None:
        """Begin in a thread, and return when it is ready; raise why it is not."""
        began = threading.Event()
        problem: list[BaseException] = []

        def tell(error: BaseException | None) -> None:
            if error is not None:
                problem.append(error)
            began.set()

        self._thread = threading.Thread(
            target=self._live_in_thread, args=(tell,), name=f"omnibus-{self.name}", daemon=True
        )
        self._thread.start()
        try:
            began.wait()
        except BaseException:  # a Ctrl-C while it is set up
            if self._life is not None:
                self._life.ask_to_stop(0.0)
            raise
        if problem:
            self._thread.join()
            raise problem[0]
        atexit.register(self._at_exit)

    def _live_in_thread(self, tell: Callable[[BaseException | None], None]) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live(tell))
        finally:
            close_loop(loop)
            atexit.unregister(self._at_exit)

    async def _live(self, tell: Callable[[BaseException | None], None]) -> None:
        try:
            await self._begin()
        except BaseException as error:
            tell(error)
            return
        tell(None)
        await self._go_on()

    def _at_exit(self) -> None:
        self.stop(_EXIT_PATIENCE)

    def _mine(self) -> bool:
        """Whether this is the process that it lives in, and not a fork of that."""
        return self._life is not None and self._life.pid == os.getpid()

    def __enter__(self) -> Served:
        if self._thread is None:
            raise UsageError("in a coroutine write `async with omnibus.serve(...)`, or give thread=True")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ on a loop

    async def _begin(self) -> None:
        """Make the actor and announce it; raise why that cannot be."""
        self._life = _Life(self._plan, threaded=self._thread is not None)
        try:
            await self._life.open()
        except BaseException:
            self._state = "failed"
            await self._life.close()
            raise
        self._state = "ready"

    async def _go_on(self) -> None:
        """Serve to the end."""
        assert self._life is not None
        try:
            self.failure = await self._life.serve()
        finally:
            self._state = "failed" if self.failure is not None else "stopped"
            await self._life.close()

    async def _begun(self) -> Served:
        if self._thread is None and self._life is None:
            await self._begin()
            self._task = asyncio.get_running_loop().create_task(self._go_on(), name=f"omnibus-{self.name}")
        return self

    async def _ended(self, timeout: float) -> bool:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        return self._task is None or self._task.done()

    async def _over(self, timeout: float | None) -> bool:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        return self._told(self._task is None or self._task.done())

    def __await__(self) -> Generator[Any, None, Served]:
        return self._begun().__await__()

    async def __aenter__(self) -> Served:
        if self._thread is not None:
            raise UsageError("this actor lives in a thread: write `with omnibus.serve(...)`")
        return await self._begun()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        if self._state == "not started" and self._thread is None:
            text = f"omnibus.serve(..., name={self.name!r}) was never awaited"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Served {self.name!r} {self._state} at {self._plan.target.address}>"


def _in_thread(plan: _Plan) -> Served:
    served = Served(plan)
    served._start()
    return served


class _Life:
    """One embedded actor's life on a running loop: its session, its link, its runner."""

    def __init__(self, plan: _Plan, *, threaded: bool) -> None:
        self.pid = os.getpid()
        self._plan = plan
        self._threaded = threaded
        self._patience = _PATIENCE
        target = plan.target
        is_tcp = target.parsed().is_tcp
        self._code = not is_tcp or target.key is not None
        hello = describe(
            "actor",
            new_session(),
            name=plan.name,
            credits=plan.mailbox,
            concurrency=plan.concurrency,
            code=self._code,
            **({"resume": True} if is_tcp else {}),
        )
        self._inbox = Inbox(hello)
        self._context = make_context()
        try:
            self._socket = make_dealer(self._context, target)
        except BaseException:
            self._context.term()
            raise
        self._watch = LinkWatch(self._socket)
        self._link = AsyncLink(self._inbox, self._socket, self._watch, address=target.address)
        self._runner = AsyncRunner(
            self._inbox, None, self._link, code=self._code, concurrency=plan.concurrency, hosted=True
        )

    @property
    def actor(self) -> Any:
        """The object, once it was made."""
        return self._runner.calls.actor

    async def open(self) -> None:
        """Make the actor, and announce it to the broker; raise why either failed."""
        await self._make()
        try:
            await self._announce()
        except BaseException:
            await self._runner.tear_down_on()
            raise

    async def _make(self) -> None:
        plan = self._plan
        self._runner.check(plan.cls)
        try:
            rest = self._runner.calls.make(plan.cls, *plan.args, **plan.kwargs)
            if inspect.iscoroutine(rest):
                await rest
        except Exception as error:
            raise SetupFailed(f"actor {plan.name} could not be set up: {type(error).__name__}: {error}") from error

    async def _announce(self) -> None:
        plan, link = self._plan, self._link
        link.open(self._runner.work)
        in_time = await link.welcome(plan.timeout)
        if link.ended.done() and (failure := link.ended.exception()) is not None:
            raise failure
        if not in_time:
            last = self._watch.last
            why = f": {last.why}" if last is not None else ""
            raise ConnectTimeout(f"no answer from {plan.target.address} within {plan.timeout:g} s{why}")

    def ask_to_stop(self, patience: float) -> None:
        """Have it end; from any thread. What is under way has ``patience`` seconds for that."""
        self._patience = patience
        if self.pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                self._link.loop.call_soon_threadsafe(self._link.stop)

    async def serve(self) -> OmnibusError | None:
        """Work until told to stop; return what ended it, where that was not asked for."""
        link = self._link
        await asyncio.wait([link.ended])
        failure = link.ended.exception()
        await self._runner.finish(self._patience)
        await self._runner.tear_down_on()
        if failure is None or isinstance(failure, OmnibusError):
            return failure
        raise failure

    async def close(self) -> None:
        """Give back what was not begun, say BYE, and let go of the socket."""
        link, inbox = self._link, self._inbox
        ended = link.ended
        failed = ended.done() and ended.exception() is not None
        lost = failed or not inbox.welcome
        if not lost:
            link.look()
            inbox.give_back("its actor was stopped")
            await link.part(_EXIT_PATIENCE)
        link.close()
        self._watch.close()
        self._socket.close(linger=0 if lost else 1000)
        if self._threaded:
            self._context.term()  # at the end of the interpreter there is no other thread to be had
        else:
            await asyncio.to_thread(self._context.term)
