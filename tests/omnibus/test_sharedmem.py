"""Status pages: what one side writes the other reads, and a revoked attempt never begins."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import UsageError
from omnibus.sharedmem import PAGE_SIZE, Reason, StatusPage
from tests.support.events import eventually

RING = PAGE_SIZE // 8 - 32


@pytest.fixture
def mine() -> Iterator[StatusPage]:
    """Return the supervisor's view of a page."""
    page = StatusPage.create("test")
    yield page
    page.close()


@pytest.fixture
def child(mine: StatusPage) -> Iterator[StatusPage]:
    """Return the child's view of the same page."""
    page = StatusPage.attach(os.dup(mine.fd))
    yield page
    page.close()


def test_a_page_tells_what_runs_and_since_when(mine: StatusPage, child: StatusPage) -> None:
    assert mine.running() is None
    assert mine.last == 0
    before = time.monotonic_ns()
    assert child.begin(7)
    running = mine.running()
    assert running is not None
    assert running[0] == 7
    assert before <= running[1] <= time.monotonic_ns()
    assert not mine.over(7)
    child.end()
    assert mine.running() is None
    assert mine.last == 7
    assert mine.over(7)
    assert mine.over(6)
    assert not mine.over(8)


def test_a_cancel_names_one_attempt_and_why(mine: StatusPage, child: StatusPage) -> None:
    child.begin(3)
    assert not child.cancelled(3)
    assert child.reason == ""
    mine.cancel(3, Reason.TIMEOUT)
    assert child.cancelled(3)
    assert child.reason == "timeout"
    child.end()
    child.begin(4)
    assert not child.cancelled(4)


def test_steps_and_beats_are_seen_from_outside(mine: StatusPage, child: StatusPage) -> None:
    child.step = 1200
    child.beat()
    child.beat()
    assert mine.step == 1200
    assert mine.beats == 2


def test_a_revoked_attempt_is_refused_and_the_next_one_is_not(mine: StatusPage, child: StatusPage) -> None:
    assert child.begin(1)
    assert mine.revoke(2)
    child.end()
    assert not child.begin(2)
    assert mine.running() is None, "a refused attempt does not run"
    assert mine.over(2)
    assert child.begin(3)
    assert mine.running() is not None


def test_to_revoke_again_changes_nothing(mine: StatusPage, child: StatusPage) -> None:
    assert mine.revoke(5)
    assert mine.revoke(5)
    assert not child.begin(5)
    assert mine.revoke(5), "it was refused, so it never began"


def test_what_has_begun_cannot_be_revoked(mine: StatusPage, child: StatusPage) -> None:
    assert child.begin(5)
    assert not mine.revoke(5)
    assert not mine.revoke(4)
    child.end()
    assert not mine.revoke(5)


def test_a_page_made_before_the_child_attaches_keeps_its_revocations(mine: StatusPage) -> None:
    assert mine.revoke(1)
    page = StatusPage.attach(os.dup(mine.fd))
    assert not page.begin(1)
    page.close()


def test_a_full_ring_refuses_and_frees_what_the_child_has_passed(mine: StatusPage, child: StatusPage) -> None:
    assert all(mine.revoke(aid) for aid in range(2, 2 + RING))
    assert not mine.revoke(2 + RING), "nothing that still counts may be overwritten"
    assert not any(child.begin(aid) for aid in range(2, 12))
    assert mine.revoke(2 + RING)
    assert not child.begin(2 + RING - 1)
    assert not child.begin(2 + RING)


@given(st.lists(st.sampled_from(["begin", "end", "revoke", "revoke ahead"]), max_size=60))
def test_any_sequence_keeps_the_promise(moves: list[str]) -> None:
    """Whatever was revoked with success is refused, whatever was not runs."""
    mine = StatusPage.create()
    child = StatusPage.attach(os.dup(mine.fd))
    revoked: set[int] = set()
    begun, inside = 0, False
    try:
        for move in moves:
            if move == "begin" and not inside:
                begun += 1
                inside = child.begin(begun)
                assert inside == (begun not in revoked)
            elif move == "end" and inside:
                child.end()
                inside = False
            elif move.startswith("revoke"):
                aid = begun + (3 if "ahead" in move else 1)
                assert mine.revoke(aid)
                revoked.add(aid)
            running = mine.running()
            assert (running[0] if running else None) == (begun if inside else None)
    finally:
        mine.close()
        child.close()


def test_an_undecided_revocation_makes_the_child_wait(mine: StatusPage, child: StatusPage) -> None:
    """The supervisor is stopped between its two halves; the child must neither run nor refuse before it goes on."""
    words = memoryview(mine._map).cast("Q")
    words[32] = 9 << 1 | 1
    words[18] += 1
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(child.begin(9)))
    thread.start()
    eventually(lambda: mine.last == 9)
    assert thread.is_alive()
    assert not outcome
    words[32] = 0  # the supervisor saw that it had begun
    thread.join(5)
    words.release()
    assert outcome == [True]


COUNT = 20_000
RUNNER = """
import sys
from omnibus.sharedmem import StatusPage
page, count = StatusPage.attach(int(sys.argv[1])), int(sys.argv[2])
ran = bytearray(count + 1)
for aid in range(1, count + 1):
    if page.begin(aid):
        ran[aid] = 1
        page.end()
sys.stdout.buffer.write(ran)
"""


def test_two_processes_agree_on_every_attempt(mine: StatusPage) -> None:
    """Race a child that begins attempts against revocations: each is run exactly if it was not revoked."""
    command = [sys.executable, "-c", RUNNER, str(mine.fd), str(COUNT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[mine.fd]) as child:
        try:
            revoked = set()
            while (last := mine.last) < COUNT:
                assert child.poll() is None or mine.last == COUNT
                if mine.revoke(last + 1):
                    revoked.add(last + 1)
            ran, _ = child.communicate(timeout=10)
        finally:
            child.kill()
    assert len(ran) == COUNT + 1
    assert {aid for aid in range(1, COUNT + 1) if not ran[aid]} == revoked & set(range(1, COUNT + 1))
    assert revoked, "the race was never won: the test shows nothing"


def test_the_page_cannot_change_its_size(mine: StatusPage) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(mine.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(mine.fd, 2 * PAGE_SIZE)
    assert fcntl.fcntl(mine.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL


def test_only_a_page_is_attached(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(UsageError, match="is no status page: it has 1 bytes, a page has 4096"):
            StatusPage.attach(fd)
    finally:
        os.close(fd)


def test_closing_gives_the_descriptor_back() -> None:
    page = StatusPage.create()
    fd = page.fd
    page.close()
    page.close()
    assert page.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
