"""The main of a worker or actor process: one DEALER, one loop, one thread.

While there is nothing to do it blocks in the socket; ZeroMQ's own thread answers heartbeats meanwhile and while user code holds
the GIL. Its supervisor sees what it does on the status page, and its end by a pidfd.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import zmq

from omnibus.handshake import describe
from omnibus.links import make_context, make_dealer
from omnibus.sharedmem import StatusPage
from omnibus.sockets import Sent, receive, receive_next, send

from .inbox import Inbox
from .runner import Abort, Runner

if TYPE_CHECKING:
    from .config import ChildConfig

__all__ = ["Process", "main"]


class Process:
    """The shell of one child: its socket, its signals, its loop."""

    def __init__(self, inbox: Inbox, socket: zmq.Socket[bytes], page: StatusPage | None, *, code: bool) -> None:
        self._inbox = inbox
        self._socket = socket
        self._page = page
        self._runner = Runner(inbox, self._flush, page, code=code, receive=self._receive_waiting)
        self._idle = False

    def on_term(self, signum: int, frame: Any) -> None:
        """End the attempt that the supervisor wants to end; otherwise stop: at once when idle, else after the attempt."""
        aid = self._runner.inside
        if aid and self._page is not None and self._page.cancelled(aid):
            raise Abort(self._page.reason)
        self._inbox.stopping = True
        if self._idle:
            raise SystemExit(0)

    def run(self) -> int:
        """Work until told to stop; return the process's exit status."""
        inbox = self._inbox
        try:
            self._flush()
            while not inbox.stopping:
                if inbox.queue:
                    self._runner.run_queued()
                    self._flush()
                    if inbox.queue:
                        self._receive_waiting()
                else:
                    self._receive_one()
            return self._end(0)
        except SystemExit as leaving:
            return self._end(leaving.code)

    def _end(self, code: Any) -> int:
        """Give back what was not begun, send what is unsent, and return the exit status that ``code`` means."""
        inbox = self._inbox
        self._idle = False
        for job in inbox.queue:
            inbox.fail(job.aid, {"error": "Revoked", "message": "its worker stops"}, None)
        inbox.queue.clear()
        if inbox.refusal is not None:
            print(f"omnibus: refused by the broker: {inbox.refusal.get('message')}", file=sys.stderr)
            return 1
        self._runner.tear_down()
        self._flush()
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            return 1
        return code or 0

    def _receive_one(self) -> None:
        """Block until a message comes, and take it."""
        self._idle = True
        try:
            if self._inbox.stopping:
                raise SystemExit(0)
            frames = receive_next(self._socket, 2)
        finally:
            self._idle = False
        self._inbox.receive(frames)
        if self._inbox.records:
            self._flush()

    def _receive_waiting(self, block: bool = False) -> None:
        """Take all messages that are there; with ``block``, wait for the first."""
        frames = receive_next(self._socket, 2) if block else receive(self._socket, 2)
        while frames is not None:
            self._inbox.receive(frames)
            frames = receive(self._socket, 2)

    def _flush(self) -> None:
        for message in self._inbox.take():
            while send(self._socket, message) is Sent.FULL:
                self._socket.poll(1000, zmq.POLLOUT)


def main(config: ChildConfig) -> int:
    """Run the child that ``config`` describes, in the main thread of its process; return its exit status."""
    page = StatusPage.attach(config.page_fd) if config.page_fd >= 0 else None
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
    )
    os.environ["OMNIBUS_WITHIN"] = config.session.hex()
    context = make_context()
    socket = make_dealer(context, config.target)
    process = Process(Inbox(hello), socket, page, code=config.code)
    signal.signal(signal.SIGTERM, process.on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.run()
    except Exception:
        traceback.print_exc()
        return 70
    finally:
        socket.close(linger=1000)
        context.term()
