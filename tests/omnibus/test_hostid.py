"""Host and process identities."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omnibus.errors import OmnibusError
from omnibus.hostid import ProcessMark, boot_id, host_key, host_name, pid_space, same_host


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that lives until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.communicate()


def test_this_host_is_itself_and_no_other() -> None:
    assert same_host(boot_id())
    assert not same_host("0" * 36)
    assert host_key() == f"{boot_id()}/{pid_space()}"
    assert host_name() == os.uname().nodename


def test_a_live_process_is_alive_and_a_zombie_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    mark = ProcessMark.of(sleeper.pid)
    assert mark.alive() is True
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert mark.alive() is False, "a zombie runs no more"
    sleeper.wait()
    assert mark.alive() is False
    assert mark.why_gone() == f"its process {sleeper.pid} has ended"


def test_a_process_that_has_the_same_id_later_is_another() -> None:
    mark = ProcessMark.of(os.getpid())
    assert mark.alive() is True
    assert replace(mark, started=mark.started - 1).alive() is False


def test_the_process_of_a_boot_before_is_gone() -> None:
    mark = replace(ProcessMark.of(os.getpid()), boot="before")
    assert mark.alive() is False
    assert "has booted since" in mark.why_gone()


def test_another_hosts_process_and_another_containers_are_unknown() -> None:
    mark = ProcessMark.of(os.getpid())
    assert replace(mark, boot="other", host="elsewhere").alive() is None
    assert replace(mark, space="pid:[1]").alive() is None


def test_only_a_live_process_can_be_marked(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(OmnibusError, match=f"process {sleeper.pid} cannot be marked"):
        ProcessMark.of(sleeper.pid)


def test_a_command_name_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = b"7 (a) S (b)) R " + b" ".join(str(number).encode() for number in range(4, 53))
    monkeypatch.setattr(Path, "read_bytes", lambda _: stat)
    assert ProcessMark.of(7).started == 22
