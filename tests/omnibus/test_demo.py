"""The demo: what it computes, what it counts, what it shows; and once for real, with a worker killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from rich.console import Console

from omnibus import demo, demo_run
from omnibus.bus import Bus
from omnibus.demo_run import EVALUATION, SERVER, TRAINING, Data, Lane, Listener, Plan, Report, Training, load_data
from omnibus.demo_work import ParameterServer, count_correct, gradient, new_weights
from omnibus.errors import ConnectTimeout
from tests.repo.tree import ROOT

torch = pytest.importorskip("torch", reason="the demo trains with torch")
pytest.importorskip("sklearn", reason="the demo's data come with scikit-learn")

TINY = Plan(seed=5, rounds=3, shards=4, copies=1, rate=0.03)
QUICK = demo._plan(demo._parse(["--quick", "--seed", "3"]))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute as a worker does, so that sums are made in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Done:
    """A future that has ended."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._value


class Ref:
    """A handle on an actor that lives right here."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.stopped = False

    def options(self, *, priority: int) -> Ref:
        assert priority == SERVER
        return self

    def ask(self, method: str, *args: Any) -> Done:
        return Done(getattr(self._actor, method)(*args))

    def tell(self, method: str, *args: Any) -> None:
        getattr(self._actor, method)(*args)

    def stop(self) -> None:
        self.stopped = True


class FakeBus:
    """A mesh of nothing but this thread: its two workers are numbers, and ``status`` says what a broker would.

    ``books`` is added to what the ledger says; the first ``misses`` kills hit a worker between two tasks.
    """

    def __init__(self, **books: int) -> None:
        self._books = books
        self._counts = {TRAINING: 0, EVALUATION: 0}
        self._pids = [101, 102]
        self._kills = 0
        self.misses = 0
        self.submitted: list[int] = []
        self.ref: Ref | None = None

    def kill(self, pid: int, signum: int) -> None:
        assert signum == signal.SIGKILL
        self._kills += 1
        self._pids[self._pids.index(pid)] = pid + 100

    def options(self, *, priority: int, name: str) -> Any:
        bus = self

        class Submitter:
            def submit(self, fn: Any, *args: Any) -> Done:
                bus.submitted.append(priority)
                bus._counts[priority] += 1
                return Done(fn(*args))

        return Submitter()

    def spawn(self, cls: Any, *args: Any) -> Ref:
        self.ref = Ref(cls(*args))
        return self.ref

    def status(self) -> dict[str, Any]:
        done = len(self.submitted)
        ends = ("queued", "running", "failed", "cancelled", "expired", "dead", "balance")
        hits = max(0, self._kills - self.misses)
        books = {"submitted": done, "done": done, "redelivered": hits, **dict.fromkeys(ends, 0)}
        return {
            "broker": {"pid": 100},
            "workers": [{"name": f"worker-{pid % 100}", "pid": pid, "running": 1} for pid in self._pids],
            "actors": [{"name": "ParameterServer", "pid": 99}],
            "waited": {lane: {"dispatched": n, "waited": 0.5, "longest": 0.25} for lane, n in self._counts.items()},
            "tasks": {name: count + self._books.get(name, 0) for name, count in books.items()},
        }


@pytest.fixture(scope="module")
def tiny() -> Data:
    return load_data(TINY)


def train(bus: FakeBus, plan: Plan, data: Data, monkeypatch: pytest.MonkeyPatch, listener: Any = None) -> Report:
    monkeypatch.setattr(demo_run.os, "kill", bus.kill)
    return Training(cast(Bus, bus), plan, data, listener).run()


# --- what is computed


def test_the_data_are_cut_without_loss(tiny: Data) -> None:
    assert len(tiny.shards) == TINY.shards
    assert sum(len(labels) for _, labels in tiny.shards) + sum(len(labels) for _, labels in tiny.pieces) == 1797
    assert tiny.shards[0][0].shape[1:] == (1, 8, 8)
    assert 0 <= float(tiny.shards[0][0].min()) <= float(tiny.shards[0][0].max()) <= 1


def test_a_gradient_points_up_the_loss_and_is_the_same_each_time(tiny: Data) -> None:
    images, labels = tiny.shards[0]
    weights = new_weights(1)
    first, second = (gradient(weights, images, labels, 2, 9) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in weights)
    assert not torch.equal(first["last"], gradient(weights, images, labels, 2, 10)["last"])
    assert not any(value.requires_grad for value in weights.values())
    down = {name: value - 0.02 * first[name] for name, value in weights.items()}
    up = {name: value + 0.02 * first[name] for name, value in weights.items()}
    assert count_correct(down, images, labels) > count_correct(up, images, labels)


def test_the_server_steps_when_it_has_every_gradient() -> None:
    found = [{name: value * part for name, value in new_weights(part).items()} for part in (1, 2)]
    forward, backward = ParameterServer(0, 2, 0.1), ParameterServer(0, 2, 0.1)
    forward.push(0, found[0])
    with pytest.raises(RuntimeError, match=r"step 0 lacks the gradients of shards \[1\]"):
        forward.apply()
    forward.push(1, found[1])
    for part in (1, 0, 1):                  # another order, and one of them twice
        backward.push(part, found[part])
    there, back = forward.apply(), backward.apply()
    assert all(torch.equal(there[name], back[name]) for name in there)
    assert not torch.equal(there["last"], new_weights(0)["last"])
    assert forward.steps() == 1
    with pytest.raises(RuntimeError, match=r"step 1 lacks the gradients of shards \[0, 1\]"):
        forward.apply()


# --- what is counted


class Heard(Listener):
    def __init__(self) -> None:
        self.said: list[Any] = []
        self.last = 0

    def advanced(self, done: int, round_: int, accuracy: float) -> None:
        assert done > self.last
        self.last = done

    def killed(self, name: str, pid: int, waiting: int) -> None:
        self.said.append(("killed", name, pid))

    def replaced(self, name: str, pid: int, seconds: float) -> None:
        self.said.append(("replaced", name, pid))


def test_a_run_makes_the_tasks_of_its_plan_and_reports_them(tiny: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, heard = FakeBus(), Heard()
    report = train(bus, TINY, tiny, monkeypatch, heard)
    assert report.problems == []
    assert (report.tasks, report.lost, report.redelivered) == (TINY.tasks, 0, 1)
    assert bus.submitted.count(TRAINING) == TINY.rounds * TINY.shards
    assert bus.submitted[: TINY.shards + 1] == [TRAINING] * TINY.shards + [EVALUATION], "evaluations come last"
    assert heard.said == [("killed", "worker-1", 101), ("replaced", "worker-1", 201)]
    assert heard.last == TINY.tasks
    assert (report.killed_pid, report.replaced_by) == (101, 201)
    assert report.lanes[0] == Lane(EVALUATION, "evaluations", 16, 0.5 / 16, 0.25)
    assert report.tensor_bytes > report.tensors > 0
    assert bus.ref is not None
    assert bus.ref.stopped


@pytest.mark.parametrize(
    ("books", "problem"),
    [
        ({"done": -1}, f"the broker counts {TINY.tasks - 1} tasks as done; expected {TINY.tasks}"),
        ({"submitted": 1}, f"the broker counts {TINY.tasks + 1} tasks as submitted; expected {TINY.tasks}"),
        ({"dead": 1}, "the broker counts 1 as dead; expected none"),
        ({"balance": -1}, "the broker counts -1 as balance; expected none"),
        ({"running": 2}, "the broker counts 2 as running; expected none"),
    ],
)
def test_books_that_do_not_add_up_are_a_problem(
    tiny: Data, monkeypatch: pytest.MonkeyPatch, books: dict[str, int], problem: str
) -> None:
    assert train(FakeBus(**books), TINY, tiny, monkeypatch).problems == [problem]


def test_another_worker_is_killed_where_the_first_had_no_task(tiny: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = FakeBus()
    bus.misses = 1
    report = train(bus, TINY, tiny, monkeypatch)
    assert (report.kills, report.problems) == (2, [])
    assert (report.killed_pid, report.replaced_by) == (201, 301)


def test_a_worker_that_is_not_replaced_is_a_problem(tiny: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "REPLACED_WITHIN", 0.01)
    monkeypatch.setattr(FakeBus, "kill", lambda *_: None)
    assert train(FakeBus(), TINY, tiny, monkeypatch).problems == ["worker-1 was not replaced within 0.01 s"]


# --- what is shown


def shown(report: Report, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    demo.show(report, console, 9.5)
    return cast(io.StringIO, console.file).getvalue()


def test_the_tables_show_the_report(tiny: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    report = train(FakeBus(), TINY, tiny, monkeypatch)
    plain = shown(report)
    assert "\x1b" not in plain
    for text in ("evaluations", "training shards", "250.0 ms", "redeliveries", "throughput", "9.5 s in all", "Arrow"):
        assert text in plain
    assert f"Nothing was lost: {TINY.tasks} tasks submitted, {TINY.tasks} done, each once." in plain
    assert "\x1b[" in shown(report, terminal=True)


def test_a_problem_is_shown_in_place_of_success(tiny: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(train(FakeBus(dead=1), TINY, tiny, monkeypatch))
    assert "Wrong: the broker counts 1 as dead" in text
    assert "Nothing was lost" not in text


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    tiny: Data, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    with demo._View(TINY, console) as view:
        train(FakeBus(), TINY, tiny, monkeypatch, view)
    text = cast(io.StringIO, console.file).getvalue()
    assert ("━" in text) == terminal
    if not terminal:
        assert "SIGKILL to worker-1 (pid 101) in mid-task" in text
        assert "round 3 of 3: 28 of 28 tasks, accuracy" in text
        assert len(text.splitlines()) < 20


def test_a_library_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == (
        "omnibus demo: scikit-learn is not installed: pip install 'omnibus[demo]'\n"
    )


@pytest.mark.parametrize(
    ("problem", "status", "said"),
    [
        (ConnectTimeout("nobody answers"), 1, "omnibus demo: ConnectTimeout: nobody answers\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_run_that_fails_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
    status: int,
    said: str,
) -> None:
    def fail(plan: Plan, console: Console) -> Report:
        raise problem

    monkeypatch.setattr(demo, "run", fail)
    assert demo.main(["--json"]) == status
    assert capsys.readouterr() == ("", said)


def test_problems_make_the_exit_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "run", lambda *_: Report(0, 1, problems=["a task was lost"]))
    assert demo.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


# --- for real


def test_the_demo_trains_kills_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the very accuracy that one process computes without a mesh, so every gradient counted once."""
    alone = train(FakeBus(), QUICK, load_data(QUICK), monkeypatch)
    command = [sys.executable, "-m", "omnibus.demo", "--quick", "--json", "--seed", "3"]
    environment = {**os.environ, "OMNIBUS_ADDRESS": "ipc:///nowhere/a-mesh-that-the-demo-leaves-alone"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["ok"], report["problems"]
    assert report["accuracy"] == alone.accuracy > 0.9 > 0.3 > report["accuracy_before"]
    assert (report["tasks"], report["lost"], report["books"]["done"]) == (QUICK.tasks, 0, QUICK.tasks)
    assert report["redelivered"] >= 1
    assert report["killed_pid"] != report["replaced_by"] > 0
    waits = {lane["priority"]: lane["mean_wait"] for lane in report["lanes"]}
    assert set(waits) == {TRAINING, EVALUATION, SERVER}
    assert waits[EVALUATION] < waits[TRAINING], "the high lane did not jump the queue"
