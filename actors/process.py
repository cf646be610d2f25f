"""The main of a worker or actor process: one DEALER, one loop, one thread.

While there is nothing to do it waits for the socket; ZeroMQ's own thread answers heartbeats meanwhile and while user
code holds the GIL. Its supervisor sees what it does on the status page, and its end by a pidfd. An actor with
coroutines is run on an asyncio loop instead (:mod:`omnibus.actors.aiorunner`), which is imported only then.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import zmq

from omnibus.handshake import describe
from omnibus.links import make_context, make_dealer
from omnibus.linkwatch import LinkWatch
from omnibus.sharedmem import StatusPage
from omnibus.sockets import Sent, descriptor, receive, send

from .calls import has_coroutines
from .inbox import Inbox
from .runner import Runner, close_loop

if TYPE_CHECKING:
    from .config import ChildConfig

__all__ = ["Process", "main"]

WITHIN_VARIABLE: Final = "OMNIBUS_WITHIN"
"""Holds this process's session in hex, so that a bus which a task makes here can lend the worker's slot: what
:mod:`omnibus.face` reads. It is not imported for a name: few tasks make a bus."""
_PATIENCE: Final = 2.0
"""Seconds that a process which stops tries to hand its last answers to a link that takes none."""
_FAULT: Final = 70
"""The exit status after an error of our own: EX_SOFTWARE."""


class _Stop(BaseException):
    """Raised by the signal's handler where the process only waits, to leave the waiting."""


class Process:
    """The shell of one child: its socket, its signals, its loop.

    ``watch`` tells of the link where that may break and come back.
    """

    def __init__(
        self,
        inbox: Inbox,
        socket: zmq.Socket[bytes],
        page: StatusPage | None,
        *,
        code: bool,
        watch: LinkWatch | None = None,
    ) -> None:
        self._inbox = inbox
        self._socket = socket
        self._page = page
        self._code = code
        self._watch = watch
        self._runner = Runner(
            inbox, page, code=code, flush=self._flush, receive=self._receive_waiting, wait=self._wait
        )
        self._idle = False
        self._lost = False
        self._poll = select.poll()
        self._poll.register(descriptor(socket), select.POLLIN)
        if watch is not None:
            self._poll.register(descriptor(watch.monitor), select.POLLIN)

    def on_term(self, signum: int, frame: Any) -> None:
        """End the attempt that the supervisor wants to end; otherwise stop: at once if idle, else after the attempt."""
        if self._runner.interrupt():
            return
        again, self._inbox.stopping = self._inbox.stopping, True
        self._runner.roused()
        if self._idle and not again:
            raise _Stop

    def run(self) -> int:
        """Work until told to stop; return the process's exit status."""
        inbox = self._inbox
        try:
            self._flush()
            while not inbox.stopping:
                if inbox.queue:
                    if inbox.queue[0].setup and self._needs_loop():
                        return self._run_on_loop()
                    self._runner.run_queued()
                    self._flush()
                    if inbox.queue:
                        self._receive_waiting()
                else:
                    self._rest()
        except _Stop:
            pass
        except SystemExit as leaving:
            return self._end(leaving.code)
        return self._stop()

    def _stop(self) -> int:
        """End in good order; return the exit status."""
        self._idle = False
        try:
            self._runner.tear_down()
        except SystemExit as leaving:
            return self._end(leaving.code)
        return self._end(self._refused())

    def _refused(self) -> int:
        """Say so where the broker refused this process; return the exit status."""
        refusal = self._inbox.refusal
        if refusal is None:
            return 0
        print(f"omnibus: the broker refused this process: {refusal.get('message')}", file=sys.stderr)
        return 1

    def _end(self, code: Any) -> int:
        """Give back what was not begun, send what is unsent, and return the exit status that ``code`` means."""
        self._idle = False
        inbox = self._inbox
        inbox.stopping = True
        if inbox.refusal is None and not inbox.parted:
            self._receive_waiting()
            inbox.give_back("its worker stops")
            inbox.bye()
            self._flush()
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            return 1
        return code or 0

    # ------------------------------------------------------------------ actors with coroutines

    def _needs_loop(self) -> bool:
        """Say whether the actor to be made has coroutines; one that cannot be loaded says why when it is made."""
        work = self._inbox.queue[0].work
        if work.head.get("concurrency", 1) != 1:
            return True
        try:
            return has_coroutines(self._runner.calls.load(work))
        except Exception:
            return False

    def _run_on_loop(self) -> int:
        """Go on as an actor with coroutines, to the end; return the exit status."""
        import asyncio

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live())
        except SystemExit as leaving:
            return self._end(leaving.code)
        finally:
            close_loop(loop)
        return self._end(self._refused())

    async def _live(self) -> None:
        """Live on the running loop; raise the ``SystemExit`` that the actor's code raised, or what ended the link."""
        import asyncio

        from .aiolink import AsyncLink
        from .aiorunner import AsyncRunner

        inbox = self._inbox
        link = AsyncLink(inbox, self._socket, self._watch, before=_flush_output)
        most = inbox.queue[0].work.head.get("concurrency", 1)
        self._runner = runner = AsyncRunner(inbox, self._page, link, code=self._code, concurrency=most)
        link.open(runner.work)
        try:
            await asyncio.wait([link.ended])
            if runner.leaving is not None:
                raise runner.leaving
            await runner.finish(None)
            await runner.tear_down_on()
        finally:
            failure = link.ended.exception() if link.ended.done() else None
            await link.drain()
            link.close()
        if failure is not None and inbox.refusal is None and not inbox.parted:
            raise failure

    # ------------------------------------------------------------------ the socket

    def _rest(self) -> None:
        """Take all that came, for behind work may stand its end; where there is none, send what is unsent and wait."""
        if self._receive_waiting():
            return
        if self._inbox.unsent:
            self._flush()
        else:
            self._idle = True
            if not self._inbox.stopping:
                self._wait()
            self._idle = False

    def _wait(self) -> None:
        """Wait until something has come, and take none of it: a signal's handler may raise here.

        Whoever calls has asked the socket, whose descriptor is edge-triggered, and found nothing.
        """
        self._poll.poll()

    def _receive_waiting(self) -> bool:
        """Take all messages that are there; return whether there were any."""
        if self._watch is not None:
            self._observe(self._watch)
        came = False
        while (frames := receive(self._socket, 2)) is not None:
            self._inbox.receive(frames)
            came = True
        return came

    def _observe(self, watch: LinkWatch) -> None:
        """Say HELLO anew over a link that is new."""
        for event in watch.events():
            if event.what == "up" and self._lost:
                self._lost = False
                self._inbox.greet()
                self._flush()
            elif event.what == "down":
                self._lost = True

    def _flush(self) -> None:
        """Send what the inbox has to say; what the user's code printed before that is out first."""
        _flush_output()
        until = None
        for message in self._inbox.take():
            while send(self._socket, message) is Sent.FULL:
                self._socket.poll(100, zmq.POLLOUT)
                if self._inbox.stopping:
                    until = until or time.monotonic() + _PATIENCE
                    if time.monotonic() > until:
                        return


def _flush_output() -> None:
    """Flush both streams; one that the user's code closed or replaced is its own affair."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue


def main(config: ChildConfig) -> int:
    """Run the child that ``config`` describes, in the main thread of its process; return its exit status."""
    page = StatusPage.attach(config.page_fd) if config.page_fd >= 0 else None
    breaks = config.target.parsed().is_tcp
    hello = describe(
        config.role,
        config.session,
        name=config.name,
        node=config.node,
        credits=config.credits,
        incarnation=config.incarnation,
        command=config.command,
        devices=list(config.devices),
        code=config.code,
        **({"resume": True} if breaks else {}),
    )
    os.environ[WITHIN_VARIABLE] = config.session.hex()
    context = make_context()
    socket = make_dealer(context, config.target)
    watch = LinkWatch(socket) if breaks else None
    process = Process(Inbox(hello), socket, page, code=config.code, watch=watch)
    signal.signal(signal.SIGTERM, process.on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.run()
    except Exception:
        traceback.print_exc()
        return _FAULT
    finally:
        if watch is not None:
            watch.close()
        socket.close(linger=1000)
        context.term()
