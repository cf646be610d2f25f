"""Restart decisions: the first at once, the next ones later and later, and an end when there are too many."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from omnibus.actors.restart import RestartPolicy, Restarts
from omnibus.errors import ProtocolError


def no_jitter() -> float:
    return 0.0


def test_the_first_restart_is_immediate_and_the_next_ones_double() -> None:
    restarts = Restarts(RestartPolicy(most=6, window=100, base=0.5, cap=3), no_jitter)
    assert [restarts.after(float(now)) for now in range(7)] == [0, 0.5, 1, 2, 3, 3, None]


def test_deaths_that_are_long_ago_do_not_count() -> None:
    restarts = Restarts(RestartPolicy(most=2, window=10, base=1), no_jitter)
    assert restarts.after(0) == 0
    assert restarts.after(1) == 1
    assert restarts.after(10.5) == 1, "the death at 0 is out of the window, that at 1 is in it"
    assert restarts.after(10.9) is None
    assert restarts.after(50) == 0


def test_no_restart_is_allowed_by_a_bound_of_zero() -> None:
    assert Restarts(RestartPolicy(most=0), no_jitter).after(0) is None


def test_without_a_bound_it_goes_on_at_the_cap() -> None:
    restarts = Restarts(RestartPolicy(most=None, window=1e9, base=0.1, cap=30), no_jitter)
    delays = [restarts.after(float(now)) for now in range(2000)]
    assert delays[0] == 0
    assert delays[-1] == 30
    assert len(restarts._deaths) <= 65, "memory is bounded"


def test_jitter_adds_up_to_the_base_and_never_passes_the_cap() -> None:
    policy = RestartPolicy(base=0.5, cap=3)
    assert policy.delay(2, 0.0) == 0.5
    assert policy.delay(2, 1.0) == 1.0
    assert policy.delay(20, 1.0) == 3
    assert policy.delay(1, 1.0) == 0


@given(number=st.integers(2, 40), jitter=st.floats(0, 1), base=st.floats(0.01, 10), cap=st.floats(0, 100))
def test_a_delay_is_between_the_exponential_and_one_base_more(
    number: int, jitter: float, base: float, cap: float
) -> None:
    delay = RestartPolicy(base=base, cap=cap).delay(number, jitter)
    exponential = base * 2 ** (number - 2)
    assert min(exponential, cap) <= delay * (1 + 1e-9)
    assert delay <= min(exponential + base, cap) * (1 + 1e-9)


def test_a_wait_object_of_tenacity_gives_the_delays() -> None:
    policy = RestartPolicy(base=0, cap=60, wait=tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(7)))
    assert [policy.delay(number, 0.5) for number in range(1, 5)] == [0, 1, 7, 7]


def test_a_policy_is_read_from_a_record() -> None:
    assert RestartPolicy.parse(None) is None
    assert RestartPolicy.parse({}) == RestartPolicy()
    parsed = RestartPolicy.parse({"max": None, "window": 5, "base": 0.2, "cap": 1, "unknown": 1})
    assert parsed == RestartPolicy(None, 5, 0.2, 1)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ([], "'restart' must be nil or a map"),
        ({"max": -1}, "'max' must be nil or an integer"),
        ({"max": True}, "'max' must be nil or an integer"),
        ({"window": "1"}, "'window' must be seconds"),
        ({"base": -0.1}, "'base' must be seconds"),
        ({"cap": float("nan")}, "'cap' must be seconds"),
    ],
)
def test_a_broken_policy_is_refused_by_name(head: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        RestartPolicy.parse(head)


def test_importing_it_does_not_load_tenacity() -> None:
    script = "import sys, omnibus.actors.restart; sys.exit('tenacity' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
