"""``omnibus status``, ``top``, ``logs``, ``audit`` and ``doctor`` on a mesh that runs."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnibus as package
from omnibus.commands import checks
from omnibus.commands.audit import faults
from omnibus.commands.tables import brief, duration, size
from omnibus.commands.top import rates
from tests.support.cli import OMNIBUS, PATIENCE, environment, mesh, omnibus, start
from tests.support.events import eventually

HELPERS = """
import sys

import omnibus

def say(out, err):
    print(out)
    print(err, file=sys.stderr)

class Speaker(omnibus.Actor):
    def speak(self, text):
        print(text)
"""


@pytest.fixture(scope="module")
def address(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a mesh with an actor, on which some work was done; give its address."""
    folder = tmp_path_factory.mktemp("look")
    (folder / "helpers.py").write_text(HELPERS)
    with mesh(run_dir, "--workers", "1", "--name", "here", "--drain", "5", "--quiet", cwd=folder) as up:
        where = up.out.wait_for("ready ").split()[1]
        with package.connect(where) as bus:
            bus.spawn("helpers:Speaker", name="speaker")
            bus.submit("helpers:say", "first out", "first err").result()
            bus.actor("speaker").ask("speak", "from the actor").result()
            bus.options(priority=7).submit("builtins:pow", 2, 3).result()
        eventually(lambda: len(lines_of(run_dir)) == 3, 20, "the three lines have arrived")
        yield where


def lines_of(run_dir: Path, *options: str) -> list[dict[str, Any]]:
    ran = omnibus(run_dir, "logs", "--json", *options)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


# ---------------------------------------------------------------------- status


def test_the_status_is_tables_for_people(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "status")
    assert ran.returncode == 0
    assert not ran.stderr
    assert "\x1b" not in ran.stdout
    assert ran.stdout.startswith(f"broker {address}")
    for title in ("Nodes", "Workers", "Actors", "Lanes", "Work"):
        assert re.search(rf"^{title} *$", ran.stdout, re.MULTILINE)
    assert re.search(r"^ *speaker +\S+ +\d+ +ready", ran.stdout, re.MULTILINE)
    assert re.search(r"^ *7 +0 +1 ", ran.stdout, re.MULTILINE)


def test_the_status_is_one_json_object_for_scripts(address: str, run_dir: Path) -> None:
    found = json.loads(omnibus(run_dir, "status", "--json").stdout)
    assert found["broker"]["address"] == address
    assert [node["name"] for node in found["nodes"]] == ["here"]
    assert [actor["name"] for actor in found["actors"]] == ["speaker"]
    assert found["tasks"]["done"] == 2
    assert found["waited"]["7"]["dispatched"] == 1


def test_the_status_is_watched_until_ctrl_c(address: str, run_dir: Path) -> None:
    with start(run_dir, "status", "--json", "--watch", "--interval", "0.05") as watching:
        eventually(lambda: len(list(watching.out)) >= 3, 20, "three looks")
        watching.signal(signal.SIGINT)
        assert watching.wait() == 0
        uptimes = [json.loads(line)["broker"]["uptime"] for line in watching.out]
        assert uptimes == sorted(set(uptimes))


def test_a_reader_that_leaves_ends_the_command_quietly(address: str, run_dir: Path) -> None:
    process = subprocess.Popen(
        [*OMNIBUS, "status", "--json", "--watch", "--interval", "0.05"],
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
            assert process.stderr.read() == ""
        finally:
            process.kill()


# ---------------------------------------------------------------------- top


def test_top_is_one_frame_where_there_is_no_terminal(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "top", "--interval", "0.1")
    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout
    assert ran.stdout.count("broker ") == 1
    assert "done/s" in ran.stdout
    assert "worker-0" in ran.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_top_leaves_the_terminal_as_it_was(address: str, run_dir: Path, how: signal.Signals) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [*OMNIBUS, "top", "--interval", "0.05"]
    env = environment(run_dir, TERM="xterm-256color")
    shown = b""
    process = subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    try:
        while shown.count(b"done/s") < 2:  # each frame is drawn anew
            shown += os.read(master, 65536)
        process.send_signal(how)
        os.set_blocking(master, False)

        def drained() -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError):
                shown += os.read(master, 65536)
            return process.poll() is not None

        eventually(drained, 20, "top has ended")
        with contextlib.suppress(BlockingIOError, OSError):
            while more := os.read(master, 65536):
                shown += more
        assert process.wait() == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)
    for enter, leave in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):
        assert shown.rfind(leave) > shown.rfind(enter) >= 0, "the screen and the cursor are given back"
    assert b"Traceback" not in shown


def test_rates_are_what_happened_between_two_looks(address: str, run_dir: Path) -> None:
    before = json.loads(omnibus(run_dir, "status", "--json").stdout)
    after = copy.deepcopy(before)
    after["broker"]["uptime"] += 2.0
    after["tasks"]["done"] += 10
    after["waited"]["7"]["dispatched"] += 4
    after["waited"]["7"]["waited"] += 1.0
    after["waited"]["9"] = {"dispatched": 2, "waited": 0.5, "longest": 0.5}
    told = rates(before, after)
    assert told["tasks"] == {"submitted": 0.0, "done": 5.0, "failed": 0.0}
    assert told["lanes"]["7"] == (2.0, 0.25)
    assert told["lanes"]["9"] == (1.0, 0.25)
    assert told["lanes"]["0"] == (0.0, 0.0)
    assert rates(before, before)["tasks"]["done"] == 0.0, "no time has passed"


# ---------------------------------------------------------------------- logs


def test_logs_show_what_was_printed_where_it_was_printed(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "logs")
    assert ran.returncode == 0
    assert re.fullmatch(r"\(worker-0 pid=\d+\) first out\n\(speaker pid=\d+\) from the actor\n", ran.stdout)
    assert re.fullmatch(r"\(worker-0 pid=\d+\) first err\n", ran.stderr)


def test_logs_of_one_source(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "logs", "speaker")
    assert re.fullmatch(r"\(speaker pid=\d+\) from the actor\n", ran.stdout)
    assert not ran.stderr


def test_logs_for_scripts_have_numbers_to_begin_with(address: str, run_dir: Path) -> None:
    lines = lines_of(run_dir)
    assert [line["number"] for line in lines] == [1, 2, 3]
    assert set(lines[0]) == {"number", "source", "stream", "pid", "time", "text"}
    assert lines_of(run_dir, "--since", "3") == lines[2:]
    assert lines_of(run_dir, "--since", "99") == []


def test_logs_are_followed_until_ctrl_c(address: str, run_dir: Path) -> None:
    with start(run_dir, "logs", "speaker", "--follow") as following:
        following.out.wait_for("(speaker ")
        last = lines_of(run_dir)[-1]["number"]
        assert omnibus(run_dir, "call", "speaker", "speak", '"something new"').returncode == 0
        following.out.wait_for(lambda line: line.endswith("something new"))
        following.signal(signal.SIGINT)
        assert following.wait() == 0
        assert not following.err.text
    assert [line["text"] for line in lines_of(run_dir, "--since", str(last + 1))] == ["something new"]


def test_logs_of_one_that_is_not_there_or_says_nothing(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "logs", "speakr")
    assert ran.returncode == 1
    said = "no worker or actor is named 'speakr'; did you mean 'speaker'?; there are worker-0, speaker"
    assert ran.stderr == f"omnibus logs: {said}\n"
    with package.connect(address) as bus:
        ref = bus.spawn("helpers:Speaker", name="silent")
        quiet = omnibus(run_dir, "logs", "silent")
        ref.stop()
    assert (quiet.returncode, quiet.stdout) == (0, "")
    assert quiet.stderr == "silent has printed nothing that is kept\n"


# ---------------------------------------------------------------------- audit


def test_the_books_of_a_mesh_add_up(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "audit")
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.rstrip().endswith("The books add up: nothing was lost, and nothing ended twice.")
    told = json.loads(omnibus(run_dir, "audit", "--json").stdout)
    assert told["ok"] is True
    assert told["faults"] == []
    assert told["tasks"]["submitted"] == told["tasks"]["done"] > 0


def test_the_books_add_up_under_load(address: str, run_dir: Path) -> None:
    with package.connect(address) as bus:
        lanes = [bus.options(priority=priority) for priority in range(3)]
        futures: list[Any] = [lanes[number % 3].submit("builtins:pow", 2, number) for number in range(3000)]
        seen = 0
        while not futures[-1].done():
            status = bus.status()
            assert list(faults(status)) == []
            seen += 1
        assert seen
        assert [future.result() for future in futures[:3]] == [1, 2, 4]


BOOK = dict.fromkeys(
    ("submitted", "queued", "running", "done", "failed", "cancelled", "expired", "dead", "balance"), 0
)
SOUND: dict[str, Any] = {
    "tasks": {**BOOK, "submitted": 6, "queued": 2, "running": 1, "done": 3},
    "messages": {**BOOK, "submitted": 2, "queued": 1, "running": 1},
    "lanes": {0: 1, 5: 1},
    "nodes": [{"name": "n", "free_cpus": 1.0, "cpus": 2.0, "gpus": {"0": 0.5}}],
    "workers": [{"name": "w", "host": "h", "pid": 1, "state": "busy", "running": 1}],
    "actors": [{"name": "a", "host": "h", "pid": 2, "state": "ready", "running": 1, "queued": 1}],
}


def test_a_sound_status_has_no_faults() -> None:
    assert list(faults(SOUND)) == []


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("tasks", "done"), 2, "1 were lost"),
        (("tasks", "done"), 4, "1 ended twice"),
        (("tasks", "balance"), 1, "the broker reckons a balance of 1, these counts give 0"),
        (("messages", "failed"), -1, "messages: -1 are failed, which cannot be"),
        (("lanes", 5), 7, "queued tasks: the books say 2, the mesh holds 8"),
        (("actors", 0, "queued"), 0, "queued messages: the books say 1, the mesh holds 0"),
        (("workers", 0, "running"), 0, "running: the books say 2, the mesh holds 1"),
        (("nodes", 0, "free_cpus"), 3.0, "node n: 3 of its 2 CPUs are free"),
        (("nodes", 0, "gpus", "0"), 1.5, "node n: 1.5 of GPU 0 is free"),
        (("nodes", 0, "gpus", "0"), -0.5, "node n: -0.5 of GPU 0 is free"),
        (("workers",), SOUND["workers"] * 2, "process 1 on h stands for 2 workers"),
    ],
)
def test_each_fault_is_found(where: tuple[Any, ...], value: Any, said: str) -> None:
    status = copy.deepcopy(SOUND)
    spot: Any = status
    for key in where[:-1]:
        spot = spot[key]
    spot[where[-1]] = value
    assert [fault for fault in faults(status) if said in fault]


def test_an_audit_that_finds_a_fault_exits_1(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from omnibus.cli import main
    from omnibus.commands import audit

    broken = copy.deepcopy(SOUND)
    broken["tasks"]["done"] = 2
    monkeypatch.setattr(audit, "ask_status", lambda *_: broken)
    assert main(["audit", "--address", address]) == 1
    assert "wrong: tasks: 6 were accepted" in capsys.readouterr().out
    assert main(["audit", "--address", address, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


# ---------------------------------------------------------------------- doctor


def test_the_doctor_sees_the_mesh_and_the_host(address: str, run_dir: Path) -> None:
    ran = omnibus(run_dir, "doctor", "--json")
    found = json.loads(ran.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert set(states.values()) <= {"ok", "warn", "fail"}
    assert found["ok"] == ("fail" not in states.values()) == (ran.returncode == 0)
    said = {check["name"]: check["found"] for check in found["checks"]}
    assert states["mesh"] == states["versions"] == states["members"] == states["python"] == "ok"
    assert address in said["mesh"]
    assert package.__version__ in said["versions"]
    assert said["members"] == "nodes: 1, workers: 1"
    expected = {"kernel", "packages", "libzmq", "run directory", "run file", "/dev/shm", "memfd", "open files"}
    assert expected | {"processes", "cpus", "memory", "gpus", "host name"} <= set(states)


def test_the_doctor_fails_a_mesh_that_does_not_answer(tmp_path: Path) -> None:
    ran = omnibus(tmp_path, "doctor", "--address", f"ipc://{tmp_path}/nobody", "--within", "0.2")
    assert ran.returncode == 1
    assert re.search(rf"mesh +fail +no answer from ipc://{tmp_path}/nobody", ran.stdout)


def test_the_doctor_runs_where_the_mesh_has_no_node(tmp_path: Path) -> None:
    home = Path("/tmp") / f"obd{os.getpid()}"
    home.mkdir(mode=0o700)
    try:
        with mesh(home, "--workers", "0"):
            found = json.loads(omnibus(home, "doctor", "--json").stdout)["checks"]
            assert [check["found"] for check in found if check["name"] == "members"] == ["nodes: 1, workers: 0"]
        with start(home, "broker") as broker:
            broker.out.wait_for("ready ")
            found = json.loads(omnibus(home, "doctor", "--json").stdout)["checks"]
            (members,) = [check for check in found if check["name"] == "members"]
            assert members["state"] == "warn"
            assert "omnibus node" in members["advice"]
            broker.signal(signal.SIGTERM)
            assert broker.wait() == 0
    finally:
        home.rmdir()


def test_a_check_that_cannot_look_is_a_warning() -> None:
    def broken() -> Iterator[checks.Finding]:
        yield from checks.check_python() if not sys.platform else ()
        raise PermissionError(13, "denied")

    (finding,) = checks.guarded("thing", broken)
    assert (finding.name, finding.state) == ("thing", "warn")
    assert "denied" in finding.found


def test_gpus_are_told_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    tool.write_text(f"#!{sys.executable}\nprint('0, NVIDIA H200, 143771 MiB, 550.1')\n")
    tool.chmod(0o755)
    (good,) = checks.check_gpus()
    assert good.state == "ok"
    assert "NVIDIA H200" in good.found
    assert "would give out 0" in good.found
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('no devices were found')\nsys.exit(6)\n")
    (bad,) = checks.check_gpus()
    assert (bad.state, bad.found) == ("warn", "nvidia-smi: no devices were found")
    tool.unlink()
    (blind,) = checks.check_gpus()
    assert blind.state == "warn"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (none,) = checks.check_gpus()
    assert (none.state, none.found) == ("ok", "none")


# ---------------------------------------------------------------------- figures for people


def test_figures_for_people() -> None:
    assert [duration(seconds) for seconds in (0.25, 61, 3700, 90000)] == ["0.2 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
    assert [size(count) for count in (12, 2048, 3 << 20, 5 << 40)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.0 TiB"]
    assert [brief(seconds) for seconds in (0.0012, 3)] == ["1.2 ms", "3.0 s"]
