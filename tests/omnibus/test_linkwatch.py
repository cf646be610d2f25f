"""Why a link does not come about, seen from each end. What CURVE refuses is tried in tests/brokers/test_auth.py."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from omnibus.linkwatch import LinkEvent, LinkWatch, _protocol_failure
from tests.support.sockets import Context, open_context


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


@pytest.fixture
def place(run_dir: Path) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir=run_dir))
    yield place
    shutil.rmtree(place)  # ZeroMQ leaves its socket files behind


def until(watch: LinkWatch, what: str) -> LinkEvent:
    """Return the first event of that kind."""
    deadline = time.monotonic() + 5
    while watch.monitor.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        for event in watch.events():
            if event.what == what:
                return event
    raise AssertionError(f"no event {what}; the last was {watch.last}")


def why(watch: LinkWatch) -> str:
    return watch.last.why if watch.last else ""


def test_a_link_comes_up_and_breaks(context: Context, place: Path) -> None:
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    server.bind(f"ipc://{place}/a")
    watch = LinkWatch(client)
    client.connect(f"ipc://{place}/a")
    assert until(watch, "up").endpoint == f"ipc://{place}/a"
    assert why(watch) == ""
    server.close(0)
    until(watch, "down")
    assert why(watch) == "the link broke"
    watch.close()


def test_nobody_there_is_told_and_ends_with_success(context: Context, place: Path) -> None:
    client = context.socket(zmq.DEALER)
    client.set(zmq.RECONNECT_IVL, 10)
    watch = LinkWatch(client)
    client.connect(f"ipc://{place}/a")
    until(watch, "retried")
    assert "nobody listens there" in why(watch)
    server = context.socket(zmq.ROUTER)
    server.bind(f"ipc://{place}/a")
    until(watch, "up")
    assert why(watch) == ""
    watch.close()


def test_no_event_is_no_event(context: Context) -> None:
    watch = LinkWatch(context.socket(zmq.DEALER))
    assert watch.events() == []
    watch.close()


def test_it_may_be_closed_after_its_socket_and_made_again(context: Context) -> None:
    for _ in range(3):  # each has a name of its own
        client = context.socket(zmq.DEALER)
        watch = LinkWatch(client)
        client.close(0)
        assert all(event.what for event in watch.events()), "that monitoring has stopped is no event of the link"
        watch.close()


@pytest.mark.parametrize(
    ("value", "has_key", "why"),
    [
        (0x11000002, True, "the other side has no key and this one does"),
        (0x11000002, False, "the other side demands the mesh's key"),
        (0x11000001, False, "the other side demands the mesh's key"),
        (0x11000001, True, "the other side has another key, or none"),
        (0x10000018, True, "the other side broke the handshake (ZeroMQ protocol error 0x10000018)"),
    ],
)
def test_a_failed_handshake_is_explained_from_this_side(value: int, has_key: bool, why: str) -> None:
    assert _protocol_failure(value, has_key) == why
