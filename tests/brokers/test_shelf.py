"""The shelf: ends are kept by their task's id, for a time and within a size."""

from __future__ import annotations

from omnibus.brokers.hello import Hello
from omnibus.brokers.peers import Client
from omnibus.brokers.shelf import Shelf
from omnibus.protocol import Verb

TASK = (b"session-", 1)


def answer(shelf: Shelf, task: tuple[bytes, int]) -> list[object] | None:
    """Return the record that a fetch is answered by."""
    peer = Client(Hello(b"fetcher-", "client"), b"route", [], 0.0)
    return peer.records[0] if shelf.answer(peer, 7, task) else None


def test_an_end_is_handed_out_under_the_requests_number() -> None:
    shelf = Shelf(10, 1000)
    shelf.put(TASK, [Verb.RESULT, 1, None, b"body", 1], [b"blob"], 0.0)
    assert answer(shelf, TASK) == [Verb.RESULT, 7, None, b"body", 1]
    assert answer(shelf, TASK) is not None
    assert answer(shelf, (b"session-", 2)) is None


def test_it_is_kept_for_a_time() -> None:
    shelf = Shelf(10, 1000)
    shelf.put((b"session-", 1), [Verb.RESULT, 1, None, b"x", 0], (), 0.0)
    shelf.put((b"session-", 2), [Verb.RESULT, 2, None, b"x", 0], (), 4.0)
    assert shelf.expire(9.9) == 10.0
    assert shelf.expire(10.0) == 14.0
    assert (len(shelf), shelf.size) == (1, 1)
    assert shelf.expire(14.0) is None
    shelf.check_invariants()


def test_the_oldest_give_way_and_the_last_is_kept() -> None:
    shelf = Shelf(10, 100)
    for number in range(5):
        shelf.put((b"session-", number), [Verb.RESULT, number, None, bytes(40), 0], (), 0.0)
        shelf.check_invariants()
    assert [number for number in range(5) if answer(shelf, (b"session-", number))] == [3, 4]
    shelf.put((b"session-", 9), [Verb.RESULT, 9, None, None, 1], [bytes(500)], 0.0)
    assert (len(shelf), shelf.size) == (1, 500)


def test_an_end_that_is_put_twice_counts_once() -> None:
    shelf = Shelf(10, 100)
    for size in (10, 20):
        shelf.put(TASK, [Verb.RESULT, 1, None, bytes(size), 0], (), 0.0)
    shelf.check_invariants()
    assert shelf.size == 20
