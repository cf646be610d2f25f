"""Who gets in: real sockets, real keys, and one loop without a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import zmq
from zmq.utils import z85

from omnibus.address import MeshKey, Target
from omnibus.brokers import auth
from omnibus.brokers.auth import (
    Authenticator,
    Sender,
    advertise,
    bind_all,
    check_bind,
    new_key,
    remove_sockets,
    secure_server,
    sender,
)
from omnibus.errors import AlreadyExists, MeshError, NotFound, Unauthorized, UsageError
from omnibus.links import check_pair, make_dealer, make_router
from omnibus.linkwatch import LinkWatch
from tests.support.sockets import Context, open_context

KEY = new_key()


class Door:
    """A broker's socket and authenticator, driven by :meth:`until`."""

    def __init__(self, place: Path, *, key: MeshKey | None = KEY, authenticated: bool = True) -> None:
        self._open = contextlib.ExitStack()
        self.context = self._open.enter_context(open_context())
        self.clients = self._open.enter_context(open_context())
        self.auth = Authenticator(self.context, [KEY.public]) if authenticated else None
        self.router = make_router(self.context)
        self.watch = LinkWatch(self.router)
        self.ipc, self.tcp = bind_all(
            self.router,
            [f"ipc://{place}/broker.sock", "tcp://127.0.0.1:*"],
            key=key,
            insecure=key is None,
        )
        self.got: list[list[zmq.Frame]] = []

    def until(self, done: Callable[[], object]) -> None:
        """Serve until ``done``, at most some seconds."""
        deadline = time.monotonic() + 5
        poller = zmq.Poller()
        for one in (self.router, self.auth.socket if self.auth else None):
            if one:
                poller.register(one, zmq.POLLIN)
        while not done():
            assert time.monotonic() < deadline, f"not done: {self.got}, {self.auth and self.auth.refused}"
            if self.auth and self.auth.socket in dict(poller.poll(10)):
                self.auth.handle()
            while self.router.poll(0):
                self.got.append(self.router.recv_multipart(copy=False))

    def bodies(self) -> list[bytes]:
        return [frames[-1].bytes for frames in self.got]

    def close(self) -> None:
        self.watch.close()
        remove_sockets([self.ipc, self.tcp])
        if self.auth:
            self.auth.close()
        self._open.close()


class Client:
    """A DEALER that has sent one message, and a watch on what becomes of it."""

    def __init__(
        self,
        door: Door,
        body: bytes,
        key: MeshKey | None = None,
        server: str | None = None,
        tcp: bool = True,
    ) -> None:
        self.socket = door.clients.socket(zmq.DEALER)
        self.watch = LinkWatch(self.socket)
        self.events: set[str] = set()
        if key is not None:
            self.socket.set(zmq.CURVE_SERVERKEY, (server or key.public).encode())
            self.socket.set(zmq.CURVE_PUBLICKEY, key.public.encode())
            self.socket.set(zmq.CURVE_SECRETKEY, key.secret.encode())
        self.socket.connect(door.tcp if tcp else door.ipc)
        self.socket.send(body)

    def saw(self, *kinds: str) -> bool:
        self.events |= {event.what for event in self.watch.events()}
        return bool(self.events & set(kinds))


@pytest.fixture
def place(run_dir: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=run_dir))


@pytest.fixture
def door(place: Path) -> Iterator[Door]:
    door = Door(place)
    yield door
    door.close()


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


# -- through the door


def test_who_holds_the_key_is_served_both_ways(door: Door) -> None:
    client = make_dealer(door.clients, Target(door.tcp, KEY))
    client.send(b"hello")
    door.until(lambda: door.got)
    assert door.bodies() == [b"hello"]
    door.router.send_multipart([door.got[0][0].bytes, b"welcome"])
    assert client.poll(5000)
    assert client.recv() == b"welcome"
    assert door.auth is not None
    assert (door.auth.accepted, door.auth.refused) == (1, {})


def test_who_does_not_is_refused_and_others_are_served(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    stranger = new_key()
    bad = {
        "no key": Client(door, b"no key"),
        "wrong key": Client(door, b"wrong key", stranger),
        "own pair": Client(door, b"own pair", stranger, server=KEY.public),
    }
    with caplog.at_level(logging.WARNING, "omnibus.brokers.auth"):
        door.until(lambda: all(client.saw("failed", "refused") for client in bad.values()))
        good = Client(door, b"good", KEY)
        local = Client(door, b"local", tcp=False)
        door.until(lambda: good.saw("up") and local.saw("up") and len(door.got) == 2)
    assert sorted(door.bodies()) == [b"good", b"local"]
    assert not any(client.saw("up") for client in bad.values())
    assert not any(client.socket.poll(0) for client in bad.values()), "a refused client hears nothing at all"
    assert door.auth is not None
    assert door.auth.refused == {"unknown key": 1}, "the others' handshakes end before anybody is asked"
    assert [(record.message, record.reason, record.address) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("peer refused", "unknown key", "127.0.0.1")
    ]


def test_each_refusal_is_explained_to_the_client_and_the_broker_sees_it_too(door: Door) -> None:
    stranger = new_key()
    for client, why in (
        (Client(door, b"", None), "demands the mesh's key"),
        (Client(door, b"", stranger), "it has another key, or it is no Omnibus mesh"),
        (Client(door, b"", stranger, server=KEY.public), "does not know this key (status 400)"),
    ):
        door.until(lambda client=client: client.saw("failed", "refused"))  # type: ignore[misc]
        assert client.watch.last is not None
        assert why in client.watch.last.why
        client.watch.close()
        client.socket.close(0)
    seen = [event.why for event in door.watch.events() if event.what in ("failed", "refused")]
    assert any("another key, or none" in why for why in seen)


def test_one_socket_serves_ipc_without_a_key_and_tcp_with_it(door: Door) -> None:
    Client(door, b"ipc", tcp=False)
    Client(door, b"tcp", KEY)
    door.until(lambda: len(door.got) == 2)
    origin = {frames[-1].bytes: sender(frames[0], keyed=True) for frames in door.got}
    assert origin[b"tcp"] == Sender(public_key=KEY.public)
    assert origin[b"ipc"] == Sender(uid=os.geteuid(), pid=os.getpid())
    assert all(one.holds_key for one in origin.values())


def test_without_an_authenticator_nobody_gets_in_by_tcp(place: Path) -> None:
    door = Door(place, authenticated=False)
    try:
        client, _ = Client(door, b"tcp", KEY), Client(door, b"ipc", tcp=False)
        seen: list[str] = []

        def shut() -> bool:
            seen.extend(event.what for event in door.watch.events())
            return "failed" in seen and bool(door.got)

        door.until(shut)
        assert door.bodies() == [b"ipc"]
        assert not client.saw("up")
    finally:
        door.close()


def test_an_insecure_mesh_takes_all_and_trusts_none_of_them_with_code(place: Path) -> None:
    door = Door(place, key=None)
    try:
        Client(door, b"plain")
        door.until(lambda: door.got)
        assert sender(door.got[0][0], keyed=False) == Sender()
        assert not sender(door.got[0][0], keyed=False).holds_key
    finally:
        door.close()


def test_a_user_id_that_a_peer_writes_into_its_own_handshake_is_not_believed(place: Path) -> None:
    door = Door(place, key=None)
    port = int(door.tcp.rpartition(":")[2])
    try:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            stream = raw.makefile("rb")
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            stream.read(64)
            name, value = b"User-Id", KEY.public.encode()
            ready = b"\x05READY" + bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
            raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
            stream.read(2 + 6)
            raw.sendall(b"\x00\x04evil")
            door.until(lambda: door.got)
        assert door.bodies() == [b"evil"]
        assert door.got[0][0].get("User-Id") == KEY.public, "ZeroMQ hands it on"
        assert not sender(door.got[0][0], keyed=False).holds_key
    finally:
        door.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1000:100:7", Sender(uid=1000, pid=7)),
        (":1000:100:7", Sender(uid=1000, pid=7)),
        ("fe80::1:1000:100:7", Sender()),
        ("::1000:100:7", Sender()),
        ("::1", Sender()),
        ("10.0.0.1", Sender()),
        (None, Sender()),
    ],
)
def test_an_ipv6_address_is_not_mistaken_for_a_local_peer(address: str | None, expected: Sender) -> None:
    class Frame:
        def get(self, name: str) -> Any:
            if name == "Peer-Address" and address is not None:
                return address
            raise zmq.ZMQError(zmq.EINVAL)

    assert sender(cast(zmq.Frame, Frame()), keyed=False) == expected


# -- the handler's own socket


def ask(context: Context, authenticator: Authenticator, frames: list[bytes]) -> list[bytes]:
    """Put a question to the handler as ZeroMQ does, and return the answer."""
    asker = context.socket(zmq.REQ)
    asker.connect("inproc://zeromq.zap.01")
    asker.send_multipart(frames)
    authenticator.handle()
    assert asker.poll(5000)
    answer = asker.recv_multipart()
    asker.close(0)
    return answer


QUESTION = [b"1.0", b"7", b"omnibus", b"10.0.0.9", b"", b"CURVE", z85.decode(KEY.public)]


def test_a_good_question_has_a_good_answer(context: Context) -> None:
    authenticator = Authenticator(context, [KEY.public])
    assert ask(context, authenticator, QUESTION) == [
        b"1.0",
        b"7",
        b"200",
        b"OK",
        KEY.public.encode(),
        b"",
    ]
    authenticator.close()


def changed(index: int, value: bytes) -> list[bytes]:
    return [*QUESTION[:index], value, *QUESTION[index + 1 :]]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b""], "malformed request"),
        ([b"\xff" * 1000] * 3, "malformed request"),
        (QUESTION[:5], "malformed request"),
        (QUESTION[:6], "malformed request"),
        ([*QUESTION, b"more"], "malformed request"),
        (changed(0, b"2.0"), "malformed request"),
        (changed(6, b"short"), "malformed request"),
        (changed(6, bytes(32)), "unknown key"),
        (changed(2, b""), "unknown domain"),
        (changed(5, b"NULL")[:6], "mechanism is not CURVE"),
        ([*changed(5, b"PLAIN")[:6], b"user", b"password"], "mechanism is not CURVE"),
        (changed(3, b"\xff\xfe"), None),
    ],
    ids=repr,
)
def test_garbage_is_refused_and_does_no_harm(context: Context, frames: list[bytes], reason: str | None) -> None:
    authenticator = Authenticator(context, [KEY.public])
    answer = ask(context, authenticator, frames)
    assert (answer[0], answer[1]) == (b"1.0", frames[1] if len(frames) > 1 else b"")
    if reason:
        assert answer[2:] == [b"400", reason.encode(), b"", b""]
        assert authenticator.refused == {reason: 1}
    else:
        assert answer[2] == b"200"
    assert ask(context, authenticator, QUESTION)[2] == b"200"
    authenticator.close()


def test_all_waiting_questions_are_answered_in_one_go(context: Context) -> None:
    authenticator = Authenticator(context, [KEY.public])
    asker = context.socket(zmq.DEALER)
    asker.connect("inproc://zeromq.zap.01")
    for number in range(5):
        asker.send_multipart([b"", *changed(1, str(number).encode())])
    asker.send_multipart([b"no delimiter"])
    authenticator.handle()
    answers = [asker.recv_multipart(zmq.NOBLOCK)[2] for _ in range(5)]
    assert answers == [b"0", b"1", b"2", b"3", b"4"]
    authenticator.handle()
    authenticator.close()


def test_a_peer_that_goes_on_trying_is_logged_ever_more_rarely(
    context: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_REMEMBERED", 2)
    authenticator = Authenticator(context, [])
    for _ in range(20):
        ask(context, authenticator, QUESTION)
    times = [record.times for record in caplog.records]  # type: ignore[attr-defined]
    assert times == [1, 2, 4, 8, 16]
    for address in (b"a", b"b", b"c"):
        ask(context, authenticator, changed(3, address))
    assert len(authenticator._seen) <= 2, "what is remembered of addresses is bounded"
    assert authenticator.refused == {"unknown key": 23}
    authenticator.close()


def test_an_answer_that_cannot_be_sent_is_logged(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    authenticator = Authenticator(context, [KEY.public])
    authenticator._answer(QUESTION)  # nobody asked, so the REP socket refuses
    assert [record.message for record in caplog.records] == ["authentication reply not sent"]
    authenticator.close()


def test_a_context_has_one_authenticator(context: Context) -> None:
    first = Authenticator(context, [])
    with pytest.raises(UsageError, match="has an authenticator already"):
        Authenticator(context, [])
    first.close()


# -- binds


def test_a_new_key_is_a_fresh_pair() -> None:
    check_pair(KEY)
    assert new_key() != KEY


def test_a_libzmq_without_curve_makes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(MeshError, match="without CURVE"):
        new_key()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://*:0", "tcp://[::1]:7"])
def test_every_tcp_bind_needs_a_key_or_an_explicit_insecure(address: str) -> None:
    with pytest.raises(Unauthorized, match=r"open to every user.*--insecure"):
        check_bind(address, None, insecure=False)
    assert check_bind(address, KEY, insecure=False) == check_bind(address, None, insecure=True)


def test_an_ipc_bind_needs_a_private_directory(place: Path) -> None:
    assert check_bind(f"ipc://{place}/a", None, insecure=False).path == f"{place}/a"
    place.chmod(0o711)
    with pytest.raises(Unauthorized, match="mode 0711"):
        check_bind(f"ipc://{place}/a", KEY, insecure=True)
    with pytest.raises(NotFound):
        check_bind(f"ipc://{place}/none/a", None, insecure=False)


def test_a_live_socket_is_not_pushed_aside_and_a_dead_one_is(context: Context, place: Path) -> None:
    address = f"ipc://{place}/a"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{place}/a")
        server.listen(0)
        with pytest.raises(AlreadyExists, match="taken by a live process"):
            check_bind(address, None, insecure=False)
        with pytest.raises(AlreadyExists):  # its queue is full now
            check_bind(address, None, insecure=False)
    router = make_router(context)
    assert bind_all(router, [address]) == [address]
    with pytest.raises(AlreadyExists):
        bind_all(make_router(context), [address])
    remove_sockets([address])
    assert not (place / "a").exists()
    remove_sockets([address])


def test_a_file_is_not_pushed_aside(place: Path) -> None:
    (place / "a").touch()
    with pytest.raises(UsageError, match="is no socket"):
        check_bind(f"ipc://{place}/a", None, insecure=False)
    assert (place / "a").exists()


def test_nothing_is_bound_where_one_address_is_refused(context: Context, place: Path) -> None:
    with pytest.raises(Unauthorized):
        bind_all(make_router(context), [f"ipc://{place}/a", "tcp://127.0.0.1:*"])
    assert not (place / "a").exists()


def test_endpoints_come_in_the_order_of_the_addresses(context: Context, place: Path) -> None:
    tcp, ipc = bind_all(make_router(context), ["tcp://127.0.0.1:*", f"ipc://{place}/a"], insecure=True)
    assert tcp.startswith("tcp://127.0.0.1:")
    assert ipc == f"ipc://{place}/a"
    remove_sockets([tcp, ipc])


def test_a_taken_port_and_a_foreign_address_are_told_apart(context: Context) -> None:
    (tcp,) = bind_all(make_router(context), ["tcp://127.0.0.1:*"], insecure=True)
    with pytest.raises(AlreadyExists, match=r"use port \* for any free one"):
        bind_all(make_router(context), [tcp], insecure=True)
    with pytest.raises(UsageError, match="name an address of this host"):
        bind_all(make_router(context), ["tcp://192.0.2.1:*"], insecure=True)


def test_a_bind_that_fails_half_way_leaves_no_socket_file(context: Context, place: Path) -> None:
    with pytest.raises(UsageError):
        bind_all(make_router(context), ["tcp://192.0.2.1:*", f"ipc://{place}/a"], insecure=True)
    assert not (place / "a").exists()


def test_a_pair_that_does_not_belong_together_is_not_served(context: Context) -> None:
    with pytest.raises(Unauthorized, match="do not belong together"):
        secure_server(make_router(context), MeshKey(KEY.public, new_key().secret))


@pytest.mark.parametrize(
    ("endpoint", "advertised"),
    [
        ("tcp://0.0.0.0:5", "tcp://node7:5"),
        ("tcp://[::]:5", "tcp://node7:5"),
        ("tcp://127.0.0.1:5", "tcp://127.0.0.1:5"),
        ("ipc:///run/a", "ipc:///run/a"),
    ],
)
def test_every_interface_is_advertised_by_the_host_s_name(endpoint: str, advertised: str) -> None:
    assert advertise(endpoint, "node7") == advertised
