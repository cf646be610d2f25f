"""A node's children: their life's moves, the table that finds them, and why they died, in words."""

from __future__ import annotations

import itertools
import signal

import pytest

from omnibus.actors.children import TRANSITIONS, Child, Children, Exit, Ladder, State, Want, explain
from omnibus.errors import AlreadyExists
from omnibus.sharedmem import Reason
from tests.actors.fakes import FakePage

EVENTS = ("started", "stop", "ended")


def child(name: str = "kid", session: bytes = b"s" * 16) -> Child:
    return Child(Want(name, "worker"), session, FakePage())


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, EVENTS)))
def test_a_life_makes_the_moves_of_the_table_and_no_others(state: State, event: str) -> None:
    made = child()
    made.state = state
    if (state, event) in TRANSITIONS:
        made.become(event)
        assert made.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError, match=f"{state.value}: '{event}' cannot happen"):
            made.become(event)


def test_every_life_can_end() -> None:
    assert all(TRANSITIONS[state, "ended"] is State.ENDED for state in State if state is not State.ENDED)
    assert not [key for key in TRANSITIONS if key[0] is State.ENDED]


def test_a_child_is_found_by_session_and_name_until_it_ends() -> None:
    children = Children()
    one, two = child("one", b"1" * 16), child("two", b"2" * 16)
    children.add(one)
    children.add(two)
    children.check_invariants()
    assert children.by_name("one") is one
    assert children.by_session(b"2" * 16) is two
    assert list(children) == [one, two]
    children.remove(one)
    children.check_invariants()
    assert children.by_name("one") is None
    assert children.by_session(b"1" * 16) is None
    assert len(children) == 1


@pytest.mark.parametrize("key", [None, 3, "nobody", b"nothing", ["list"]])
def test_whatever_is_not_there_is_not_found(key: object) -> None:
    assert Children().by_name(key) is None
    assert Children().by_session(key) is None


def test_a_name_has_one_life_at_a_time() -> None:
    children = Children()
    children.add(child("one", b"1" * 16))
    with pytest.raises(AlreadyExists, match="'one' is starting"):
        children.add(child("one", b"2" * 16))
    children.check_invariants()
    assert len(children) == 1


LADDER = Ladder(7, Reason.TIMEOUT, 1.0, rung=3)


@pytest.mark.parametrize(
    ("how", "ladder", "stopped", "said"),
    [
        (Exit(code=0), None, False, "exited with status 0"),
        (Exit(code=0, words="a warning"), None, False, "exited with status 0"),
        (Exit(code=3, words="KeyError: 'x'"), None, False, "exited with status 3: KeyError: 'x'"),
        (Exit(signal=11, words="Fatal"), None, False, "killed by signal 11 (SIGSEGV): Fatal"),
        (Exit(signal=64 + 1), None, False, "killed by signal 65"),
        (Exit(signal=9, words="noise"), None, False, "killed by signal 9 (SIGKILL), and not by its supervisor"),
        (Exit(signal=9), None, True, "stopped by its supervisor (killed by signal 9 (SIGKILL))"),
        (
            Exit(signal=9, oom=True, resident=3 << 30), None, False,
            "out of memory: killed by signal 9 (SIGKILL); it had 3.00 GiB resident at most",
        ),
        (Exit(code=1, oom=True, words="MemoryError"), None, False, "out of memory: exited with status 1: MemoryError"),
        (
            Exit(signal=9), LADDER, False,
            "ended by its supervisor: attempt 7 ran past its timeout (killed by signal 9 (SIGKILL))",
        ),
        (
            Exit(code=0), Ladder(7, Reason.CANCEL, 1.0, rung=2), False,
            "ended by its supervisor: attempt 7 was cancelled and did not stop (exited with status 0)",
        ),
        (Exit(code=1), Ladder(7, Reason.CANCEL, 1.0, rung=1), False, "exited with status 1"),
        (Exit(words="its zygote died"), None, False, "ended unseen: its zygote died"),
    ],
)  # fmt: skip
def test_one_line_says_why(how: Exit, ladder: Ladder | None, stopped: bool, said: str) -> None:
    assert explain(how, ladder, stopped) == said


def test_signals_have_their_names() -> None:
    assert "(SIGABRT)" in explain(Exit(signal=signal.SIGABRT), None, False)
