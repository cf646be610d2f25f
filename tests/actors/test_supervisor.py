"""A node as a real process, a ROUTER in the test for its broker: what it says, obeys, and takes along when it dies."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from omnibus.protocol import Record, Verb, decode, encode

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 15.0
WELCOME = [int(Verb.WELCOME), 0, {"epoch": b"e" * 8}, None, 0]


class Broker:
    """A stand-in: it welcomes whoever says HELLO, answers nothing else, and keeps what it hears."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self.address = f"ipc://{path}"
        self._context = context
        self.records: list[Record] = []
        self.route = b""
        self.hellos: list[dict[str, Any]] = []
        self.socket: zmq.Socket[bytes] = self._bind()

    def _bind(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        socket.bind(self.address)
        return socket

    def die(self) -> None:
        self.socket.close(0)

    def rise(self) -> None:
        self.socket = self._bind()

    def pump(self, timeout: float) -> None:
        if not self.socket.poll(int(timeout * 1000)):
            return
        route, *frames = self.socket.recv_multipart()
        for record in decode(frames):
            if record[0] == Verb.HELLO:
                self.hellos.append(record[2])
                if record[2]["role"] == "node":
                    self.route = route
                self.socket.send_multipart([route, *encode([WELCOME])])
            else:
                self.records.append(record)

    def expect(self, what: Callable[[Record], object], timeout: float = DEADLINE) -> Record:
        deadline = time.monotonic() + timeout
        while True:
            for record in self.records:
                if what(record):
                    self.records.remove(record)
                    return record
            left = deadline - time.monotonic()
            assert left > 0, f"it was not heard; there are {self.records}"
            self.pump(left)

    def hello(self, count: int = 1) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while len(self.hellos) < count:
            assert time.monotonic() < deadline, f"only {len(self.hellos)} HELLOs came"
            self.pump(0.1)
        return self.hellos[count - 1]

    def say(self, verb: Verb, about: int = 0, head: Any = None) -> None:
        self.socket.send_multipart([self.route, *encode([[int(verb), about, head, None, 0]])])

    def child(self, event: str, name: str = "", **fields: Any) -> dict[str, Any]:
        """Wait for a CHILD of that event; return its head."""

        def fits(record: Record) -> bool:
            head = record[2]
            return record[0] == Verb.CHILD and head["event"] == event and (not name or head["name"] == name)

        head: dict[str, Any] = self.expect(fits)[2]
        for key, value in fields.items():
            assert head[key] == value, f"{key} of {head}"
        return head

    def line(self, text: str, name: str = "") -> dict[str, Any]:
        """Wait for a published line that contains ``text``; return what was published."""

        def fits(record: Record) -> bool:
            if record[0] != Verb.PUBLISH:
                return False
            assert record[2] == {"topic": "log"}
            said = msgpack.unpackb(record[3])
            return text in said["text"] and name in ("", said["source"])

        said: dict[str, Any] = msgpack.unpackb(self.expect(fits)[3])
        return said


class Node:
    """A running node process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def ends(self, timeout: float = DEADLINE) -> int:
        return self.process.wait(timeout)


@pytest.fixture
def broker(run_dir: Path) -> Iterator[Broker]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Broker(context, run_dir / "broker.sock")
    yield made
    made.die()
    context.term()
    (run_dir / "broker.sock").unlink(missing_ok=True)


@pytest.fixture
def launch(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nodes: list[Node] = []

    def run(*options: str, entry: str = "wait", **more: Any) -> Node:
        command = [sys.executable, "-m", "omnibus.actors", "node", "--address", broker.address, "--name", "n"]
        command += ["--entry", f"tests.actors.standins:{entry}", *options]
        process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **more)
        nodes.append(Node(process))
        return nodes[-1]

    yield run
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait()
        assert node.process.stderr is not None
        node.process.stderr.close()


def gone(pid_or_fd: int, timeout: float = DEADLINE) -> bool:
    return bool(select.select([pid_or_fd], [], [], timeout)[0])


def pidfds(pids: list[int]) -> list[int]:
    return [os.pidfd_open(pid) for pid in pids]


def below(pid: int) -> list[int]:
    """Return the pids of all descendants."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *below(int(child))]
    return found


def test_a_node_says_what_it_is_and_starts_its_workers(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "2", "--cpus", "3", "--memory", "2G", "--gpus", "a,b", "--label", "disk=fast")
    hello = broker.hello()
    assert hello["role"] == "node"
    assert hello["omb"] == 1
    assert len(hello["session"]) == 16
    wanted = {"name": "n", "cpus": 3.0, "memory": 2 << 30, "gpus": ["a", "b"], "labels": {"disk": "fast"}}
    assert {key: hello[key] for key in wanted} == wanted
    assert (hello["workers"], hello["pid"]) == (2, node.pid)
    first, second = broker.child("started", "worker-0"), broker.child("started", "worker-1")
    assert first["session"] != second["session"]
    assert set(below(node.pid)) > {first["pid"], second["pid"]}
    said = broker.line("up", "worker-1")
    assert said | {"time": 0} == {"source": "worker-1", "stream": "out", "pid": second["pid"], "text": "up", "time": 0}
    assert abs(said["time"] - time.time()) < 60


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(broker: Broker, launch: Callable[..., Node], signum: int) -> None:
    node = launch("--workers", "2", entry="polite")
    for name in ("worker-0", "worker-1"):
        broker.line("up", name)
    began = time.monotonic()
    node.process.send_signal(signum)
    for name in ("worker-0", "worker-1"):
        broker.child("exited", name, code=0, restart_in=None, reason="stopped by its supervisor (exited with status 0)")
    broker.expect(lambda record: record[0] == Verb.BYE)
    assert node.ends() == 0
    assert time.monotonic() - began < 4


def test_a_child_that_does_not_stop_is_killed_after_the_grace(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "1", "--grace", "0.3", entry="stubborn")
    broker.line("up")
    node.process.terminate()
    broker.child("exited", signal=signal.SIGKILL)
    assert node.ends() == 0


def test_a_second_signal_ends_it_at_once(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "1", "--grace", "3600", entry="stubborn")
    broker.line("up")
    node.process.terminate()
    node.process.send_signal(signal.SIGINT)
    broker.child("exited", signal=signal.SIGKILL)
    assert node.ends() == 0


def test_a_killed_node_takes_everything_along(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "2", entry="hold_gil")
    for name in ("worker-0", "worker-1"):
        broker.line("up", name)
    broker.say(Verb.START, 5, {"name": "fresh", "role": "actor", "fresh": True})
    broker.line("up", "fresh")
    pids = below(node.pid)
    assert len(pids) == 4, "a zygote and three children"
    fds = pidfds(pids)
    try:
        began = time.monotonic()
        node.process.kill()
        assert all(gone(fd, 2) for fd in fds)
        assert time.monotonic() - began < 1
    finally:
        for fd in fds:
            os.close(fd)


def test_a_node_ends_with_its_owner(broker: Broker, launch: Callable[..., Node]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        node = launch("--workers", "1", "--owner", str(owner.pid), entry="stubborn")
        broker.line("up")
        owner.kill()
        owner.wait()
        assert node.ends(5) == 0
    assert launch("--workers", "1", "--owner", str(owner.pid)).ends() == 0, "an owner that is gone already"


def test_a_death_is_reported_with_its_cause_and_mended(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "1", entry="wait")
    started = broker.child("started")
    broker.line("up")
    os.kill(started["pid"], signal.SIGKILL)
    began = time.monotonic()
    exited = broker.child("exited", session=started["session"], signal=signal.SIGKILL, code=None, oom=False)
    assert time.monotonic() - began < 0.5
    assert (exited["begun"], exited["last"], exited["restart_in"]) == (0, 0, 0.0)
    assert "not by its supervisor" in exited["reason"]
    again = broker.child("started")
    assert again["incarnation"] == 1
    broker.line("up")


@pytest.mark.parametrize(
    ("entry", "status", "reason"),
    [
        ("raise_error", {"code": 1, "signal": None, "oom": False}, "exited with status 1: ValueError: it went wrong"),
        ("run_out_of_memory", {"code": 1, "oom": True}, "out of memory: exited with status 1; it had"),
        ("crash", {"code": None, "signal": 11, "oom": False}, "(SIGSEGV): Fatal Python error: Segmentation fault"),
    ],
)
def test_last_words_say_why_it_died(
    broker: Broker, launch: Callable[..., Node], entry: str, status: dict[str, Any], reason: str
) -> None:
    launch("--workers", "0", entry=entry)
    broker.hello()
    broker.say(Verb.START, 7, {"name": "victim", "role": "actor"})
    exited = broker.child("exited", "victim", restart_in=None, **status)
    assert reason in exited["reason"]
    assert "\n" not in exited["reason"]


def test_timeouts_cancels_and_recalls_reach_the_child(
    broker: Broker, launch: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child begins what the test tells it to; the page does the rest."""
    fifo = tmp_path / "commands"
    os.mkfifo(fifo)
    monkeypatch.setenv("STANDIN_FIFO", str(fifo))
    launch("--workers", "1", entry="serve")
    started = broker.child("started")
    about = {"session": started["session"]}
    with open(fifo, "w", buffering=1) as commands:
        broker.line("up")
        broker.say(Verb.RECALL, 2, about)
        assert broker.expect(lambda record: record[0] == Verb.RECALLED)[1:3] == [2, 1]
        commands.write("begin 1\nend\nbegin 2\nbegin 3\n")
        for text in ("begun 1", "ended", "refused 2", "begun 3"):
            broker.line(text)
        broker.say(Verb.RECALL, 3, about)
        assert broker.expect(lambda record: record[0] == Verb.RECALLED)[1:3] == [3, 0]
        broker.say(Verb.WATCH, 3, about | {"timeout": 0.05, "grace": 0.1})
        broker.line("term timeout")
        broker.child("exited", cause="timeout", aborted=3, begun=3, last=3, code=0, restart_in=0.0)


def test_a_start_gives_devices_threads_and_environment(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "0", entry="describe")
    broker.hello()
    order = {"name": "a", "role": "actor", "cpus": 2, "devices": ["1", "3"], "env": {"MINE": "x"}, "credits": 4}
    broker.say(Verb.START, 7, order)
    started = broker.child("started", "a", devices=["1", "3"], cpus=2)
    told = json.loads(broker.line('"name": "a"', "a")["text"])
    assert told["pid"] == started["pid"]
    assert told["address"] == broker.address
    env = told["env"]
    assert [env[key] for key in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MINE")] == ["1,3", "2", "x"]
    broker.child("exited", "a", code=7)


def test_a_halt_stops_one_child(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "1", entry="polite")
    broker.line("up")
    broker.say(Verb.HALT, 9, {"name": "worker-0", "grace": 5})
    broker.child("exited", "worker-0", code=0, restart_in=None)


def test_broken_records_are_answered_and_survived(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "0")
    broker.hello()
    broker.socket.send_multipart([broker.route, b"not", b"ours"])
    broker.say(Verb.START, 3, {"name": "x"})
    assert "'role'" in broker.expect(lambda record: record[0] == Verb.ERROR and record[1] == 3)[2]["message"]
    broker.say(Verb.PING, 5)
    broker.expect(lambda record: record[0] == Verb.PONG and record[1] == 5)


def test_a_flood_of_output_is_slowed_and_hinders_nobody(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "1", entry="flood")
    broker.line("xxx")
    began, resident = time.monotonic(), 0
    for _ in range(20):
        broker.say(Verb.PING, 5)
        broker.expect(lambda record: record[0] == Verb.PONG, timeout=2)
        resident = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * 4
    published = sum(record[0] == Verb.PUBLISH for record in broker.records)
    assert published * 1000 < (time.monotonic() - began + 2) * (6 << 20), "some 4 MiB a second and a burst"
    assert resident < 80_000, "KiB"
    node.process.terminate()
    broker.child("exited", "worker-0")
    assert node.ends() == 0


def test_a_node_finds_its_broker_again_and_its_children_never_stop(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "2")
    first = broker.child("started", "worker-0")
    doomed = broker.child("started", "worker-1")
    broker.line("up", "worker-1")
    broker.die()
    os.kill(doomed["pid"], signal.SIGKILL)
    broker.records.clear()
    broker.rise()
    broker.hello(2)
    assert broker.hellos[0]["session"] == broker.hellos[1]["session"]
    broker.child("exited", "worker-1", session=doomed["session"])
    again = broker.child("started", "worker-0")
    assert again["pid"] == first["pid"]
    assert again["session"] == first["session"]


def test_a_broker_that_asks_for_a_hello_gets_one(broker: Broker, launch: Callable[..., Node]) -> None:
    launch("--workers", "0")
    broker.hello()
    broker.say(Verb.ERROR, 0, {"error": "ProtocolError", "message": "who?", "again": True})
    broker.hello(2)


def test_a_node_whose_broker_stays_away_stops(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "1", "--broker-grace", "0.3", entry="polite")
    broker.line("up")
    broker.die()
    assert node.ends() == 1
    _, errors = node.process.communicate()
    assert f"no broker has answered at {broker.address} for 0.3 s" in errors
    broker.rise()


def test_a_dead_zygote_is_replaced(broker: Broker, launch: Callable[..., Node]) -> None:
    node = launch("--workers", "1")
    started = broker.child("started")
    broker.line("up")
    zygote = int(Path(f"/proc/{started['pid']}/stat").read_text().rsplit(")")[1].split()[1])
    os.kill(zygote, signal.SIGKILL)
    exited = broker.child("exited", session=started["session"], code=None)
    assert "its zygote died" in exited["reason"]
    again = broker.child("started", incarnation=1)
    broker.line("up")
    node.process.terminate()
    broker.child("exited", session=again["session"])
    assert node.ends() == 0


def test_it_tells_its_launcher_when_it_is_ready(broker: Broker, launch: Callable[..., Node]) -> None:
    reader, writer = os.pipe()
    node = launch("--workers", "1", pass_fds=[writer], env={**os.environ, "OMNIBUS_READY_FD": str(writer)})
    os.close(writer)
    broker.line("up")
    with open(reader, "rb") as pipe:
        assert pipe.read() == f"ready {broker.address}\n".encode(), "and nobody else holds the pipe open"
    assert node.process.poll() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "3"], "--gpus 3: this host has"),
        (["--memory", "much"], "memory 'much' is no size"),
        (["--label", "fast"], "--label ['fast']: each must be of the form name=value"),
        (["--workers", "-1"], "expected more than 0, and 0 or more"),
        (["--address", "nowhere"], "has no scheme"),
    ],
)
def test_a_wrong_option_is_refused_by_name(launch: Callable[..., Node], options: list[str], message: str) -> None:
    node = launch(*options)
    _, errors = node.process.communicate(timeout=DEADLINE)
    assert node.process.returncode == 1
    assert message in errors


def test_a_node_without_descriptors_left_says_so_and_goes_on(broker: Broker, launch: Callable[..., Node]) -> None:
    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))

    launch("--workers", "0", preexec_fn=few_descriptors)
    broker.hello()
    for number in range(20):
        broker.say(Verb.START, number + 1, {"name": f"a{number}", "role": "actor"})
    refused = broker.child("exited", code=None, restart_in=None)
    assert "could not be started: " in refused["reason"]
    assert "ulimit -n" in refused["reason"]
    started = broker.child("started")
    broker.say(Verb.HALT, 99, {"name": started["name"], "grace": 1})
    broker.child("exited", started["name"], signal=signal.SIGTERM)
    broker.say(Verb.PING, 5)
    broker.expect(lambda record: record[0] == Verb.PONG)
