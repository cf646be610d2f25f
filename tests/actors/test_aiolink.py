"""A DEALER on an asyncio loop: nothing is left lying, and its end says why."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq

import omnibus
from omnibus.actors.aiolink import AsyncLink
from omnibus.actors.inbox import Inbox
from omnibus.linkwatch import LinkWatch
from omnibus.protocol import Record, Verb, decode, encode
from tests.support.events import aeventually
from tests.support.sockets import Context, open_context

HELLO = {"omb": 1, "role": "actor", "session": b"w" * 16}


class Bench:
    """A link, and a ROUTER that stands for its broker."""

    def __init__(self, context: Context, endpoint: str, *, queue: int = 1000) -> None:
        self.context = context
        self.router = self.listen(endpoint)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.set(zmq.SNDHWM, queue)
        self.watch = LinkWatch(self.dealer)
        self.dealer.connect(self.endpoint)
        self.inbox = Inbox(HELLO)
        self.link = AsyncLink(self.inbox, self.dealer, self.watch, address=self.endpoint)
        self.heeded = 0
        self.route = b""

    def listen(self, endpoint: str) -> zmq.Socket[bytes]:
        """Return a ROUTER that has room for no more than it must."""
        router = self.context.socket(zmq.ROUTER)
        router.set(zmq.RCVHWM, 1)
        router.bind(endpoint)
        return router

    def heed(self) -> None:
        self.heeded += 1

    async def next(self) -> Record:
        """Return the next record, one of a message."""
        await aeventually(lambda: self.router.poll(0), what="the link sends something")
        self.route, *frames = self.router.recv_multipart()
        [record] = decode(frames)
        return record

    async def welcome(self, **more: Any) -> Record:
        hello = await self.next()
        assert hello[0] == Verb.HELLO
        self.tell([Verb.WELCOME, hello[1], {"omb": 1, "epoch": b"e", **more}, None, 0])
        return hello

    async def let_in(self) -> None:
        """Answer the HELLO, and the PING behind it."""
        await self.welcome()
        waiting = asyncio.get_running_loop().create_task(self.link.welcome(5.0))
        ping = await self.next()
        assert ping[0] == Verb.PING and not waiting.done()
        self.tell([Verb.PONG, ping[1], None, None, 0])
        assert await waiting is True

    def tell(self, *records: Record) -> None:
        self.router.send_multipart([self.route, *encode(records)])


@asynccontextmanager
async def linked(endpoint: str = "", **more: Any) -> AsyncIterator[Bench]:
    with open_context() as context, tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        bench = Bench(context, endpoint or f"ipc://{folder}/b", **more)
        bench.link.open(bench.heed)
        try:
            yield bench
        finally:
            bench.link.close()
            bench.watch.close()


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_what_comes_is_taken_and_heeded() -> None:
    async with linked() as bench:
        await bench.let_in()
        heeded = bench.heeded
        bench.tell([Verb.DEFINE, 1, {"fn": "m:f"}, None, 0])
        bench.tell([Verb.RUN, 9, [1, 1, 1], b"\x90", 0])
        await aeventually(lambda: bench.inbox.queue and bench.heeded > heeded)


@on_loop
async def test_what_code_that_keeps_the_loop_looks_for_is_taken_without_being_heeded() -> None:
    async with linked() as bench:
        await bench.let_in()
        bench.tell([Verb.CANCEL, 7, None, None, 0])
        heeded = bench.heeded
        while not bench.inbox.cancelled:
            bench.link.look()
        assert bench.heeded == heeded


@on_loop
async def test_a_welcome_that_does_not_come_is_not_waited_for_longer() -> None:
    async with linked() as bench:
        assert await bench.link.welcome(0.01) is False


@on_loop
async def test_what_the_socket_does_not_take_goes_out_later_and_in_order() -> None:
    async with linked(queue=1) as bench:
        await bench.let_in()
        for number in range(200):
            bench.inbox.answer(number, bytes(30_000), ())
            bench.link.flush()
        assert bench.link._unsent
        bench.inbox.answer(200, b"\xc0", ())
        drained = asyncio.get_running_loop().create_task(bench.link.drain())
        assert [(await bench.next())[1] for _ in range(201)] == list(range(201))
        await drained


@on_loop
async def test_a_refusal_behind_the_welcome_is_not_missed() -> None:
    async with linked() as bench:
        await bench.welcome()
        waiting = asyncio.get_running_loop().create_task(bench.link.welcome(5.0))
        assert (await bench.next())[0] == Verb.PING
        bench.tell([Verb.ERROR, 0, {"error": "AlreadyExists", "message": "taken"}, None, 0])
        bench.tell([Verb.ERROR, 0, {"error": "ProtocolError", "message": "who?", "again": True}, None, 0])
        assert await waiting is True
        assert isinstance(bench.link.ended.exception(), omnibus.AlreadyExists)
        await aeventually(lambda: bench.inbox.parted)
        assert not bench.inbox.unsent  # and no greeting follows


@on_loop
async def test_a_bye_is_waited_for_until_the_broker_has_heard_it() -> None:
    async with linked() as bench:
        await bench.let_in()
        parting = asyncio.get_running_loop().create_task(bench.link.part(5.0))
        assert [(await bench.next())[0] for _ in range(2)] == [Verb.BYE, Verb.PING]
        assert not parting.done()
        bench.tell([Verb.ERROR, 0, {"error": "ProtocolError", "message": "who?", "again": True}, None, 0])
        await parting
        assert bench.inbox.parted and not bench.inbox.unsent


def test_the_end_says_why() -> None:
    async def end_by(*records: Record, raw: tuple[bytes, ...] = ()) -> BaseException | None:
        async with linked() as bench:
            await bench.let_in()
            if records:
                bench.tell(*records)
            else:
                bench.router.send_multipart([bench.route, *raw])
            await asyncio.wait([bench.link.ended], timeout=5.0)
            assert bench.inbox.stopping
            return bench.link.ended.exception()

    refusal = {"error": "AlreadyExists", "message": "the name is taken"}
    assert asyncio.run(end_by([Verb.STOP, 0, None, None, 0])) is None
    failure = asyncio.run(end_by([Verb.ERROR, 0, refusal, None, 0]))
    assert isinstance(failure, omnibus.AlreadyExists) and str(failure) == "the name is taken"
    failure = asyncio.run(end_by([Verb.BYE, 0, None, None, 0]))
    assert isinstance(failure, omnibus.Unreachable) and str(failure) == "the broker was stopped"
    assert isinstance(asyncio.run(end_by(raw=(b"nonsense", b""))), omnibus.ProtocolError)
    failure = asyncio.run(end_by([Verb.RUN, 1, "nothing of the kind", b"\x90", 0]))
    assert isinstance(failure, omnibus.ProtocolError) and "makes no sense" in str(failure)


@on_loop
async def test_a_link_that_comes_back_is_greeted_anew() -> None:
    async with linked("tcp://127.0.0.1:*") as bench:
        await bench.let_in()
        bench.tell([Verb.DEFINE, 1, {"fn": "m:f"}, None, 0], [Verb.RUN, 9, [1, 1, 1], b"\x90", 0])
        await aeventually(lambda: bench.inbox.queue)
        bench.router.close(0)
        await aeventually(lambda: bench.link._broken)
        bench.router = bench.listen(bench.endpoint)
        hello = await bench.welcome()
        assert hello[2]["running"] == [9]
        await aeventually(lambda: bench.inbox.ready)
        assert not bench.link._broken


@on_loop
async def test_a_link_that_does_not_come_back_is_the_end() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnibus.actors.aiolink._GRACE", 0.05)
        async with linked("tcp://127.0.0.1:*") as bench:
            await bench.let_in()
            bench.router.close(0)
            await asyncio.wait([bench.link.ended], timeout=5.0)
            failure = bench.link.ended.exception()
            assert isinstance(failure, omnibus.Unreachable) and "did not come back within 0.05 s" in str(failure)
