"""The zygote and its children: how they are born, what they inherit, and that none outlives the one above it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnibus.actors.config import ChildConfig
from omnibus.actors.nursery import Exited, Nursery, Preloaded, Report, Started
from omnibus.address import MeshKey, Target
from omnibus.sharedmem import StatusPage

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 10.0


class Kid(NamedTuple):
    session: bytes
    pid: int
    pidfd: int
    out: int
    err: int
    page: StatusPage


class House:
    """A nursery, and a test's way to wait for what it reports."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.reports: list[Report] = []
        self.kids: list[Kid] = []

    def wait_for(self, kind: type[Any], session: bytes | None = None) -> Any:
        deadline = time.monotonic() + DEADLINE
        while True:
            for report in self.reports:
                if isinstance(report, kind) and (session is None or getattr(report, "session", None) == session):
                    self.reports.remove(report)
                    return report
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.__name__} came; there are {self.reports}"
            if select.select([self.nursery], [], [], left)[0]:
                got = self.nursery.receive()
                assert got is not None, "the zygote is gone"
                self.reports += got

    def start(self, entry: str, **more: Any) -> Kid:
        session = os.urandom(16)
        page = StatusPage.create()
        (out, out_w), (err, err_w) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        entry = entry if ":" in entry else f"tests.actors.standins:{entry}"
        config = ChildConfig(
            name=more.pop("name", "kid"), role="worker", session=session, node=b"n" * 16,
            target=more.pop("target", Target("ipc:///nowhere")), entry=entry, **more,
        )
        self.nursery.start(config, page.fd, out_w, err_w)
        for fd in (out_w, err_w):
            os.close(fd)
        started = self.wait_for(Started, session)
        kid = Kid(session, started.pid, started.pidfd, out, err, page)
        self.kids.append(kid)
        return kid

    def exited(self, kid: Kid) -> Exited:
        report: Exited = self.wait_for(Exited, kid.session)
        return report

    def close(self) -> None:
        self.nursery.close()
        for kid in self.kids:
            kid.page.close()
            for fd in (kid.pidfd, kid.out, kid.err):
                os.close(fd)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., House]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    houses: list[House] = []

    def make(*preload: str) -> House:
        houses.append(House(Nursery.spawn(preload)))
        return houses[-1]

    yield make
    for house in houses:
        house.close()


@pytest.fixture
def house(build: Callable[..., House]) -> House:
    return build()


def read_line(fd: int) -> str:
    """Return the next line of a pipe, byte by byte so that nothing after it is taken."""
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([fd], [], [], DEADLINE)[0], f"no line came, only {line!r}"
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line.decode().rstrip("\n")


def read_all(fd: int) -> str:
    text = b""
    while chunk := os.read(fd, 65536):
        text += chunk
    return text.decode()


def gone(pidfd: int, timeout: float = DEADLINE) -> bool:
    return bool(select.select([pidfd], [], [], timeout)[0])


def test_a_child_is_a_process_of_its_own(house: House) -> None:
    config: dict[str, Any] = {
        "env": {"MINE": "yes"}, "cpus": 2, "devices": ("3", "GPU-4"), "target": Target("ipc:///run/x"),
    }
    told = [json.loads(read_line(house.start("describe", name="a-name-of-its-own", **config).out)) for _ in range(2)]
    first, second = told
    assert first["name"] == "a-name-of-its-own"
    assert first["argv"] == ["omnibus-worker", "a-name-of-its-own"]
    assert first["comm"] == "a-name-of-its-o"
    assert first["pid"] != second["pid"]
    assert first["ppid"] == house.nursery.pid
    assert first["group"] == first["pid"], "it leads a process group"
    assert first["sid"] not in (os.getsid(0), first["pid"]), "away from the terminal's session"
    assert first["stdin"] == os.devnull
    assert first["sigint"]
    assert first["sigchld"]
    assert first["threads"] == 1
    assert first["oom"] > int(Path("/proc/self/oom_score_adj").read_text())
    assert len(first["fds"]) <= 5, f"three streams, the page and the death pipe, not {first['fds']}"
    assert first["random"] != second["random"]
    env = first["env"]
    assert (env["MINE"], env["CUDA_VISIBLE_DEVICES"], env["OMNIBUS_ADDRESS"]) == ("yes", "3,GPU-4", "ipc:///run/x")
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    assert [env[name] for name in names] == ["2"] * 4


def test_a_child_without_devices_sees_no_gpu(house: House) -> None:
    told = json.loads(read_line(house.start("describe", cpus=0.5).out))
    assert told["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert told["env"]["OMP_NUM_THREADS"] == "1"


def test_its_end_is_reported_with_its_status(house: House) -> None:
    kid = house.start("describe")
    report = house.exited(kid)
    assert os.waitstatus_to_exitcode(report.status) == 7
    assert report.resident > 1000, "KiB that it had resident"
    assert kid.page.step == 41, "it had the status page"
    assert read_all(kid.err) == "to the error output\n"
    assert gone(kid.pidfd)


def test_a_fresh_interpreter_is_the_same_to_its_supervisor(house: House) -> None:
    key = MeshKey("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
    kid = house.start("describe", fresh=True, env={"MINE": "yes"}, target=Target("tcp://127.0.0.1:1", key))
    told = json.loads(read_line(kid.out))
    assert told["ppid"] == house.nursery.pid
    assert told["group"] == told["pid"] == kid.pid
    assert told["secret"] == key.secret
    assert not any(key.secret in word for word in told["cmdline"]), "no secret where ps shows it"
    assert "-m omnibus.actors child" in " ".join(told["cmdline"])
    assert told["env"]["MINE"] == "yes"
    assert told["sigint"]
    assert told["argv"] == ["omnibus-worker", "kid"]
    assert os.waitstatus_to_exitcode(house.exited(kid).status) == 7
    assert kid.page.step == 41


@pytest.mark.parametrize(
    ("entry", "status", "error"),
    [
        ("raise_error", 1, "ValueError: it went wrong"),
        ("exit_with_text", 1, "no data directory"),
        ("run_out_of_memory", 1, "MemoryError"),
        ("crash", -signal.SIGSEGV, "Segmentation fault"),
        ("not_there", 1, "AttributeError"),
    ],
)
def test_how_it_fails_is_its_status_and_its_last_words(house: House, entry: str, status: int, error: str) -> None:
    kid = house.start(entry)
    assert os.waitstatus_to_exitcode(house.exited(kid).status) == status
    assert error in read_all(kid.err)


def test_exit_handlers_run_and_unfinished_lines_are_flushed(house: House) -> None:
    kid = house.start("unflushed")
    assert os.waitstatus_to_exitcode(house.exited(kid).status) == 0
    assert read_all(kid.out) == "no newline and the exit handler ran"


@pytest.mark.parametrize("entry", ["leave_grandchild", "leave_grandchild_and_exit"])
def test_what_a_dead_child_leaves_behind_is_ended(house: House, entry: str) -> None:
    kid = house.start(entry)
    grandchild = os.pidfd_open(int(read_line(kid.out)))
    try:
        if entry == "leave_grandchild":
            signal.pidfd_send_signal(kid.pidfd, signal.SIGKILL)
        house.exited(kid)
        assert gone(grandchild)
    finally:
        os.close(grandchild)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("entry", ["wait", "hold_gil", "stubborn"])
def test_children_die_with_the_zygote(house: House, entry: str, fresh: bool) -> None:
    kid = house.start(entry, fresh=fresh)
    assert read_line(kid.out) == "up"
    os.kill(house.nursery.pid, signal.SIGKILL)
    assert gone(kid.pidfd, 2)


def test_closing_ends_the_zygote_and_all_children(house: House) -> None:
    kids = [house.start(entry) for entry in ("wait", "stubborn", "hold_gil")]
    assert [read_line(kid.out) for kid in kids] == ["up"] * 3
    began = time.monotonic()
    house.nursery.close()
    assert time.monotonic() - began < 2
    assert all(gone(kid.pidfd, 0) for kid in kids)
    house.nursery = Nursery.spawn()  # for the fixture to close


SUPERVISOR = textwrap.dedent("""
    import os, signal, sys, time
    from omnibus.actors.nursery import Nursery
    from tests.actors.test_zygote import House, read_line
    nursery = getattr(Nursery, sys.argv[1])()
    house = House(nursery)
    entries = ("wait", "hold_gil", "leave_grandchild")
    kids = [house.start(entry, fresh=fresh) for entry in entries for fresh in (False, True)]
    lines = [read_line(kid.out) for kid in kids]
    print(nursery.pid, *(kid.pid for kid in kids), *lines[-2:], flush=True)
    signal.pause()
""")


@pytest.mark.parametrize("made", ["fork", "spawn"])
def test_a_killed_supervisor_takes_all_below_it_along(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-c", SUPERVISOR, made]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 9
        pidfds = [os.pidfd_open(pid) for pid in pids]
        try:
            began = time.monotonic()
            supervisor.kill()
            assert all(gone(pidfd, 2) for pidfd in pidfds)
            assert time.monotonic() - began < 1
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def test_a_killed_supervisor_takes_children_along_even_when_the_zygote_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The death pipe reaches over the parent."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, "spawn"], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        zygote, *children = [int(word) for word in supervisor.stdout.readline().split()][:7]
        pidfds = [os.pidfd_open(pid) for pid in children]
        zygote_fd = os.pidfd_open(zygote)
        try:
            os.kill(zygote, signal.SIGSTOP)
            supervisor.kill()
            assert all(gone(pidfd, 2) for pidfd in pidfds)
            os.kill(zygote, signal.SIGCONT)
            assert gone(zygote_fd, 2)
        finally:
            for pidfd in (*pidfds, zygote_fd):
                os.close(pidfd)


def test_preloaded_modules_are_there_without_an_import(build: Callable[..., House]) -> None:
    house = build("colorsys", "no_such_module")
    done = [house.wait_for(Preloaded) for _ in range(3)]
    assert [report.module for report in done] == ["omnibus.actors.process", "colorsys", "no_such_module"]
    assert done[1].error == ""
    assert "ModuleNotFoundError" in done[2].error
    house.nursery.preload(["this"])
    assert house.wait_for(Preloaded).module == "this"


def test_a_preload_that_makes_forking_unsafe_turns_it_off(build: Callable[..., House], tmp_path: Path) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    os.environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    house = build("starts_a_thread")
    reports = [house.wait_for(Preloaded) for _ in range(2)]
    assert "started 1 threads" in reports[1].error
    told = json.loads(read_line(house.start("describe").out))
    assert "-m omnibus.actors child" in " ".join(told["cmdline"])


def test_children_import_from_where_the_owner_does(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [str(tmp_path), *sys.path, str(ROOT)]
    monkeypatch.setenv("OMNIBUS_SYS_PATH", json.dumps(paths))
    house = build()
    for fresh in (False, True):
        assert json.loads(read_line(house.start("describe", fresh=fresh).out))["path"] == paths


def test_blas_of_a_preloaded_numpy_follows_cpus(build: Callable[..., House], tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(textwrap.dedent("""
        import ctypes
        def main(config):
            with open("/proc/self/maps") as maps:
                path = next(line.split()[-1] for line in maps if "openblas" in line)
            print(ctypes.CDLL(path).scipy_openblas_get_num_threads64_())
            return 0
    """))
    os.environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    house = build("numpy")
    assert [read_line(house.start("counts:main", cpus=cpus).out) for cpus in (1, 2)] == ["1", "2"]


def test_numpy_is_seeded_anew_in_each_child(build: Callable[..., House], tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(
        "import numpy\ndef main(config):\n    print(numpy.random.random())\n    return 0\n"
    )
    os.environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    house = build("numpy.random")
    assert len({read_line(house.start("draws:main").out) for _ in range(3)}) == 3


def test_many_children_at_once(house: House) -> None:
    """More requests than the socket holds wait their turn."""
    sessions = []
    null = os.open(os.devnull, os.O_WRONLY)
    page = StatusPage.create()
    for _ in range(300):
        sessions.append(os.urandom(16))
        config = ChildConfig(
            "kid", "worker", sessions[-1], b"n" * 16, Target("ipc:///x"),
            entry="tests.actors.standins:exit_with_text", env={"FILL": "x" * 4000},
        )
        house.nursery.start(config, page.fd, null, null)
    os.close(null)
    page.close()
    while house.nursery.unsent:
        select.select([], [house.nursery], [], DEADLINE)
        house.nursery.flush()
        house.reports += house.nursery.receive() or []
    for session in sessions:
        os.close(house.wait_for(Started, session).pidfd)
        house.wait_for(Exited, session)
