"""``Bus`` against a real mesh: a broker, a node and worker processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnibus
from omnibus.bus import Bus
from omnibus.futures import Future
from tests.support.events import eventually
from tests.support.gates import Gate, pass_gate


class Counter(omnibus.Actor):
    """Counts, and does what tests want of an actor."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.seen: list[int] = []

    def add(self, n: int) -> int:
        self.value += n
        return self.value

    def note(self, n: int) -> None:
        self.seen.append(n)

    def notes(self) -> list[int]:
        return self.seen

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def fail(self) -> None:
        raise LookupError("nothing here")

    def leave(self) -> None:
        raise SystemExit(3)

    def pid(self) -> int:
        return os.getpid()


class Broken(omnibus.Actor):
    """Cannot be set up."""

    def setup(self) -> None:
        raise OSError("no device")


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with omnibus.connect(workers=2) as bus:
        yield bus


def add(a: int, b: int = 0) -> int:
    return a + b


def hold_both(bus: Bus, gate: Gate) -> list[Future[str]]:
    """Have both workers wait at ``gate``."""
    held = [bus.submit(pass_gate, gate.path) for _ in range(2)]
    eventually(lambda: bus.status()["tasks"]["running"] == 2, what="both workers are held")
    return held


# ---------------------------------------------------------------------- tasks


def test_a_task_and_its_keywords(bus: Bus) -> None:
    assert bus.submit(add, 2, b=3).result(10) == 5
    assert bus.submit("math:factorial", 5).result(10) == 120


def test_many_tasks_in_order(bus: Bus) -> None:
    futures = [bus.submit(add, number, 1) for number in range(5_000)]
    assert [future.result(30) for future in futures] == list(range(1, 5_001))


def test_map_keeps_order_under_back_pressure(bus: Bus) -> None:
    assert list(bus.map(add, range(500), range(500), window=16)) == [2 * number for number in range(500)]


def test_what_the_function_raised_is_the_cause(bus: Bus) -> None:
    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(omnibus.RemoteError, match="KeyError") as caught:
        bus.submit(fail).result(10)
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.__cause__.args == ("gone",)
    assert "in fail" in caught.value.traceback


def test_a_task_that_cannot_be_sent_or_answered(bus: Bus) -> None:
    with pytest.raises(omnibus.NotPicklable, match="lock"):
        bus.submit(add, threading.Lock())
    with pytest.raises(omnibus.NotPicklable, match="lock"):
        bus.submit(threading.Lock).result(10)


def test_a_function_that_cannot_be_imported_there(bus: Bus) -> None:
    with pytest.raises(omnibus.SetupFailed, match="no_such_module"):
        bus.submit("no_such_module:function").result(10)


def test_futures_of_the_standard_library(bus: Bus) -> None:
    futures = [bus.submit(add, number) for number in range(50)]
    done, waiting = concurrent.futures.wait(futures, timeout=20)
    assert len(done) == 50 and not waiting
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, timeout=10)) == list(range(50))


def test_a_callback_runs_although_nobody_waits(bus: Bus) -> None:
    ended = threading.Event()
    bus.submit(add, 1).add_done_callback(lambda future: ended.set())
    assert ended.wait(10)


def test_a_callback_that_would_wait_for_itself_is_told(bus: Bus, tmp_path: Path) -> None:
    errors: list[BaseException] = []
    ended = threading.Event()

    def wait_there(path: str) -> str:
        return pass_gate(path)

    def again(future: Future[str]) -> None:
        try:
            bus.submit(add, 1).result(5)
        except omnibus.UsageError as error:
            errors.append(error)
        finally:
            ended.set()

    with Gate(tmp_path) as gate:
        bus.submit(wait_there, gate.path).add_done_callback(again)  # it is not done before it has its callback
        gate.open(1)
        assert ended.wait(10) and "callback" in str(errors[0])
    assert bus.submit(add, 1, 1).result(10) == 2


def test_many_threads_share_a_bus(bus: Bus) -> None:
    wrong: list[int] = []

    def work(base: int) -> None:
        futures = [bus.submit(add, base, number) for number in range(300)]
        wrong.extend(number for number, future in enumerate(futures) if future.result(30) != base + number)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_the_high_lane_goes_first(bus: Bus, tmp_path: Path) -> None:
    """While both workers are held, low tasks queue up; the high ones that come later run before them."""
    log = tmp_path / "log"

    def write(path: str, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)
        threading.Event().wait(0.01)  # beyond the horizon, so that nothing is prefetched

    with Gate(tmp_path) as gate:
        holders = hold_both(bus, gate)
        low = [bus.options(priority=-1).submit(write, str(log), "l") for _ in range(6)]
        high = [bus.options(priority=7).submit(write, str(log), "h") for _ in range(6)]
        eventually(lambda: bus.status()["lanes"] == {7: 6, -1: 6}, what="twelve tasks wait")
        gate.open(2)
        for future in [*holders, *low, *high]:
            future.result(20)
    assert log.read_text().startswith("hhhh") and sorted(log.read_text()) == ["h"] * 6 + ["l"] * 6


def test_a_task_that_submits_and_waits_does_not_deadlock(bus: Bus) -> None:
    def outer(depth: int) -> int:
        with omnibus.connect() as inner:
            return depth if depth == 0 else 1 + inner.submit(outer, depth - 1).result(30)

    assert [future.result(60) for future in [bus.submit(outer, 3) for _ in range(2)]] == [3, 3]


# ---------------------------------------------------------------------- ends


def test_cancel_before_and_while_running(bus: Bus, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        running = hold_both(bus, gate)
        waiting = bus.submit(add, 1)
        assert waiting.cancel()
        with pytest.raises(omnibus.Cancelled):
            waiting.result(10)
        for future in running:
            future.cancel()
        for future in running:
            with pytest.raises(omnibus.Cancelled):
                future.result(20)
            assert future.cancelled()
    assert bus.submit(add, 1, 1).result(10) == 2


def test_timeout_ends_what_runs_too_long(bus: Bus) -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(omnibus.TaskTimeout):
        bus.options(timeout=0.2).submit(spin).result(20)
    assert bus.submit(add, 1, 1).result(10) == 2


def test_ttl_ends_what_waits_too_long(bus: Bus, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        holders = hold_both(bus, gate)
        with pytest.raises(omnibus.Expired, match="ttl"):
            bus.options(ttl=0.05).submit(add, 1).result(10)
        gate.open(2)
        for future in holders:
            future.result(10)


def test_a_worker_that_is_killed_loses_nothing(bus: Bus) -> None:
    futures = [bus.submit(add, number) for number in range(2_000)]
    for worker in bus.status()["workers"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker["pid"], signal.SIGKILL)
    assert [future.result(30) for future in futures] == list(range(2_000))
    assert bus.status()["tasks"]["balance"] == 0


def test_a_task_that_kills_its_worker_ends_dead_and_its_neighbours_live(bus: Bus) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    killer = bus.options(retries=2).submit(die)
    others = [bus.options(retries=0).submit(add, number) for number in range(100)]
    with pytest.raises(omnibus.DeadLetter, match="SIGKILL"):
        killer.result(30)
    assert [future.result(30) for future in others] == list(range(100))
    once = bus.options(retries=0).submit(die)
    with pytest.raises(omnibus.WorkerDied, match="SIGKILL"):
        once.result(30)


def test_a_detached_result_is_fetched_by_another(bus: Bus) -> None:
    with omnibus.connect(bus.address) as other:
        future = other.options(detached=True).submit(add, 20, 22)
        task = other.task_id(future)
        assert future.result(10) == 42
    assert bus.fetch(task) == 42
    with pytest.raises(omnibus.NotFound):
        bus.fetch(task[:-1] + "999")
    with pytest.raises(omnibus.UsageError, match="no task id"):
        bus.fetch("nonsense")


# ---------------------------------------------------------------------- actors


def test_an_actor_by_handle_and_by_name(bus: Bus) -> None:
    ref = bus.spawn(Counter, 10, name="counter")
    assert ref.ask("add", 5).result(10) == 15
    assert bus.actor("counter").ask("add", n=1).result(10) == 16
    with pytest.raises(omnibus.AlreadyExists, match="'counter'"):
        bus.spawn(Counter, name="counter")
    ref.stop()
    with pytest.raises(omnibus.NotFound, match="'counter'"):
        ref.ask("add", 1).result(10)


def test_tells_arrive_in_order_before_a_later_ask(bus: Bus) -> None:
    ref = bus.spawn(Counter)
    for number in range(2_000):
        ref.tell("note", number)
    assert ref.ask("notes").result(20) == list(range(2_000))
    ref.stop()


def test_a_stream_to_its_end_and_left_early(bus: Bus) -> None:
    ref = bus.spawn(Counter)
    assert list(ref.stream("count", 500)) == list(range(500))
    with ref.stream("count", 10_000_000) as stream:
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
    assert ref.ask("add", 1).result(10) == 1
    with pytest.raises(omnibus.RemoteError, match="LookupError"):
        list(ref.stream("fail"))
    ref.stop()


def test_what_an_actor_cannot_do(bus: Bus) -> None:
    ref = bus.spawn(Counter)
    with pytest.raises(omnibus.NotFound, match=r"has no message 'fly'.*add"):
        ref.ask("fly").result(10)
    with pytest.raises(omnibus.NotFound):
        ref.ask("_private").result(10)
    with pytest.raises(omnibus.RemoteError, match="nothing here"):
        ref.ask("fail").result(10)
    ref.stop()
    with pytest.raises(omnibus.SetupFailed, match="no device"):
        bus.spawn(Broken)


def test_an_actor_that_leaves_or_is_killed_fails_what_it_handled(bus: Bus) -> None:
    ref = bus.spawn(Counter, name="leaver")
    with pytest.raises(omnibus.WorkerDied, match="3"):
        ref.ask("leave").result(20)


# ---------------------------------------------------------------------- topics


def test_publish_and_subscribe(bus: Bus) -> None:
    with bus.subscribe("news") as events:
        numbers = [bus.publish("news", {"n": number}) for number in range(1_000)]
        assert [future.result(10) for future in numbers] == list(range(1, 1_001))
        assert [events.get(10)["n"] for _ in range(1_000)] == list(range(1_000))
        with pytest.raises(TimeoutError):
            events.get(0.05)
    with bus.subscribe("news", since=991) as late:
        assert [late.get(10)["n"] for _ in range(10)] == list(range(990, 1_000))
        assert late.missed == 0


# ---------------------------------------------------------------------- sessions


def test_status_is_plain_and_adds_up(bus: Bus) -> None:
    bus.submit(add, 1).result(10)
    status = bus.status()
    assert {"broker", "nodes", "workers", "actors", "lanes", "tasks"} <= set(status)
    assert status["tasks"]["balance"] == 0 and status["broker"]["address"] == bus.address
    assert [node["state"] for node in status["nodes"]] == ["up"]


def test_a_closed_bus_says_so() -> None:
    bus = omnibus.connect(workers=1)
    assert bus.submit(add, 1).result(10) == 1
    assert bus.close() == 0 and bus.close() == 0
    with pytest.raises(omnibus.BusClosed):
        bus.submit(add, 1)
    assert "closed" in repr(bus)


def test_closing_ends_what_is_unfinished(bus: Bus) -> None:
    other = omnibus.connect(bus.address)
    futures = [other.submit("signal:pause") for _ in range(4)]
    assert other.close() == 4
    for future in futures:
        with pytest.raises(omnibus.BusClosed):
            future.result(1)
    eventually(lambda: bus.status()["tasks"]["running"] == 0, timeout=10, what="the tasks of an ended session are gone")


def test_a_wrong_address_times_out_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(omnibus.ConnectTimeout, match=r"tcp://127\.0\.0\.1:9 "):
        omnibus.connect("tcp://127.0.0.1:9", timeout=0.3, insecure=True)
    with pytest.raises(TimeoutError, match="nobody"):
        omnibus.connect(f"ipc://{tmp_path}/nobody", timeout=0.3)


def test_sizing_a_mesh_that_runs_is_refused(bus: Bus) -> None:
    with pytest.raises(omnibus.UsageError, match="workers: only an embedded mesh"):
        omnibus.connect(bus.address, workers=3)


def test_a_broker_that_dies_ends_every_future() -> None:
    bus = omnibus.connect(workers=1)
    try:
        futures = [bus.submit("signal:pause") for _ in range(100)]
        os.kill(bus.status()["broker"]["pid"], signal.SIGKILL)
        for future in futures:
            with pytest.raises(omnibus.Unreachable, match="ended"):
                future.result(5)
        with pytest.raises(omnibus.Unreachable):
            bus.submit(add, 1)
    finally:
        bus.close()


def test_a_forked_child_is_told_to_connect_again(bus: Bus) -> None:
    child = os.fork()
    if child == 0:
        try:
            bus.submit(add, 1)
        except omnibus.ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert bus.submit(add, 1, 1).result(10) == 2


SCRIPT = """
import omnibus
base = 40
def work(n):
    print("working")
    return base + n
bus = omnibus.connect(workers=1)
print(bus.submit(work, 2).result(20))
bus.close()
"""


@pytest.mark.parametrize("how", ["file", "stdin", "command"])
def test_connect_works_without_a_main_guard(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = {"file": [str(script)], "stdin": ["-"], "command": ["-c", SCRIPT]}[how]
    ended = subprocess.run(
        [sys.executable, *command],
        input=SCRIPT if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "42" in ended.stdout.splitlines()
    assert any("working" in line and "worker-0" in line for line in ended.stdout.splitlines()), ended.stdout
