"""Real processes: started, heard, waited for and ended with all that belongs to them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.errors import ConnectTimeout, ForkedError, NotFound, SetupFailed, UsageError
from omnibus.launch.base import Handle, Launcher, State, Status
from omnibus.launch.local import LocalLauncher
from tests.support.events import eventually

PYTHON = [sys.executable, "-c"]
READY = "import os, sys; from omnibus.rundir import announce_ready; announce_ready('ipc:///run/a.sock'); "
# Ends at once, and leaves a process in a session of its own that holds all its pipes.
ORPHAN = """
import os, signal
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
"""
LINGER = "import sys; sys.stdin.read(); import signal; signal.pause()"


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(echo=None) as launcher:
        yield launcher


def start(
    launcher: LocalLauncher,
    code: str,
    *,
    name: str = "child",
    stdin: bytes | None = None,
    ready: bool = False,
) -> Handle:
    return launcher.submit([*PYTHON, code], name=name, stdin=stdin, ready=ready)


def ends(launcher: LocalLauncher, handle: Handle) -> Status:
    status = launcher.wait(handle, 10)
    assert status.state is State.ENDED
    return status


def gone(pid: int) -> bool:
    """Tell whether a process, which need not be ours, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_is_a_launcher() -> None:
    launcher: Launcher = LocalLauncher()
    launcher.close(0.0)


# -- a process and its end


def test_an_exit_code_and_a_signal_are_told_apart(launcher: LocalLauncher) -> None:
    fine = start(launcher, "pass", name="fine")
    bad = start(launcher, "raise SystemExit(3)", name="bad")
    killed = start(launcher, "import os; os.kill(os.getpid(), 9)", name="killed")
    stranger = Handle("slurm", "stranger", "7")
    for handle in (fine, bad, killed):
        ends(launcher, handle)
    found = launcher.status([fine, bad, killed, stranger])
    assert [found[handle].code for handle in (fine, bad, killed)] == [0, 3, -9]
    assert found[bad].why == f"bad (process {bad.id.partition('.')[0]}) ended with exit code 3"
    assert found[killed].why.endswith("was killed by SIGKILL")
    assert found[stranger].state is State.UNKNOWN
    assert len({fine.id, bad.id, killed.id}) == 3


def test_a_running_process_is_running(launcher: LocalLauncher) -> None:
    handle = start(launcher, LINGER)
    assert launcher.status([handle]) == {handle: Status(State.RUNNING)}
    assert launcher.wait(handle, 0) == Status(State.RUNNING)
    os.kill(launcher.pid(handle), signal.SIGKILL)
    assert ends(launcher, handle).code == -9


def test_environment_and_input_are_handed_over(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("OMNIBUS_READY_FD", "77")  # a request that somebody made to this process
    secret = os.urandom(300_000)  # more than a pipe takes at once
    code = (
        "import json, os, sys; content = sys.stdin.buffer.read().hex(); "
        "json.dump([dict(os.environ), content, os.getcwd()], open('out', 'w'))"
    )
    handle = launcher.submit([*PYTHON, code], name="child", env={"CHANGED": "after"}, stdin=secret, cwd=tmp_path)
    assert ends(launcher, handle).code == 0
    environment, read, folder = json.loads((tmp_path / "out").read_text())
    assert (environment["INHERITED"], environment["CHANGED"]) == ("yes", "after")
    assert bytes.fromhex(read) == secret
    assert folder == str(tmp_path)
    assert "OMNIBUS_READY_FD" not in environment


def test_without_input_there_is_none(launcher: LocalLauncher) -> None:
    assert ends(launcher, start(launcher, "import sys; sys.exit(len(sys.stdin.read()))")).code == 0


def test_standard_output_goes_where_it_is_sent(launcher: LocalLauncher) -> None:
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        handle = launcher.submit([*PYTHON, "print('hello')"], name="child", stdout=write)
        os.close(write)
        assert pipe.read() == b"hello\n"
    ends(launcher, handle)


def test_standard_error_is_written_on(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalLauncher() as launcher:
        ends(launcher, start(launcher, "import sys; print('careful', file=sys.stderr)"))
    assert capfd.readouterr().err == "careful\n"


def test_a_closed_standard_error_of_ours_does_no_harm() -> None:
    read, write = os.pipe()
    os.close(write)
    with LocalLauncher(echo=read) as launcher:  # not to be written to
        assert ends(launcher, start(launcher, "import sys; print('careful', file=sys.stderr)")).code == 0
    os.close(read)


def test_a_flood_on_standard_error_blocks_nobody(launcher: LocalLauncher) -> None:
    flood = start(launcher, "import sys; sys.stderr.write('x' * 5_000_000); sys.exit(4)", ready=True)
    assert ends(launcher, flood).code == 4
    with pytest.raises(SetupFailed) as caught:
        launcher.wait_ready(flood, 5)
    assert len(str(caught.value)) < 20_000, "only the tail is kept"


def test_each_leads_a_session_of_its_own(launcher: LocalLauncher) -> None:
    handle = start(launcher, LINGER)
    assert os.getsid(launcher.pid(handle)) == launcher.pid(handle) != os.getsid(0)


def test_what_cannot_be_started_says_why_and_leaves_nothing_open(launcher: LocalLauncher) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SetupFailed, match=r"worker cannot be started: '/none/program': .*No such file"):
        launcher.submit(["/none/program"], name="worker", stdin=b"x", ready=True)
    with pytest.raises(SetupFailed, match="null byte"):
        launcher.submit(["true", "a\0b"], name="worker")
    with pytest.raises(UsageError, match="command of 'worker' is empty"):
        launcher.submit([], name="worker")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_secret_on_the_command_line_is_refused(launcher: LocalLauncher) -> None:
    text = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID" + "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
    with pytest.raises(UsageError, match="secret among its arguments"):
        launcher.submit(["echo", text], name="worker", env={"OMNIBUS_KEY": text})


# -- readiness


def test_an_address_is_waited_for(launcher: LocalLauncher) -> None:
    handle = start(launcher, READY + LINGER, ready=True)
    assert launcher.wait_ready(handle, 10) == "ipc:///run/a.sock"
    with pytest.raises(UsageError, match="was waited for before"):
        launcher.wait_ready(handle, 10)


def test_readiness_that_was_not_asked_for_is_not_waited_for(launcher: LocalLauncher) -> None:
    with pytest.raises(UsageError, match="was not started with ready=True"):
        launcher.wait_ready(start(launcher, "pass"), 10)


def test_a_death_before_readiness_is_told_with_the_last_words(launcher: LocalLauncher) -> None:
    handle = start(
        launcher,
        "import sys; print('no GPU here', file=sys.stderr); sys.exit(3)",
        name="node",
        ready=True,
    )
    with pytest.raises(SetupFailed) as caught:
        launcher.wait_ready(handle, 10)
    pid = launcher.pid(handle)
    assert (
        str(caught.value)
        == f"node (process {pid}) ended with exit code 3 before it was ready; its last words:\n  no GPU here"
    )


def test_a_silent_death_is_told_as_such(launcher: LocalLauncher) -> None:
    handle = start(launcher, "import os; os.kill(os.getpid(), 15)", name="node", ready=True)
    with pytest.raises(
        SetupFailed,
        match="was killed by SIGTERM before it was ready; it said nothing on standard error",
    ):
        launcher.wait_ready(handle, 10)


def test_a_death_is_seen_though_a_grandchild_holds_the_pipe(launcher: LocalLauncher) -> None:
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        handle = launcher.submit([*PYTHON, ORPHAN], name="node", ready=True, stdout=write)
        os.close(write)
        orphan = int(pipe.readline())
        try:
            with pytest.raises(SetupFailed, match="ended with exit code 0 before it was ready"):
                launcher.wait_ready(handle, 10)
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_closed_pipe_without_a_word_is_no_readiness(launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnibus.launch.local._KILL_WAIT", 0.01)
    handle = start(launcher, "import os; os.close(int(os.environ['OMNIBUS_READY_FD'])); " + LINGER, ready=True)
    with pytest.raises(SetupFailed, match="child said b'' where 'ready ADDRESS' was expected"):
        launcher.wait_ready(handle, 10)


@pytest.mark.parametrize("line", ["hello\\n", "ready \\n", "ready\\n", "\\n", "x" * 5000])
def test_another_word_is_no_readiness(launcher: LocalLauncher, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnibus.launch.local._KILL_WAIT", 0.01)
    code = f"import os; os.write(int(os.environ['OMNIBUS_READY_FD']), b'{line}'); {LINGER}"
    with pytest.raises(SetupFailed, match="where 'ready ADDRESS' was expected"):
        launcher.wait_ready(start(launcher, code, ready=True), 10)


def test_an_address_may_come_in_pieces(launcher: LocalLauncher) -> None:
    code = (
        "import os; fd = int(os.environ['OMNIBUS_READY_FD']); "
        "[os.write(fd, bytes([c])) for c in b'ready tcp://a:1\\n']; " + LINGER
    )
    assert launcher.wait_ready(start(launcher, code, ready=True), 10) == "tcp://a:1"


def test_a_deadline_leaves_the_process_running(launcher: LocalLauncher) -> None:
    handle = start(launcher, LINGER, name="node", ready=True)
    with pytest.raises(ConnectTimeout, match=r"node \(process \d+\) runs, but was not ready within 0.05 s"):
        launcher.wait_ready(handle, 0.05)
    assert launcher.status([handle])[handle].state is State.RUNNING


# -- the end of a process and of its group


def test_a_process_that_listens_ends_with_grace(launcher: LocalLauncher) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); " + READY + "signal.pause()"
    handle = start(launcher, code, ready=True)
    launcher.wait_ready(handle, 10)
    assert launcher.cancel(handle, 10).code == 7
    assert launcher.cancel(handle, 10).code == 7, "a second time is no error"


def test_one_that_does_not_is_killed_after_the_grace(launcher: LocalLauncher) -> None:
    handle = start(
        launcher,
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + LINGER,
        ready=True,
    )
    launcher.wait_ready(handle, 10)
    begun = time.monotonic()
    assert launcher.cancel(handle, 0.1).code == -9
    assert 0.1 <= time.monotonic() - begun < 5


def test_a_stopped_process_is_killed_too(launcher: LocalLauncher) -> None:
    handle = start(launcher, READY + LINGER, ready=True)
    launcher.wait_ready(handle, 10)
    os.kill(launcher.pid(handle), signal.SIGSTOP)
    os.waitid(os.P_PID, launcher.pid(handle), os.WSTOPPED | os.WNOWAIT)
    assert launcher.cancel(handle, 0.05).code == -9


FAMILY = """
import os, signal, sys
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    signal.pause()
{then}
"""


@contextlib.contextmanager
def family(launcher: LocalLauncher, then: str) -> Iterator[tuple[Handle, int]]:
    """Give a process with a child in its group that ignores TERM, and that child's id."""
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        handle = launcher.submit([*PYTHON, FAMILY.format(then=then)], name="family", stdout=write)
        os.close(write)
        child = int(pipe.readline())
        try:
            yield handle, child
        finally:
            if not gone(child):
                os.kill(child, signal.SIGKILL)


def test_a_cancelled_process_takes_its_children_along(launcher: LocalLauncher) -> None:
    with family(launcher, "signal.pause()") as (handle, child):
        assert launcher.cancel(handle, 10).code == -15
        eventually(lambda: gone(child))


def test_a_process_that_ends_by_itself_leaves_no_children(launcher: LocalLauncher) -> None:
    with family(launcher, "sys.exit(5)") as (handle, child):
        assert ends(launcher, handle).code == 5
        eventually(lambda: gone(child))


def test_closing_ends_all_at_the_same_time() -> None:
    launcher = LocalLauncher(echo=None)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + LINGER
    handles = [start(launcher, code, ready=True) for _ in range(3)]
    for handle in handles:
        launcher.wait_ready(handle, 10)
    begun = time.monotonic()
    launcher.close(0.4)
    assert time.monotonic() - begun < 1.2, "one grace, not three"
    assert [status.code for status in launcher.status(handles).values()] == [-9, -9, -9]
    launcher.close()
    with pytest.raises(UsageError, match="is closed"):
        launcher.submit(["true"], name="late")
    launcher.forget(handles[0])


def test_closing_gives_every_descriptor_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with LocalLauncher(echo=None) as launcher:
        start(launcher, LINGER, ready=True)
        ends(launcher, start(launcher, "pass"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "omnibus-launch"]


def test_one_that_has_ended_may_be_forgotten(launcher: LocalLauncher) -> None:
    handle = start(launcher, LINGER)
    with pytest.raises(UsageError, match="still runs: cancel it first"):
        launcher.forget(handle)
    before = len(os.listdir("/proc/self/fd"))
    launcher.cancel(handle, 10)
    launcher.forget(handle)
    assert len(os.listdir("/proc/self/fd")) < before
    assert launcher.status([handle])[handle].state is State.UNKNOWN
    for use in (launcher.pid, launcher.wait, launcher.forget, lambda one: launcher.cancel(one, 1)):
        with pytest.raises(NotFound, match="has forgotten it"):
            use(handle)


def test_one_whose_pipe_an_orphan_holds_may_be_forgotten(launcher: LocalLauncher) -> None:
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        handle = launcher.submit([*PYTHON, ORPHAN], name="node", stdout=write)
        os.close(write)
        orphan = int(pipe.readline())
        try:
            ends(launcher, handle)
            launcher.forget(handle)
        finally:
            os.kill(orphan, signal.SIGKILL)
    assert ends(launcher, start(launcher, "pass")).code == 0, "the thread still watches"


def test_many_come_and_go(launcher: LocalLauncher) -> None:
    handles = [launcher.submit(["true"], name=f"child-{number}") for number in range(30)]
    assert [ends(launcher, handle).code for handle in handles] == [0] * 30


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_copy_leaves_the_processes_alone(launcher: LocalLauncher) -> None:
    handle = start(launcher, LINGER)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            launcher.close()
            try:
                launcher.submit(["true"], name="late")
            except ForkedError:
                code = 0
        os._exit(code)
    pidfd = os.pidfd_open(pid)
    assert select.select([pidfd], [], [], 10)[0]
    os.close(pidfd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert launcher.status([handle])[handle].state is State.RUNNING
