"""Sockets as the mesh uses them, over real transports."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from omnibus.address import MeshKey, Target
from omnibus.errors import MeshError, Unauthorized, UsageError
from omnibus.links import (
    CLIENT,
    Tuning,
    check_pair,
    make_context,
    make_dealer,
    make_router,
    secure_client,
    set_heartbeats,
)
from omnibus.linkwatch import LinkWatch
from tests.support.sockets import Context, open_context

KEY = MeshKey("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


@pytest.fixture
def place(run_dir: Path) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir=run_dir))
    yield place
    shutil.rmtree(place)  # ZeroMQ leaves its socket files behind


def test_a_message_goes_there_and_back_over_ipc(context: Context, place: Path) -> None:
    router = make_router(context)
    router.bind(f"ipc://{place}/a")
    dealer = make_dealer(context, Target(f"ipc://{place}/a"))
    dealer.send(b"hello")
    assert router.poll(5000)
    route, body = router.recv_multipart()
    router.send_multipart([route, body.upper()])
    assert dealer.poll(5000)
    assert dealer.recv() == b"HELLO"


def test_a_message_to_nobody_is_an_error_and_no_silent_loss(context: Context) -> None:
    router = make_router(context)
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_a_full_peer_is_an_error_too(context: Context, place: Path) -> None:
    router = make_router(context, Tuning(send_queue=1))
    router.bind(f"ipc://{place}/a")
    dealer = make_dealer(context, Target(f"ipc://{place}/a"), Tuning(receive_queue=1))
    dealer.send(b"hello")
    route = router.recv_multipart()[0]

    def flood() -> None:
        for _ in range(1000):
            router.send_multipart([route, bytes(1 << 20)], zmq.NOBLOCK)

    with pytest.raises(zmq.Again):
        flood()


def test_heartbeats_run_over_tcp_only(context: Context, place: Path) -> None:
    local = make_dealer(context, Target(f"ipc://{place}/a"))
    remote = make_dealer(context, Target("tcp://127.0.0.1:1", insecure=True))
    beats = [zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.HEARTBEAT_TTL]
    assert [remote.get(option) for option in beats] == [2000, 15000, 15000]
    set_heartbeats(remote, CLIENT, on=False)
    for socket in (local, remote):
        assert socket.get(zmq.HEARTBEAT_IVL) == 0


def test_a_dealer_that_reads_nothing_for_long_keeps_its_link(context: Context) -> None:
    """A full receive queue would hide the heartbeats' answers, so there is no such thing."""
    tuning = Tuning(heartbeat=0.05, silence=0.15)
    router = make_router(context)
    router.bind("tcp://127.0.0.1:*")
    dealer = make_dealer(context, Target(router.getsockopt_string(zmq.LAST_ENDPOINT), insecure=True), tuning)
    dealer.send(b"hello")
    route = router.recv_multipart()[0]
    watch = LinkWatch(dealer)
    deadline = time.monotonic() + 0.6
    sent = 0
    while (left := deadline - time.monotonic()) > 0:
        for _ in range(100):
            try:
                router.send_multipart([route, bytes(1000)], zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                break
        assert not watch.monitor.poll(int(min(left * 1000, 20))), watch.events()
    assert sent > 1000
    for _ in range(sent):
        assert dealer.poll(5000)
        dealer.recv()
    watch.close()


def test_a_frame_beyond_the_bound_breaks_its_own_link_only(context: Context, place: Path) -> None:
    router = make_router(context, Tuning(message_bytes=1000))
    router.bind(f"ipc://{place}/a")
    bad, good = (make_dealer(context, Target(f"ipc://{place}/a")) for _ in range(2))
    bad.send(bytes(1001))
    good.send(bytes(1000))
    assert router.poll(5000)
    assert len(router.recv_multipart()[1]) == 1000
    assert not router.poll(50)


def test_ipv6_is_on_for_literals_only(context: Context) -> None:
    assert make_dealer(context, Target("tcp://[::1]:1", insecure=True)).get(zmq.IPV6) == 1
    assert make_dealer(context, Target("tcp://localhost:1", insecure=True)).get(zmq.IPV6) == 0


def test_an_exit_with_unsent_messages_is_bounded() -> None:
    context = make_context()
    dealer = make_dealer(context, Target("tcp://127.0.0.1:1", insecure=True), Tuning(linger=0.05))
    assert dealer.get(zmq.LINGER) == 50
    for _ in range(100):
        dealer.send(b"never read", zmq.NOBLOCK)
    dealer.close()
    begun = time.monotonic()
    context.term()
    assert time.monotonic() - begun < 3


def test_a_context_forgotten_with_an_unread_queue_does_not_hang() -> None:
    context = make_context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect("tcp://127.0.0.1:1")
        dealer.send(b"never read")
        assert dealer.get(zmq.LINGER) == 0
    context.term()


def test_tcp_without_a_key_needs_an_explicit_insecure(context: Context) -> None:
    with pytest.raises(Unauthorized, match="tcp://node7:1 needs the mesh's key"):
        make_dealer(context, Target("tcp://node7:1"))
    with pytest.raises(UsageError, match="did you mean"):
        make_dealer(context, Target("node7:1"))


@pytest.mark.parametrize("insecure", [False, True])
def test_the_key_is_used_unless_insecure_was_said(context: Context, insecure: bool) -> None:
    dealer = make_dealer(context, Target("tcp://127.0.0.1:1", KEY, insecure))
    assert dealer.get(zmq.MECHANISM) == (zmq.NULL if insecure else zmq.CURVE)


def test_halves_that_do_not_belong_together_are_refused_and_the_socket_closed(
    context: Context,
) -> None:
    other = MeshKey("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", KEY.secret)
    check_pair(KEY)
    with pytest.raises(Unauthorized, match="do not belong together"):
        make_dealer(context, Target("tcp://127.0.0.1:1", other))
    context.term()  # returns only because no socket is open


def test_a_libzmq_without_curve_is_told(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(MeshError, match="without CURVE"):
        secure_client(context.socket(zmq.DEALER), KEY)
