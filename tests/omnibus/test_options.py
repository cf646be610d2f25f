"""Options: checked when they are made, and only what differs from the defaults is sent."""

from __future__ import annotations

import pytest

from omnibus.errors import UsageError
from omnibus.options import LATER, Options


def test_defaults_send_nothing() -> None:
    assert Options().wire() == {}


def test_what_differs_is_sent() -> None:
    labels = {"zone": "b", "arch": "x"}
    options = Options.make({"priority": 5, "retries": 0, "timeout": 1.5, "labels": labels, "detached": True})
    assert options.wire() == {
        "priority": 5,
        "retries": 0,
        "timeout": 1.5,
        "labels": {"zone": "b", "arch": "x"},
        "detached": True,
    }


def test_equal_options_are_one_key() -> None:
    one = Options.make({"gpus": 1, "labels": {"a": "1", "b": "2"}})
    assert one == Options.make({"labels": {"b": "2", "a": "1"}, "gpus": 1})
    assert len({Options.make({"name": "x"}), Options.make({"name": "x"})}) == 1


@pytest.mark.parametrize("name", sorted(LATER))
def test_what_is_not_implemented_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is not implemented"):
        Options.make({name: 1})


def test_an_unknown_option_names_the_known() -> None:
    with pytest.raises(UsageError, match=r"'prio' is not an option; the options are .*priority"):
        Options.make({"prio": 1})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": True}, "priority must be an integer"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"ttl": -1}, "ttl must be a positive number"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"cpus": -1}, "cannot be negative"),
        ({"gpus": 1.5}, "gpus is a whole number, or a share"),
        ({"memory": -1}, "cannot be negative"),
    ],
)
def test_values_out_of_range(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options.make(given)
