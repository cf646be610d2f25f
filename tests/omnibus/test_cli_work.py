"""``omnibus submit``, ``call`` and ``fetch`` on a mesh that runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnibus as package
from tests.support.cli import mesh, omnibus, start
from tests.support.events import eventually

HELPERS = """
import os

import omnibus

def wait(path):
    with open(path) as fifo:
        return fifo.read()

def kinds():
    import numpy
    some = {"array": numpy.arange(3), "bytes": b"\\x00\\x01", "tuple": (1, 2.5)}
    return some | {"inf": float("inf"), "object": complex(1, 2)}

def name():
    return omnibus.current().name

def crash():
    os.kill(os.getpid(), 9)

def fail(text):
    raise LookupError(text)

class Counter(omnibus.Actor):
    def __init__(self):
        self.value = 0

    def add(self, number, times = 1):
        self.value += number * times
        return self.value

    def countdown(self, start):
        yield from range(start, 0, -1)

    def endless(self):
        while True:
            yield "again"

    def boom(self):
        raise ValueError("not today")
"""


@pytest.fixture(scope="module")
def place(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a mesh in a directory with a module, and an actor on it; give the directory."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "helpers.py").write_text(HELPERS)
    with mesh(run_dir, "--workers", "1", "--drain", "3", cwd=folder) as up:
        address = up.out.wait_for("ready ").split()[1]
        with package.connect(address) as bus:
            bus.spawn("helpers:Counter", name="counter")
        yield folder


# ---------------------------------------------------------------------- submit


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["builtins:pow", "2", "10"], "1024"),
        (["builtins:abs", "-3"], "3"),
        (["builtins:abs", "--", "-3.5"], "3.5"),
        (["builtins:str", '"a text"'], "a text"),
        (["builtins:sorted", "[3, 1, 2]", "--kw", "reverse=true", "-p", "-2"], "[3, 2, 1]"),
        (["builtins:dict", "-k", 'a=[1, null]', "-k", 'b="x"'], "{'a': [1, None], 'b': 'x'}"),
    ],
)
def test_a_result_is_printed(place: Path, run_dir: Path, words: list[str], printed: str) -> None:
    ran = omnibus(run_dir, "submit", *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{printed}\n", "")


def test_options_reach_the_task(place: Path, run_dir: Path) -> None:
    given = ["--retries", "0", "--timeout", "50", "--ttl", "50", "--cpus", "0.5", "--memory", "1M", "--name", "mine"]
    ran = omnibus(run_dir, "submit", "helpers:name", *given)
    assert ran.stdout == "mine\n", ran.stderr


def test_values_that_json_lacks_are_shown_plainly(place: Path, run_dir: Path) -> None:
    ran = omnibus(run_dir, "submit", "helpers:kinds", "--json")
    told = json.loads(ran.stdout)
    assert told.pop("task").endswith("-1")
    result = {"array": [0, 1, 2], "bytes": {"base64": "AAE="}, "tuple": [1, 2.5], "inf": "inf", "object": "(1+2j)"}
    assert told == {"state": "done", "result": result}


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["helpers:fail", '"gone"'], "RemoteError", "LookupError: gone"),
        (["helpers:nothing"], "SetupFailed", "there is no 'nothing' in module 'helpers'"),
        (["nowhere:nothing"], "SetupFailed", "module 'nowhere' could not be imported"),
        (["helpers:crash", "--retries", "0"], "WorkerDied", "SIGKILL"),
        (["helpers:crash", "--retries", "1"], "DeadLetter", "lost its worker 2 times"),
        (["time:sleep", "60", "--timeout", "0.1"], "TaskTimeout", "timeout of 0.1 s"),
        (["builtins:pow", "2", "2", "--label", "disk=none", "--ttl", "0.1"], "Expired", "ttl of 0.1 s"),
    ],
)
def test_a_task_that_fails_is_one_line_and_exit_code_1(
    place: Path, run_dir: Path, words: list[str], error: str, said: str
) -> None:
    ran = omnibus(run_dir, "submit", *words, "--json")
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"omnibus submit: {error}: ")
    assert said in line
    told = json.loads(ran.stdout)
    assert told["error"] == error
    assert said in told["message"]
    states = {"DeadLetter": "dead", "Expired": "expired"}
    assert told["state"] == states.get(error, "failed")
    assert ("traceback" in told) == (error == "RemoteError")


def test_the_remote_traceback_is_shown_where_asked_for(place: Path, run_dir: Path) -> None:
    short = omnibus(run_dir, "submit", "helpers:fail", '"gone"')
    assert short.stderr == "omnibus submit: RemoteError: LookupError: gone (--traceback shows where)\n"
    assert short.stdout == ""
    long = omnibus(run_dir, "submit", "helpers:fail", '"gone"', "--traceback")
    assert "raise LookupError(text)" in long.stderr


def test_what_fits_nowhere_says_so_in_time(place: Path, run_dir: Path) -> None:
    ran = omnibus(run_dir, "submit", "builtins:pow", "2", "2", "--gpus", "1.5")
    assert ran.returncode == 2
    assert "gpus" in ran.stderr


def test_ctrl_c_cancels_a_task(place: Path, run_dir: Path) -> None:
    fifo = place / "cancel"
    os.mkfifo(fifo)
    before = json.loads(omnibus(run_dir, "status", "--json").stdout)["tasks"]["cancelled"]
    with start(run_dir, "submit", "helpers:wait", json.dumps(str(fifo))) as running:
        _until_running(run_dir)
        running.signal(signal.SIGINT)
        assert running.wait() == 130
        assert list(running.err) == ["omnibus submit: interrupted; it is cancelled"]

    def cancelled() -> bool:
        return bool(json.loads(omnibus(run_dir, "status", "--json").stdout)["tasks"]["cancelled"] == before + 1)

    eventually(cancelled, 20, "the task is cancelled")


# ---------------------------------------------------------------------- detached


def test_a_detached_task_is_fetched_by_its_id(place: Path, run_dir: Path) -> None:
    fifo = place / "detached"
    os.mkfifo(fifo)
    with package.connect(f"ipc://{run_dir}/broker.sock") as bus:
        future: Any = bus.options(detached=True).submit("helpers:wait", str(fifo))
        task = bus.task_id(future)
        _until_running(run_dir)
        early = omnibus(run_dir, "fetch", task)
        assert early.returncode == 1
        assert "has not ended yet" in early.stderr
        with start(run_dir, "fetch", "--wait", task, "--json") as waiting:
            fifo.write_text("the end")
            assert waiting.wait() == 0
            assert json.loads(waiting.out.text) == {"task": task, "state": "done", "result": "the end"}
        assert future.result(20) == "the end"
    assert omnibus(run_dir, "fetch", task).stdout == "the end\n"


def test_a_task_that_runs_on_without_its_client_is_awaited(place: Path, run_dir: Path) -> None:
    fifo = place / "orphan"
    os.mkfifo(fifo)
    task = omnibus(run_dir, "submit", "--detach", "helpers:wait", json.dumps(str(fifo))).stdout.strip()
    early = omnibus(run_dir, "fetch", task)
    fifo.write_text("the end")
    assert "has not ended yet" in early.stderr
    assert omnibus(run_dir, "fetch", "--wait", task).stdout == "the end\n"


def test_not_waiting_is_detaching_and_a_detached_task_may_be_waited_for(place: Path, run_dir: Path) -> None:
    ran = omnibus(run_dir, "submit", "--no-wait", "builtins:pow", "2", "3", "--json")
    told = json.loads(ran.stdout)
    assert told.pop("state") == "submitted"
    assert omnibus(run_dir, "fetch", "--wait", told["task"]).stdout == "8\n"
    both = omnibus(run_dir, "submit", "--detach", "--wait", "builtins:pow", "2", "4", "--json")
    told = json.loads(both.stdout)
    assert told["result"] == 16
    assert omnibus(run_dir, "fetch", told["task"]).stdout == "16\n"


def test_ctrl_c_leaves_a_detached_task(place: Path, run_dir: Path) -> None:
    fifo = place / "left"
    os.mkfifo(fifo)
    with start(run_dir, "submit", "--detach", "--wait", "helpers:wait", json.dumps(str(fifo))) as running:
        _until_running(run_dir)
        running.signal(signal.SIGINT)
        assert running.wait() == 130
        task = running.err.text.rstrip("`").split()[-1]
    fifo.write_text("it went on")
    assert omnibus(run_dir, "fetch", "--wait", task).stdout == "it went on\n"


def test_a_failed_detached_task_is_fetched_as_its_error(place: Path, run_dir: Path) -> None:
    task = omnibus(run_dir, "submit", "--detach", "helpers:fail", '"later"').stdout.strip()
    ran = omnibus(run_dir, "fetch", "--wait", task)
    assert ran.returncode == 1
    assert "RemoteError: LookupError: later" in ran.stderr


@pytest.mark.parametrize(
    ("task", "code", "said"), [("x", 2, "is no task id"), (f"{'0' * 32}-7", 1, "NotFound: ")]
)
def test_a_task_that_nobody_knows(place: Path, run_dir: Path, task: str, code: int, said: str) -> None:
    ran = omnibus(run_dir, "fetch", task)
    assert ran.returncode == code
    assert said in ran.stderr


# ---------------------------------------------------------------------- call


def test_an_actor_answers(place: Path, run_dir: Path) -> None:
    first = int(omnibus(run_dir, "call", "counter", "add", "5").stdout)
    assert int(omnibus(run_dir, "call", "counter", "add", "-2", "--kw", "times=2").stdout) == first - 4
    told = json.loads(omnibus(run_dir, "call", "counter", "add", "0", "--json").stdout)
    assert told == {"actor": "counter", "state": "done", "result": first - 4}


def test_a_stream_is_a_line_for_each_value(place: Path, run_dir: Path) -> None:
    assert omnibus(run_dir, "call", "counter", "countdown", "3", "--stream").stdout == "3\n2\n1\n"
    assert omnibus(run_dir, "call", "counter", "countdown", "2", "-s", "--json").stdout == "2\n1\n"


def test_a_stream_ends_with_its_reader(place: Path, run_dir: Path) -> None:
    with start(run_dir, "call", "counter", "endless", "--stream") as running:
        running.out.wait_for("again")
        running.signal(signal.SIGINT)
        assert running.wait() == 130
        assert not running.err.text
    assert omnibus(run_dir, "call", "counter", "add", "0").returncode == 0, "the actor is free again"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["counter", "boom"], "RemoteError: ValueError: not today"),
        (["counter", "ad"], "has no message 'ad'"),
        (["counter", "countdown", '"x"', "--stream"], "RemoteError: TypeError"),
        (["conter", "add", "1"], "no actor is named 'conter'; did you mean 'counter'?"),
    ],
)
def test_a_message_that_fails_is_one_line_and_exit_code_1(
    place: Path, run_dir: Path, words: list[str], said: str
) -> None:
    ran = omnibus(run_dir, "call", *words)
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert said in line
    assert not ran.stdout


def _until_running(run_dir: Path) -> None:
    def runs() -> bool:
        return bool(json.loads(omnibus(run_dir, "status", "--json").stdout)["tasks"]["running"])

    eventually(runs, 20, "the task runs")
