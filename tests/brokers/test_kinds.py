"""Kinds: what a declaration says, and every field's errors."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus.brokers.hello import Hello
from omnibus.brokers.kinds import DEFAULT_RETRIES, Kind, Shape, parse_kind, parse_shape
from omnibus.brokers.peers import Client
from omnibus.brokers.reading import Reader
from omnibus.errors import ProtocolError
from omnibus.protocol import Limits

LIMITS = Limits()
CLIENT = Client(Hello(b"session-", "client"), b"route", [], 0.0)


def parse(**head: Any) -> Kind:
    return parse_kind(1, CLIENT, head, LIMITS)


def shape(**head: Any) -> Shape:
    return parse_shape(Reader(head, "it", LIMITS))


def test_a_task_has_defaults() -> None:
    kind = parse(fn="a:b")
    assert (kind.priority, kind.retries, kind.timeout, kind.ttl) == (0, DEFAULT_RETRIES, None, None)
    assert kind.shape == Shape(1, 0, 0, ())
    assert (kind.message, kind.silent, kind.detached, kind.stream, kind.special) == (False, False, False, False, False)
    assert kind.plain
    assert kind.cost is None
    assert kind.wire == {"fn": "a:b", "session": b"session-"}


def test_a_message_is_not_repeated_unless_asked() -> None:
    assert parse(actor="x", method="m").retries == 0
    assert parse(actor="x", method="m", retries=2).retries == 2


def test_every_option_arrives() -> None:
    kind = parse(
        code=b"digest", priority=-7, retries=0, timeout=1.5, ttl=9, detached=True, stream=True, tell=True, name="me",
        cpus=2, gpus=0.5, memory=1 << 30, labels={"zone": "b", "disk": "ssd"},
    )  # fmt: skip
    assert (kind.digest, kind.priority, kind.retries, kind.timeout, kind.ttl) == (b"digest", -7, 0, 1.5, 9.0)
    assert kind.detached
    assert kind.stream
    assert kind.silent
    assert kind.special
    assert not kind.plain
    assert kind.shape == Shape(2, 0.5, 1 << 30, (("disk", "ssd"), ("zone", "b")))


def test_a_worker_is_told_what_to_run_and_no_more() -> None:
    more: dict[str, Any] = {"labels": {"a": "b"}, "unknown": "?", "priority": 9, "retries": 1, "ttl": 5}
    kind = parse(actor="x", method="m", timeout=2, stream=True, **more)
    assert kind.wire == {"method": "m", "stream": True, "timeout": 2.0, "session": b"session-"}


@pytest.mark.parametrize("head", [{}, {"fn": "a:b", "code": b"x"}, {"fn": "a:b", "actor": "x", "method": "m"}])
def test_a_kind_runs_one_thing(head: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="exactly one of 'fn', 'code' and 'actor'"):
        parse(**head)


@pytest.mark.parametrize("head", [{"actor": "x"}, {"fn": "a:b", "method": "m"}])
def test_messages_and_no_others_name_a_method(head: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="'method'"):
        parse(**head)


@pytest.mark.parametrize("head", [None, 5, "fn", ["fn"]])
def test_a_declaration_is_a_map(head: Any) -> None:
    with pytest.raises(ProtocolError, match="a kind carries a map"):
        parse_kind(1, CLIENT, head, LIMITS)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("fn", ["", 5, "x" * 257]),
        ("code", ["text", b"", bytes(65)]),
        ("actor", ["", b"x", "x" * 257]),
        ("method", ["", 1]),
        ("name", ["", 1, "x" * 257]),
        ("priority", ["1", 1.0, True, 1 << 32, -(1 << 32)]),
        ("retries", [-1, 1.0, "1", 1 << 30]),
        ("timeout", [-1, "1", float("nan"), float("inf"), True]),
        ("ttl", [-1, "1", float("nan"), float("inf"), True]),
        ("detached", [1, "yes"]),
        ("stream", [1, "yes"]),
        ("tell", [0, "no"]),
        ("cpus", [-1, "1", True, float("nan"), 1e6]),
        ("gpus", [-1, 1.5, "1", True, float("nan"), 1e6]),
        ("memory", [-1, 1.5, "1G", True, 1 << 63]),
        ("labels", [["a"], {"a": 1}, {"a": "x" * 257}, {str(index): "x" for index in range(99)}]),
    ],
)
def test_every_fields_errors_name_it(key: str, values: list[Any]) -> None:
    for value in values:
        head: dict[str, Any] = {"actor": "x", "method": "m"} if key in ("actor", "method") else {"fn": "a:b"}
        if key == "code":
            head = {}
        with pytest.raises(ProtocolError, match=f"a kind: {key!r} must be "):
            parse(**{**head, key: value})


def test_whole_gpus_and_shares_of_one() -> None:
    assert [shape(gpus=gpus).gpus for gpus in (0, 0.25, 1, 2.0)] == [0, 0.25, 1, 2.0]
    with pytest.raises(ProtocolError, match="a whole number, or a share of one below 1"):
        shape(gpus=1.25)


def test_equal_demands_are_one_shape() -> None:
    assert {shape(), shape(cpus=1.0), shape(gpus=0, memory=0, labels={})} == {Shape()}


def test_a_shape_reads_like_its_options() -> None:
    assert str(Shape()) == "cpus=1 gpus=0"
    assert str(Shape(0.5, 2, 10, (("a", "b"),))) == "cpus=0.5 gpus=2 memory=10 labels={'a': 'b'}"
