"""``omnibus up``, ``broker`` and ``node`` as processes: they start, serve, drain, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cli import Running, mesh, omnibus, start
from tests.support.events import eventually

# What workers import from the working directory. A FIFO is an event: reading it waits until somebody writes.
HELPERS = """
import os, sys

def wait(path):
    with open(path) as fifo:
        return fifo.read()

def say(out, err):
    print(out)
    print(err, file=sys.stderr)

def whoami():
    return os.getpid()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a run directory of this test's own, short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """Give a working directory with a module in it, and a FIFO."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def status(home: Path, *options: str) -> dict[str, Any]:
    ran = omnibus(home, "status", "--json", *options)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def submit_waiting(home: Path, work_dir: Path) -> str:
    """Submit a task that runs until somebody writes to the FIFO; return its id once it runs."""
    ran = omnibus(home, "submit", "--detach", "helpers:wait", json.dumps(str(work_dir / "fifo")))
    assert ran.returncode == 0, ran.stderr
    eventually(lambda: status(home)["tasks"]["running"] == 1, 20, "the task runs")
    return ran.stdout.strip()


def family(running: Running) -> list[psutil.Process]:
    """Return all processes below a command."""
    return list(psutil.Process(running.process.pid).children(recursive=True))


def all_gone(processes: list[psutil.Process]) -> bool:
    return not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


# ---------------------------------------------------------------------- a life


def test_a_mesh_is_ready_serves_and_drains_on_ctrl_c(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "2", "--name", "here", cwd=work_dir) as up:
        assert up.out.wait_for("ready ") == f"ready ipc://{home}/broker.sock"
        found = status(home)
        assert [node["name"] for node in found["nodes"]] == ["here"]
        task = submit_waiting(home, work_dir)
        waiting = omnibus(home, "submit", "--detach", "helpers:whoami")
        children = family(up)
        up.signal(signal.SIGINT)
        assert "Ctrl-C again stops at once" in up.err.wait_for("omnibus up: draining, ")
        assert omnibus(home, "status").returncode == 3, "nobody new finds a mesh that drains"
        assert task and waiting.returncode == 0
        (work_dir / "fifo").write_text("go")
        assert up.wait() == 0
        assert up.err.text.splitlines()[-1] == "omnibus up: stopped; nothing was lost"
        assert "\x1b" not in up.out.text + up.err.text
        assert all_gone(children)
    assert not list(home.iterdir())


def test_an_idle_mesh_stops_on_term(home: Path) -> None:
    with mesh(home, "--workers", "1") as up:
        children = family(up)
        up.signal(signal.SIGTERM)
        assert up.wait() == 0
        assert list(up.err) == ["omnibus up: stopped; nothing was lost"]
        assert all_gone(children)


def test_a_second_ctrl_c_stops_at_once_and_says_what_was_lost(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "1", "--drain", "600", cwd=work_dir) as up:
        submit_waiting(home, work_dir)
        omnibus(home, "submit", "--detach", "helpers:whoami")
        children = family(up)
        up.signal(signal.SIGINT)
        up.err.wait_for("omnibus up: draining, 2 tasks left")
        up.signal(signal.SIGINT)
        assert up.wait(10) == 1
        assert up.err.text.splitlines()[-1] == "omnibus up: stopped with 2 tasks unfinished: they are lost"
        assert all_gone(children)


def test_draining_has_a_bound(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "1", "--drain", "0.2", cwd=work_dir) as up:
        submit_waiting(home, work_dir)
        up.signal(signal.SIGTERM)
        up.err.wait_for("omnibus up: drained for 0.2 s and no longer, with 1 task left")
        up.signal(signal.SIGTERM)
        assert up.wait() == 1
        assert up.err.text.splitlines()[-1] == "omnibus up: stopped with 1 task unfinished: they are lost"


def test_a_second_mesh_beside_a_live_one_is_refused(home: Path) -> None:
    with mesh(home, "--workers", "0"):
        ran = omnibus(home, "up")
        assert ran.returncode == 1
        (line,) = ran.stderr.splitlines()
        assert line.startswith(f"omnibus up: a mesh is up here already, at ipc://{home}/broker.sock (process ")
        assert "OMNIBUS_RUN_DIR=" in line


def test_what_workers_print_is_shown_with_its_source(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "1", cwd=work_dir) as up:
        assert omnibus(home, "submit", "helpers:say", '"to out"', '"to err"').returncode == 0
        pid = status(home)["workers"][0]["pid"]
        assert up.out.wait_for("(worker-0 ") == f"(worker-0 pid={pid}) to out"
        assert up.err.wait_for("(worker-0 ") == f"(worker-0 pid={pid}) to err"


def test_a_quiet_mesh_shows_nothing_but_that_it_is_ready(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "1", "--quiet", cwd=work_dir) as up:
        assert omnibus(home, "submit", "helpers:say", '"to out"', '"to err"').returncode == 0
        assert omnibus(home, "logs").stdout.endswith(" to out\n")
        up.signal(signal.SIGTERM)
        assert up.wait() == 0
        assert len(list(up.out)) == 1


# ---------------------------------------------------------------------- deaths


def test_a_node_that_dies_is_started_again_and_its_work_done(home: Path, work_dir: Path) -> None:
    with mesh(home, "--workers", "1", cwd=work_dir) as up:
        task = submit_waiting(home, work_dir)
        os.kill(status(home)["nodes"][0]["pid"], signal.SIGKILL)
        assert "was killed by SIGKILL; it is started again" in up.err.wait_for("omnibus up: node (process ")
        (work_dir / "fifo").write_text("at last")  # returns once the task runs anew and reads it
        fetched = omnibus(home, "fetch", "--wait", task)
        assert fetched.stdout == "at last\n", fetched.stderr
        audit = omnibus(home, "audit", "--json")
        assert audit.returncode == 0, audit.stdout
        assert json.loads(audit.stdout)["tasks"]["redelivered"] == 1


def test_a_broker_that_dies_ends_the_mesh(home: Path) -> None:
    with mesh(home, "--workers", "1") as up:
        children = family(up)
        os.kill(status(home)["broker"]["pid"], signal.SIGKILL)
        assert up.wait() == 1
        assert "was killed by SIGKILL: what it held is lost" in up.err.text
        eventually(lambda: all_gone(children), 5, "its children are gone")
    with mesh(home, "--workers", "0") as again:  # what the dead one left is no hindrance
        assert again.out.wait_for("ready ")


def test_nothing_outlives_a_mesh_that_is_killed(home: Path) -> None:
    with mesh(home, "--workers", "2") as up:
        eventually(lambda: len(family(up)) == 5, 20, "broker, node, zygote and two workers run")
        children = family(up)
        up.signal(signal.SIGKILL)
        assert up.process.wait(10) == -signal.SIGKILL
        eventually(lambda: all_gone(children), 5, "its children are gone")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bind", "tcp://192.0.2.1:9999"], "192.0.2.1"),
        (["--gpus", "77"], "--gpus 77"),
        (["--label", "fast"], "--label"),
    ],
)
def test_a_mesh_that_cannot_start_says_why_and_is_gone(home: Path, options: list[str], said: str) -> None:
    with start(home, "up", "--workers", "1", *options) as up:
        assert up.wait() == 1
        assert said in up.err.text
        assert up.err.text.splitlines()[-1].startswith("omnibus up: ")
        assert "Traceback" not in up.err.text
        assert not up.out.text
    assert not list(home.iterdir())


# ---------------------------------------------------------------------- tcp


def test_a_tcp_address_needs_the_key_of_the_run_file(home: Path, tmp_path: Path) -> None:
    with mesh(home, "--workers", "1", "--bind", "tcp://127.0.0.1:*") as up:
        address = up.out.wait_for("also tcp://").split()[1]
        found = omnibus(home, "submit", "builtins:pow", "2", "5", "--address", address)
        assert found.stdout == "32\n", found.stderr
        refused = omnibus(tmp_path, "status", "--address", address)
        assert refused.returncode == 3
        assert "needs the mesh's key" in refused.stderr
        bare = omnibus(tmp_path, "status", "--address", address, "--insecure", "--within", "1")
        assert bare.returncode == 3
        assert address in bare.stderr
        carried = tmp_path / "key"
        carried.write_bytes((home / "mesh.json").read_bytes())
        carried.chmod(0o600)
        allowed = omnibus(tmp_path, "status", "--address", address, OMNIBUS_KEY_FILE=str(carried))
        assert allowed.returncode == 0, allowed.stderr
        doctor = omnibus(home, "doctor", "--address", address)
        assert "sealed with the mesh's key" in doctor.stdout


def test_an_insecure_tcp_address_needs_none(home: Path, tmp_path: Path) -> None:
    with mesh(home, "--workers", "1", "--bind", "tcp://127.0.0.1:*", "--insecure") as up:
        address = up.out.wait_for("also tcp://").split()[1]
        assert omnibus(tmp_path, "status", "--address", address, "--insecure").returncode == 0


def test_functions_may_be_bounded_to_packages(home: Path) -> None:
    with mesh(home, "--workers", "1", "--bind", "tcp://127.0.0.1:*", "--insecure", "--allow", "math") as up:
        address = up.out.wait_for("also tcp://").split()[1]
        assert omnibus(home, "submit", "math:factorial", "5", "--address", address, "--insecure").stdout == "120\n"
        refused = omnibus(home, "submit", "builtins:eval", '"1"', "--address", address, "--insecure")
        assert refused.returncode == 1
        assert "Unauthorized" in refused.stderr


def test_the_mesh_logs_as_json_where_asked_to(home: Path) -> None:
    with mesh(home, "--workers", "1", "--log-level", "info", "--log-json") as up:
        line = json.loads(up.err.wait_for('{"time": '))
        assert {"time", "level", "logger", "message"} <= set(line)
        assert line["logger"].startswith("omnibus.")


def test_another_mesh_in_the_environment_is_pointed_out(home: Path) -> None:
    with mesh(home, "--workers", "0", OMNIBUS_ADDRESS="ipc:///tmp/elsewhere") as up:
        assert "ipc:///tmp/elsewhere" in up.err.wait_for("omnibus up: note: $OMNIBUS_ADDRESS")


# ---------------------------------------------------------------------- broker and node alone


def test_a_broker_and_a_node_each_alone_make_a_mesh(home: Path, work_dir: Path) -> None:
    with start(home, "broker", "--bind", "tcp://127.0.0.1:*") as broker:
        assert broker.out.wait_for("ready ") == f"ready ipc://{home}/broker.sock"
        secret = json.loads((home / "mesh.json").read_text())["secret_key"]
        (tcp,) = json.loads((home / "mesh.json").read_text())["addresses"][1:]
        with start(home, "node", "--workers", "1", "--address", tcp, "--name", "far", cwd=work_dir) as node:
            assert node.out.wait_for("ready ") == f"ready {tcp}"
            ran = omnibus(home, "submit", "helpers:whoami")
            assert int(ran.stdout) in [child.pid for child in psutil.Process(node.process.pid).children(recursive=True)]
            for process in (broker, node):
                shown = " ".join(psutil.Process(process.process.pid).cmdline())
                assert "typer" not in shown and secret not in shown
                assert "-P -m omnibus." in shown
            node.signal(signal.SIGTERM)
            assert node.wait() == 0
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert not list(home.iterdir())


def test_a_broker_can_keep_out_of_the_run_file(home: Path) -> None:
    with start(home, "broker", "--no-run-file") as broker:
        address = broker.out.wait_for("ready ").split()[1]
        assert not (home / "mesh.json").exists()
        assert omnibus(home, "status", "--address", address).returncode == 0
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0

