"""How systems of this kind fail in the field, tried on a real mesh: stops, kills, floods, garbage, lost owners."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

import omnibus
from omnibus.bus import Bus
from omnibus.protocol import SIGNATURE, VERSION, Verb, decode, encode
from tests.support.events import eventually
from tests.support.gates import Gate, pass_gate


@pytest.fixture
def bus() -> Iterator[Bus]:
    with omnibus.connect(workers=2) as bus:
        yield bus


@pytest.fixture
def stranger(bus: Bus) -> Iterator[zmq.Socket[bytes]]:
    """A raw DEALER at the broker's door."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, 10_000)
    socket.connect(bus.address)
    yield socket
    socket.close()
    context.term()


def add(a: int, b: int = 0) -> int:
    return a + b


def alive(pid: int) -> bool:
    """Whether a process runs: neither gone nor a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def pids(bus: Bus) -> list[int]:
    """Every process of the mesh."""
    status = bus.status()
    return [status["broker"]["pid"], *(each["pid"] for kind in ("nodes", "workers", "actors") for each in status[kind])]


# ---------------------------------------------------------------------- stops and floods


def test_a_stopped_worker_strands_nothing_but_what_it_runs(bus: Bus) -> None:
    """A worker that is stopped in mid-work holds what it has begun; the rest goes elsewhere, and none is lost."""
    bus.submit(add, 1).result(10)
    stopped = bus.status()["workers"][0]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        futures = [bus.submit(add, number) for number in range(10_000)]
        most = 9_990
        eventually(lambda: sum(future.done() for future in futures) >= most, timeout=30, what="the other does the rest")
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert [future.result(30) for future in futures] == list(range(10_000))
    assert bus.status()["tasks"]["balance"] == 0


CLIENT = """
import sys, omnibus
bus = omnibus.connect(sys.argv[1])
futures = [bus.submit(bytes, 1000) for _ in range(20000)]
print("sent", flush=True)
for future in futures:
    future.result()
print("done", flush=True)
"""


def test_a_frozen_client_does_not_hold_up_the_others(bus: Bus) -> None:
    command = [sys.executable, "-c", CLIENT, bus.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "sent\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            assert [bus.submit(add, number).result(20) for number in range(200)] == list(range(200))
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.stdout.readline() == "done\n"
        assert frozen.wait(20) == 0


def test_one_long_and_many_short_tasks(bus: Bus, tmp_path: Path) -> None:
    """Short work never waits behind long work while another worker is free."""
    for _ in range(50):
        bus.submit(pass_or_hold, "").result(10)
    with Gate(tmp_path) as gate:
        long = bus.submit(pass_or_hold, gate.path)
        short = [bus.submit(pass_or_hold, "") for _ in range(100)]
        assert [future.result(15) for future in short] == [""] * 100
        assert not long.done()
        gate.open(1)
        assert long.result(10) == gate.path


def pass_or_hold(path: str) -> str:
    """Return at once, or wait at the gate: one function, so that its cost is known to be small."""
    return pass_gate(path) if path else path


def hold_the_gil(seconds: int) -> int:
    """Sleep in C without letting go of the interpreter."""
    return int(ctypes.PyDLL(None).sleep(seconds))


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(120)])])
def test_a_task_that_holds_the_gil_is_busy_and_not_dead(bus: Bus, seconds: int) -> None:
    held = bus.submit(hold_the_gil, seconds)
    others = [bus.submit(add, number) for number in range(2_000)]
    assert [future.result(30) for future in others] == list(range(2_000))
    assert held.result(seconds + 20) == 0
    assert bus.status()["tasks"]["redelivered"] == 0


def test_closing_beside_a_stopped_broker_is_bounded(bus: Bus) -> None:
    other = omnibus.connect(bus.address)
    broker = bus.status()["broker"]["pid"]
    os.kill(broker, signal.SIGSTOP)
    try:
        for _ in range(1_000):
            other.submit(bytes, 1000)
        began = time.monotonic()
        assert other.close(timeout=1) == 1_000
        assert time.monotonic() - began < 5
    finally:
        os.kill(broker, signal.SIGCONT)
    assert bus.submit(add, 1, 1).result(10) == 2


# ---------------------------------------------------------------------- kills


def test_kills_at_random_lose_nothing_and_leave_nothing(bus: Bus) -> None:
    dice = random.Random(7)
    futures = [bus.submit(add, number) for number in range(3_000)]
    for _ in range(10):
        workers = [worker["pid"] for worker in bus.status()["workers"]]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(workers), signal.SIGKILL)
        futures += [bus.options(retries=100).submit(add, len(futures) + number) for number in range(300)]
    assert [future.result(50) for future in futures] == list(range(6_000))
    tasks = bus.status()["tasks"]
    assert tasks["balance"] == 0 and tasks["done"] == 6_000


def test_a_killed_node_takes_its_children_along_and_the_work_waits(bus: Bus) -> None:
    status = bus.status()
    children = [worker["pid"] for worker in status["workers"]]
    os.kill(status["nodes"][0]["pid"], signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in children), timeout=5, what="the workers are gone")
    waiting = bus.submit(add, 1)
    eventually(lambda: bus.status()["nodes"] == [], what="the broker knows that the node is gone")
    assert not waiting.done()
    assert bus.status()["tasks"]["queued"] == 1


OWNER = """
import os, signal, sys, omnibus
bus = omnibus.connect(workers=2)
while len(bus.status()["workers"]) < 2:
    bus.submit(pow, 2, 2).result()
status = bus.status()
running = [bus.submit("signal:pause") for _ in range(4)]
print(*[status["broker"]["pid"], *[each["pid"] for kind in ("nodes", "workers") for each in status[kind]]], flush=True)
print(bus._mesh.folder, flush=True)
signal.pause()
"""


def test_an_owner_that_is_killed_takes_its_mesh_along() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            mesh = [int(pid) for pid in owner.stdout.readline().split()]
            folder = Path(owner.stdout.readline().strip())
            assert len(mesh) == 4 and all(alive(pid) for pid in mesh) and folder.is_dir()
        finally:
            owner.kill()
    eventually(lambda: not any(alive(pid) for pid in mesh), timeout=5, what="the whole mesh is gone")
    assert not [left for left in folder.glob("*") if left.is_socket()]


PAUSER = """
import sys, omnibus
bus = omnibus.connect(sys.argv[1])
future = bus.submit("signal:pause")
print("sent", flush=True)
future.result()
"""


def test_a_killed_client_leaves_no_work_running(bus: Bus) -> None:
    with subprocess.Popen([sys.executable, "-c", PAUSER, bus.address], stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "sent\n"
            eventually(lambda: bus.status()["tasks"]["running"] == 1, what="its task runs")
        finally:
            client.kill()
    eventually(lambda: bus.status()["tasks"]["running"] == 0, timeout=15, what="its task was cancelled")
    assert bus.status()["tasks"]["balance"] == 0


def test_a_worker_that_leaves_by_system_exit_is_restarted(bus: Bus) -> None:
    with pytest.raises(omnibus.WorkerDied, match="5"):
        bus.options(retries=0).submit(sys.exit, 5).result(20)
    assert [bus.submit(add, number).result(20) for number in range(10)] == list(range(10))


def test_four_meshes_on_one_host_do_not_meet() -> None:
    meshes: list[Bus] = []
    threads = [threading.Thread(target=lambda: meshes.append(omnibus.connect(workers=1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        assert len({bus.address for bus in meshes}) == 4
        homes = [bus.submit("os:getenv", "OMNIBUS_ADDRESS").result(20) for bus in meshes]
        assert homes == [bus.address for bus in meshes]
    finally:
        for bus in meshes:
            bus.close()


# ---------------------------------------------------------------------- garbage


def test_garbage_at_the_door_and_the_broker_serves_on(bus: Bus, stranger: zmq.Socket[bytes]) -> None:
    dice = random.Random(3)
    for number in range(10_000):
        stranger.send_multipart(garbage(dice), zmq.NOBLOCK if number % 100 else 0)
        with contextlib.suppress(zmq.Again):
            while True:
                stranger.recv_multipart(zmq.NOBLOCK)
    assert [bus.submit(add, number).result(20) for number in range(100)] == list(range(100))
    assert bus.status()["tasks"]["balance"] == 0


def garbage(dice: random.Random) -> list[bytes]:
    """Return one message that no honest peer sends."""
    noise = dice.randbytes(dice.randrange(60))
    match dice.randrange(8):
        case 0:
            return [noise]
        case 1:
            return [SIGNATURE, noise]
        case 2:
            return [SIGNATURE, b"\xdd\xff\xff\xff\xff"]
        case 3:
            return [SIGNATURE, b"\x91" * 2_000]
        case 4:
            return [SIGNATURE, msgpack.packb([[dice.randrange(80), 1, {"x": 1}, None, 9]])]
        case 5:
            return [SIGNATURE, msgpack.packb([[dice.randrange(80), dice.randrange(9), None, noise, 0]])]
        case 6:
            hello = {"omb": VERSION, "role": "client", "session": noise, "name": 5}
            return encode([[Verb.HELLO, 0, hello, None, 0], [dice.randrange(80), 1, dice.random(), None, 0]])
        case _:
            return [SIGNATURE, msgpack.packb([]), *[noise] * dice.randrange(5)]


def greet(stranger: zmq.Socket[bytes], **more: object) -> list[list[object]]:
    hello = {"omb": VERSION, "role": "client", "session": os.urandom(16), **more}
    stranger.send_multipart(encode([[Verb.HELLO, 0, hello, None, 0]]))
    return decode(stranger.recv_multipart())


def test_another_version_gets_an_error_that_names_both(stranger: zmq.Socket[bytes]) -> None:
    (verb, _, head, _, _), *_ = greet(stranger, omb=9)
    assert verb == Verb.ERROR
    assert isinstance(head, dict) and "OMB/9" in head["message"] and f"OMB/{VERSION}" in head["message"]


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("how", ["argument", "publish", "status"])
def test_a_hostile_pickle_runs_nowhere_it_should_not(
    bus: Bus, stranger: zmq.Socket[bytes], tmp_path: Path, how: str
) -> None:
    """Broker and node never unpickle, whatever record it comes in."""
    mark = tmp_path / "ran"
    bomb = pickle.dumps(Bomb(str(mark)))
    greet(stranger)
    records = {
        "argument": [Verb.SUBMIT, 1, {"fn": "operator:length_hint"}, bomb, 0],
        "publish": [Verb.PUBLISH, 1, {"topic": "log"}, bomb, 0],
        "status": [Verb.STATUS, 1, {"what": bomb}, bomb, 0],
    }
    stranger.send_multipart(encode([records[how]]))
    answer = decode(stranger.recv_multipart())
    assert answer
    assert bus.submit(add, 1, 1).result(10) == 2
    assert not mark.exists()
