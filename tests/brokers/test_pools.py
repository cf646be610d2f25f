"""Pools: who may be given work, and where the lines of their queues come and go."""

from __future__ import annotations

from omnibus.brokers.hello import Hello
from omnibus.brokers.kinds import Kind, Shape, parse_kind
from omnibus.brokers.peers import Client, Worker
from omnibus.brokers.pools import Pool
from omnibus.brokers.tasks import HORIZON, Task
from omnibus.protocol import Limits


def a_pool() -> Pool:
    return Pool(Shape(), "cpus=1 gpus=0")


def a_worker(credits: int = 4) -> Worker:
    return Worker(Hello(b"worker--", "worker", credits=credits), b"route", [], 0.0)


def a_kind(client: Client, priority: int = 0) -> Kind:
    return parse_kind(1, client, {"fn": "a:b", "priority": priority}, Limits())


def a_client(name: bytes) -> Client:
    return Client(Hello(name, "client"), b"route", [], 0.0)


def test_a_worker_that_joins_has_room() -> None:
    pool, worker = a_pool(), a_worker()
    pool.join(worker)
    assert worker.pool is pool
    assert list(pool.free) == [worker]
    assert pool.idle()
    pool.enlist(worker)
    assert list(pool.free) == [worker], "once"


def test_who_may_not_be_given_work_is_not_listed() -> None:
    for name, value in (("route", None), ("stalled", True), ("closing", True), ("lent", True), ("backlog", HORIZON)):
        pool, worker = a_pool(), a_worker()
        setattr(worker, name, value)
        pool.join(worker)
        assert not pool.free, name
    pool = a_pool()
    pool.join(a_worker(credits=0))
    assert not pool.free


def test_an_actor_that_lends_its_cpus_still_takes_messages() -> None:
    pool, worker = Pool(Shape(), "actor a", for_actor=True), a_worker()
    worker.lent = True
    pool.join(worker)
    assert list(pool.free) == [worker]


def test_a_worker_that_works_is_not_idle() -> None:
    pool, worker = a_pool(), a_worker()
    worker.attempts[1] = Task(a_kind(a_client(b"client--")), 1, None, (), 0.0)
    pool.join(worker)
    assert pool.free
    assert not pool.idle()


def test_retiring_and_leaving() -> None:
    pool, worker = a_pool(), a_worker()
    pool.join(worker)
    pool.retire(worker)
    assert worker.closing
    assert (list(pool.free), pool.workers) == ([], {worker})
    pool.leave(worker)
    pool.leave(worker)
    assert not pool.workers


def test_kinds_of_a_client_and_priority_share_a_line() -> None:
    pool, one, other = a_pool(), a_client(b"one-----"), a_client(b"other---")
    first, second, high, theirs = a_kind(one), a_kind(one), a_kind(one, 1), a_kind(other)
    for kind in (first, second, high, theirs):
        pool.lodge(kind)
    assert first.line is second.line
    assert len({id(kind.line) for kind in (first, high, theirs)}) == 3
    assert pool.users == 4
    for kind in (first, high, theirs):
        pool.dislodge(kind)
    assert pool.lines == {b"one-----": {0: second.line}}
    pool.dislodge(second)
    assert (pool.users, pool.lines) == (0, {})


def test_a_pool_is_shown_by_its_label() -> None:
    assert repr(a_pool()) == "pool cpus=1 gpus=0"
