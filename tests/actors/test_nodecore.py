"""The node as a state machine: lives and restarts, the broker's orders, stopping, and what is said of each."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.actors.restart import RestartPolicy
from omnibus.protocol import Verb
from omnibus.sharedmem import Reason
from tests.actors.fakes import FakePage, House

ACTOR = {"name": "counter", "role": "actor", "cpus": 2, "devices": ["0"], "env": {"A": "b"}, "credits": 8}
TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.fixture
def house() -> House:
    """Return a node with one base worker that runs, and a broker that knows it."""
    house = House(workers=1)
    house.welcome()
    house.born()
    house.quiet()
    return house


def worker(house: House) -> tuple[bytes, FakePage]:
    child = house.core.children.by_name("worker-0")
    assert child is not None
    assert isinstance(child.page, FakePage)
    return child.session, child.page


# ---------------------------------------------------------------- beginning


def test_it_says_hello_and_begins_its_workers_without_waiting() -> None:
    house = House(workers=2, code=True, credits=9)
    assert house.claim(Verb.HELLO)[2] == {"role": "node"}
    for number in range(2):
        _, _, fork = house.forked()
        config = fork.config
        assert (config.name, config.role, config.command, config.credits) == (f"worker-{number}", "worker", 0, 9)
        assert config.node == house.core.spec.session
        assert config.code
        assert config.target.address == "ipc:///run/b"
    house.quiet()
    house.receive(Verb.WELCOME, 0, {})
    started = [house.claim(Verb.CHILD)[2] for _ in range(2)]
    assert [(head["event"], head["name"], head["pid"]) for head in started] == [
        ("started", "worker-0", 1000), ("started", "worker-1", 1001),
    ]
    house.quiet()


def test_a_node_that_no_broker_answers_gives_up() -> None:
    house = House(connect_grace=30, broker_grace=1)
    house.claim(Verb.HELLO)
    house.pass_time(29)
    house.quiet()
    house.pass_time(2)
    finish = house.finish()
    assert finish.status == 1
    assert "no broker has answered at ipc:///run/b for 30 s" in finish.why


def test_a_node_that_the_broker_refuses_ends() -> None:
    house = House()
    house.claim(Verb.HELLO)
    house.receive(Verb.ERROR, 0, {"error": "ProtocolError", "message": "OMB/2 is spoken here", "again": False})
    finish = house.finish()
    assert finish.status == 1
    assert "OMB/2 is spoken here" in finish.why


# ---------------------------------------------------------------- deaths and restarts


def test_a_dead_worker_is_reported_and_lives_again_at_once(house: House) -> None:
    session, page = worker(house)
    page.begin(7, house.now)
    house.exits(session, signal=signal.SIGSEGV, words="Fatal Python error: Segmentation fault")
    head = house.exited()
    assert head == {
        "event": "exited", "session": session, "name": "worker-0", "role": "worker", "pid": 1000,
        "code": None, "signal": signal.SIGSEGV, "oom": False, "begun": 7, "last": 7,
        "reason": "killed by signal 11 (SIGSEGV): Fatal Python error: Segmentation fault",
        "restart_in": 0.0, "cause": None, "aborted": 0,
    }
    house.pass_time(0)
    again, _ = house.born()
    assert again != session
    child = house.core.children.by_name("worker-0")
    assert child is not None
    assert child.incarnation == 1


def test_what_it_had_finished_is_not_what_it_was_in(house: House) -> None:
    session, page = worker(house)
    page.begin(7, house.now)
    page.end()
    house.exits(session, code=1)
    head = house.exited()
    assert (head["begun"], head["last"]) == (0, 7)


def test_workers_that_their_tasks_kill_always_come_back_at_once(house: House) -> None:
    for aid in range(1, 30):
        session, page = worker(house)
        page.begin(aid, house.now)
        house.exits(session, signal=KILL)
        assert house.exited()["restart_in"] == 0
        house.pass_time(0)
        house.born()


@pytest.mark.parametrize("oom", [False, True])
def test_workers_that_die_by_themselves_or_of_memory_come_back_ever_slower(oom: bool) -> None:
    house = House(workers=1, policy=RestartPolicy(most=None, window=1000, base=1, cap=4))
    house.welcome()
    house.born()
    delays = []
    for aid in range(1, 7):
        session, page = worker(house)
        if oom:
            page.begin(aid, house.now)
        house.exits(session, signal=KILL, oom=oom)
        delays.append(house.exited()["restart_in"])
        house.pass_time(delays[-1] - 0.01)
        house.quiet()
        house.pass_time(0.02)
        house.born()
    assert delays == [0, 1, 2, 4, 4, 4]


def test_a_worker_that_cannot_be_started_is_tried_again(house: House) -> None:
    session, _ = worker(house)
    house.exits(session, code=1)
    house.exited()
    house.pass_time(0)
    fork = house.commands.pop()
    house.core.on_refused(fork.config.session, "fork failed: Cannot allocate memory", house.now)  # type: ignore[union-attr]
    house.settle()
    head = house.exited()
    assert "could not be started: fork failed: Cannot allocate memory" in head["reason"]
    assert head["restart_in"] == pytest.approx(0.1)
    house.pass_time(1)
    house.born()


def start(house: House, command: int = 5, **changes: Any) -> tuple[bytes, FakePage]:
    house.receive(Verb.START, command, ACTOR | changes)
    return house.born()


def test_a_start_begins_what_it_describes(house: House) -> None:
    house.receive(Verb.START, 5, ACTOR)
    session, _, fork = house.forked()
    config = fork.config
    assert (config.name, config.role, config.command, config.cpus) == ("counter", "actor", 5, 2)
    assert (config.devices, config.env, config.credits, config.fresh) == (("0",), {"A": "b"}, 8, False)
    record = house.claim(Verb.CHILD)
    assert record[1] == 5
    assert record[2] == {
        "event": "started", "session": session, "name": "counter", "role": "actor", "pid": 1001,
        "incarnation": 0, "cpus": 2, "devices": ["0"],
    }
    house.receive(Verb.START, 5, ACTOR)
    house.quiet()


def test_a_name_is_given_once(house: House) -> None:
    start(house)
    house.receive(Verb.START, 6, ACTOR)
    record = house.claim(Verb.ERROR)
    assert record[1] == 6
    assert record[2]["error"] == "AlreadyExists"
    assert "'counter' of this node is running" in record[2]["message"]


def test_without_a_policy_it_lives_once(house: House) -> None:
    session, _ = start(house)
    house.exits(session, code=3)
    assert house.exited()["restart_in"] is None
    house.pass_time(100)
    house.quiet()
    start(house, 6)


def test_a_policy_that_is_used_up_gives_up_and_says_so(house: House) -> None:
    session, page = start(house, restart={"max": 2, "window": 60, "base": 1})
    delays = []
    for aid in range(1, 4):
        page.begin(aid, house.now)
        house.exits(session, code=3)
        head = house.exited()
        delays.append(head["restart_in"])
        if delays[-1] is not None:
            house.pass_time(1)
            session, page = house.born()
    assert delays == [0, 1, None]
    assert "not restarted" in head["reason"]
    house.pass_time(100)
    house.quiet()


def test_an_actor_that_ends_by_itself_has_finished(house: House) -> None:
    session, _ = start(house, restart={"max": 5})
    house.exits(session, code=0)
    head = house.exited()
    assert head["restart_in"] is None
    assert head["reason"] == "exited with status 0"


# ---------------------------------------------------------------- halting


@pytest.mark.parametrize("by", ["name", "session"])
def test_a_halt_ends_a_child_for_good(house: House, by: str) -> None:
    session, _ = start(house, restart={"max": 5})
    house.receive(Verb.HALT, 8, {by: {"name": "counter", "session": session}[by], "grace": 2})
    assert house.signal() == (session, TERM)
    house.pass_time(1.9)
    house.quiet()
    house.pass_time(0.2)
    assert house.signal() == (session, KILL)
    house.exits(session, signal=KILL)
    head = house.exited()
    assert head["restart_in"] is None
    assert head["reason"] == "stopped by its supervisor (killed by signal 9 (SIGKILL))"
    house.pass_time(100)
    house.quiet()


def test_a_halt_again_can_only_make_it_quicker(house: House) -> None:
    session, _ = start(house)
    house.receive(Verb.HALT, 8, {"name": "counter", "grace": 2})
    house.signal()
    house.receive(Verb.HALT, 9, {"name": "counter", "grace": 50})
    house.receive(Verb.HALT, 9, {"name": "counter", "grace": 1})
    house.pass_time(1)
    assert house.signal() == (session, KILL)


def test_a_halt_before_the_child_runs_ends_it_when_it_does(house: House) -> None:
    house.receive(Verb.START, 5, ACTOR)
    house.receive(Verb.HALT, 6, {"name": "counter", "grace": 1})
    session, _, _ = house.forked()
    house.claim(Verb.CHILD)
    assert house.signal() == (session, TERM)
    house.pass_time(1)
    assert house.signal() == (session, KILL)


def test_a_halt_ends_the_wait_for_a_restart(house: House) -> None:
    session, _ = start(house, restart={"max": 5})
    for _ in range(2):
        house.exits(session, code=1)
        if house.exited()["restart_in"] == 0:
            house.pass_time(0)
            session, _ = house.born()
    house.receive(Verb.HALT, 6, {"name": "counter", "grace": 1})
    house.pass_time(100)
    house.quiet()


def test_a_halt_of_what_is_not_there_changes_nothing(house: House) -> None:
    house.receive(Verb.HALT, 6, {"name": "nobody"})
    house.receive(Verb.HALT, 6, {"session": b"x" * 16})
    house.quiet()


# ---------------------------------------------------------------- timeouts, cancels, recalls


def watch(house: House, aid: int, timeout: float, **more: Any) -> None:
    house.receive(Verb.WATCH, aid, {"session": worker(house)[0], "timeout": timeout, **more})


def abort(house: House, aid: int, **more: Any) -> None:
    house.receive(Verb.ABORT, aid, {"session": worker(house)[0], "reason": "cancel", "grace": 1.0, **more})


def test_a_timeout_counts_from_the_beginning_of_the_attempt(house: House) -> None:
    session, page = worker(house)
    watch(house, 7, 10, grace=2)
    house.pass_time(60)
    house.quiet()
    page.begin(7, house.now)
    house.pass_time(9.9)
    assert page.cancelled is None
    house.pass_time(0.11)
    assert page.cancelled == (7, Reason.TIMEOUT)
    house.quiet()
    house.pass_time(2)
    assert house.signal() == (session, TERM)
    house.pass_time(2)
    assert house.signal() == (session, KILL)
    house.exits(session, signal=KILL)
    head = house.exited()
    assert (head["cause"], head["aborted"], head["begun"], head["restart_in"]) == ("timeout", 7, 7, 0)
    assert head["reason"] == "ended by its supervisor: attempt 7 ran past its timeout (killed by signal 9 (SIGKILL))"


@given(timeout=st.floats(0.02, 100), wait=st.floats(0, 50))
def test_a_timeout_is_exact_however_long_the_attempt_waited(timeout: float, wait: float) -> None:
    house = House(workers=1)
    house.welcome()
    house.born()
    watch(house, 7, timeout)
    house.pass_time(wait)
    _, page = worker(house)
    page.begin(7, house.now)
    house.pass_time(timeout * 0.99)
    assert page.cancelled is None
    house.pass_time(timeout * 0.011)
    assert page.cancelled == (7, Reason.TIMEOUT)


def test_an_attempt_that_ends_in_time_is_left_alone(house: House) -> None:
    _, page = worker(house)
    watch(house, 7, 10)
    page.begin(7, house.now)
    house.pass_time(9)
    page.end()
    page.begin(8, house.now)
    house.pass_time(60)
    assert page.cancelled is None
    assert house.core.next_deadline() is None, "nothing is watched, so nothing wakes the node"
    house.quiet()


def test_a_running_attempt_wakes_the_node_only_at_its_timeout(house: House) -> None:
    _, page = worker(house)
    page.begin(7, house.now)
    watch(house, 7, 3600)
    assert house.core.next_deadline() == pytest.approx(house.now + 3600)


def test_watches_of_what_is_over_are_dropped_as_new_ones_come(house: House) -> None:
    _, page = worker(house)
    for aid in range(1, 1000):
        page.begin(aid, house.now)
        watch(house, aid, 3600)
        page.end()
    child = house.core.children.by_name("worker-0")
    assert child is not None
    assert len(child.watches) <= 1
    assert len(house.core._timers._heap) < 200


def test_a_short_timeout_behind_a_long_one_is_kept(house: House) -> None:
    _, page = worker(house)
    watch(house, 1, 3600)
    watch(house, 2, 0.1)
    page.begin(1, house.now)
    house.pass_time(5)
    page.end()
    page.begin(2, house.now)
    watch(house, 3, 50)
    house.pass_time(0.101)
    assert page.cancelled == (2, Reason.TIMEOUT)


def test_a_cancel_before_the_beginning_revokes(house: House) -> None:
    _, page = worker(house)
    abort(house, 7)
    assert page.revoked == {7}
    assert house.claim(Verb.RECALLED)[1:3] == [7, 1]
    house.pass_time(100)
    house.quiet()


def test_a_cancel_climbs_only_while_the_attempt_runs(house: House) -> None:
    session, page = worker(house)
    page.begin(7, house.now)
    abort(house, 7, grace=1.5)
    assert page.cancelled == (7, Reason.CANCEL)
    abort(house, 7)
    house.pass_time(1.4)
    house.quiet()
    house.pass_time(0.2)
    assert house.signal() == (session, TERM)
    page.end()
    house.pass_time(100)
    house.quiet()
    assert house.core.next_deadline() is None
    house.exits(session, code=0)
    assert house.exited()["cause"] is None, "the attempt was over: this end is another matter"


def test_a_cancel_of_what_is_over_does_nothing(house: House) -> None:
    _, page = worker(house)
    page.begin(7, house.now)
    page.end()
    abort(house, 7)
    assert page.cancelled is None
    house.quiet()
    assert house.core.next_deadline() is None


def test_a_cancel_that_cannot_be_entered_yet_is_tried_again(house: House) -> None:
    _, page = worker(house)
    page.full = True
    abort(house, 9)
    house.pass_time(0.5)
    house.quiet()
    page.begin(9, house.now)
    house.pass_time(0.1)
    assert page.cancelled == (9, Reason.CANCEL)


def test_an_actor_that_was_ended_for_one_message_lives_again_without_being_counted(house: House) -> None:
    session, page = start(house, restart={"max": 1})
    for aid in range(1, 5):
        page.begin(aid, house.now)
        house.receive(Verb.ABORT, aid, {"session": session, "reason": "timeout", "grace": 0})
        house.pass_time(0)
        assert [house.signal()[1] for _ in range(2)] == [TERM, KILL]
        house.exits(session, signal=KILL)
        head = house.exited()
        assert (head["cause"], head["restart_in"]) == ("timeout", 0)
        house.pass_time(0)
        session, page = house.born()


def test_a_recall_says_whether_it_came_in_time(house: House) -> None:
    session, page = worker(house)
    page.begin(7, house.now)
    for aid, answer in ((8, 1), (7, 0), (6, 0), (8, 1)):
        house.receive(Verb.RECALL, aid, {"session": session})
        assert house.claim(Verb.RECALLED)[1:3] == [aid, answer]


def test_orders_about_a_child_that_is_gone_are_passed_over(house: House) -> None:
    """Its CHILD record says what became of its attempts."""
    gone = {"session": b"x" * 16}
    house.receive(Verb.RECALL, 7, gone)
    house.receive(Verb.ABORT, 7, gone)
    house.receive(Verb.WATCH, 7, gone | {"timeout": 1})
    house.quiet()


def test_a_dead_child_leaves_no_timer(house: House) -> None:
    session, page = worker(house)
    page.begin(7, house.now)
    watch(house, 7, 100)
    abort(house, 7)
    house.exits(session, signal=KILL)
    house.exited()
    house.pass_time(0)
    house.born()
    assert house.core.next_deadline() is None


# ---------------------------------------------------------------- the link to the broker


def test_a_broker_that_forgot_the_node_is_told_all_that_lives(house: House) -> None:
    house.pass_time(5)
    house.receive(Verb.ERROR, 0, {"error": "ProtocolError", "message": "who?", "again": True})
    house.pass_time(0)
    house.welcome()
    head = house.claim(Verb.CHILD)[2]
    assert (head["event"], head["name"]) == ("started", "worker-0")
    house.quiet()


def test_many_demands_for_a_hello_get_one(house: House) -> None:
    house.pass_time(5)
    for _ in range(10):
        house.receive(Verb.ERROR, 3, {"again": True})
    house.pass_time(0)
    house.claim(Verb.HELLO)
    for _ in range(10):
        house.receive(Verb.ERROR, 3, {"again": True})
    house.pass_time(0.9)
    house.quiet()
    house.pass_time(0.2)
    house.claim(Verb.HELLO)
    house.quiet()


def test_children_live_on_without_a_broker_and_their_deaths_are_told_later(house: House) -> None:
    session, page = worker(house)
    house.core.on_link(False, house.now)
    page.begin(7, house.now)
    house.pass_time(1)
    house.exits(session, signal=KILL)
    house.quiet()
    house.pass_time(1)
    house.forked()
    house.quiet()
    house.core.on_link(True, house.now)
    house.settle()
    house.welcome()
    assert house.exited()["session"] == session
    assert house.claim(Verb.CHILD)[2]["event"] == "started"
    house.quiet()


def test_a_session_that_goes_on_is_told_only_what_it_missed(house: House) -> None:
    actor, _ = start(house, restart={"max": 5})
    house.core.on_link(False, house.now)
    house.exits(actor, code=1)
    house.pass_time(0)
    again, _, _ = house.forked()
    house.quiet()
    house.core.on_link(True, house.now)
    house.settle()
    house.claim(Verb.HELLO)
    house.receive(Verb.WELCOME, 0, {"resumed": True})
    assert house.exited()["session"] == actor
    head = house.claim(Verb.CHILD)[2]
    assert (head["event"], head["session"]) == ("started", again)
    house.quiet()


def test_a_broker_that_ends_in_good_order_ends_its_node(house: House) -> None:
    session, _ = worker(house)
    house.receive(Verb.BYE)
    assert house.signal() == (session, TERM)
    house.exits(session, code=0)
    house.exited()
    house.claim(Verb.BYE)
    assert house.finish().status == 0


def test_a_death_that_a_broker_has_surely_heard_is_not_told_again(house: House) -> None:
    session, _ = worker(house)
    house.exits(session, code=1)
    house.exited()
    house.pass_time(0)
    house.born()
    house.pass_time(10)
    house.receive(Verb.PING, 4)
    assert house.claim(Verb.PONG)[1] == 4
    house.core.on_link(False, house.now)
    house.core.on_link(True, house.now)
    house.settle()
    house.welcome()
    assert house.claim(Verb.CHILD)[2]["event"] == "started"
    house.quiet()


def test_a_node_whose_broker_stays_away_stops(house: House) -> None:
    session, _ = worker(house)
    house.core.on_link(False, house.now)
    house.pass_time(29)
    house.quiet()
    house.pass_time(1.5)
    assert house.signal() == (session, TERM)
    house.exits(session, code=0)
    assert house.finish().status == 1


def test_a_link_that_comes_back_in_time_changes_nothing(house: House) -> None:
    house.core.on_link(False, house.now)
    house.core.on_link(False, house.now)
    house.pass_time(10)
    house.core.on_link(True, house.now)
    house.settle()
    house.welcome()
    house.claim(Verb.CHILD)
    house.pass_time(100)
    house.quiet()


# ---------------------------------------------------------------- stopping


def test_stopping_ends_the_children_then_the_node(house: House) -> None:
    session, _ = worker(house)
    actor, _ = start(house, restart={"max": 5})
    house.core.stop("SIGTERM", house.now)
    house.settle()
    assert {house.signal(), house.signal()} == {(session, TERM), (actor, TERM)}
    house.exits(session, code=0)
    assert house.exited()["restart_in"] is None
    house.pass_time(5)
    assert house.signal() == (actor, KILL)
    house.receive(Verb.START, 9, ACTOR | {"name": "late"})
    assert "stops" in house.claim(Verb.ERROR)[2]["message"]
    house.exits(actor, signal=KILL)
    house.exited()
    house.claim(Verb.BYE)
    assert house.finish().status == 0
    house.quiet()


def test_stopping_again_is_quicker(house: House) -> None:
    session, _ = worker(house)
    house.core.stop("SIGINT", house.now)
    house.core.stop("SIGINT", house.now, grace=0)
    house.settle()
    assert house.signal() == (session, TERM)
    house.pass_time(0)
    assert house.signal() == (session, KILL)


def test_a_node_without_children_stops_at_once() -> None:
    house = House()
    house.welcome()
    house.core.stop("SIGTERM", house.now)
    house.settle()
    house.claim(Verb.BYE)
    assert house.finish().status == 0


def test_a_restart_that_waits_is_called_off_by_stopping(house: House) -> None:
    for _ in range(2):
        house.exits(worker(house)[0], code=1)
        if house.exited()["restart_in"] == 0:
            house.pass_time(0)
            house.born()
    house.core.stop("SIGTERM", house.now)
    house.settle()
    house.claim(Verb.BYE)
    house.finish()
    house.pass_time(100)
    house.quiet()


# ---------------------------------------------------------------- broken records


@pytest.mark.parametrize(
    ("verb", "head", "message"),
    [
        (Verb.START, None, "START carries a map"),
        (Verb.START, ACTOR | {"name": ""}, "'name' must be a string"),
        (Verb.START, ACTOR | {"role": "client"}, "'role' must be worker or actor"),
        (Verb.START, ACTOR | {"devices": "0"}, "'devices' must be a list"),
        (Verb.START, ACTOR | {"env": {"A": 1}}, "'env' must map"),
        (Verb.START, ACTOR | {"env": {"A=B": ""}}, "'env' must map"),
        (Verb.START, ACTOR | {"env": {"A": "\0"}}, "'env' must map"),
        (Verb.START, ACTOR | {"credits": -1}, "'credits' must be a count"),
        (Verb.START, ACTOR | {"cpus": float("inf")}, "'cpus' must be a number"),
        (Verb.START, ACTOR | {"restart": {"max": "x"}}, "restart 'max'"),
        (Verb.HALT, {}, "this one does neither"),
        (Verb.HALT, {"session": "text"}, "'session', as bytes"),
        (Verb.WATCH, {"session": b"x"}, "says its 'timeout'"),
        (Verb.WATCH, {"session": b"x", "timeout": -1}, "'timeout' must be a number"),
        (Verb.ABORT, {"session": b"x", "reason": "boredom"}, "'reason' must be one of cancel, timeout"),
        (Verb.RECALL, {"session": None}, "'session', as bytes"),
        (Verb.SUBMIT, {}, "not for a node"),
    ],
)
def test_a_broken_order_is_refused_by_name(house: House, verb: Verb, head: Any, message: str) -> None:
    house.receive(verb, 44, head)
    record = house.claim(Verb.ERROR)
    assert record[1] == 44
    assert record[2]["error"] == "ProtocolError"
    assert message in record[2]["message"]
    house.quiet()


# ---------------------------------------------------------------- anything in any order


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "halt", "watch", "abort", "recall", "begin", "end", "die", "finish", "fork", "time", "down", "up"]
        ),
        st.integers(0, 5),
    ),
    max_size=80,
)


@given(MOVES)
def test_any_sequence_keeps_the_invariants_and_ends_when_told(moves: list[tuple[str, int]]) -> None:
    house = House(workers=2)
    core = house.core
    aids = iter(range(1, 1000))
    for move, number in moves:
        children = list(core.children)
        child = children[number % len(children)] if children else None
        about = {"session": child.session if child else b"x" * 16}
        page = child.page if child else FakePage()
        assert isinstance(page, FakePage)
        if move == "start":
            house.receive(Verb.START, number + 1, ACTOR | {"name": f"a{number}", "restart": {"max": 2}})
        elif move == "halt":
            house.receive(Verb.HALT, 0, {"name": f"a{number}", "grace": number})
        elif move == "watch":
            house.receive(Verb.WATCH, page.begun + number, about | {"timeout": number})
        elif move == "abort":
            house.receive(Verb.ABORT, page.begun + number, about | {"grace": number})
        elif move == "recall":
            house.receive(Verb.RECALL, page.begun + number, about)
        elif move == "begin" and page.ended == page.begun:
            aid = page.begun + 1
            while aid in page.revoked:
                aid += 1
            page.begin(aid, house.now)
        elif move == "end":
            page.end()
        elif move in ("die", "finish") and child and child.pid:
            house.exits(child.session, **({"signal": 9} if move == "die" else {"code": 0}))
        elif move == "fork" and child and not child.pid:
            core.on_started(child.session, 1000 + next(aids), house.now)
            house.settle()
        elif move == "time":
            house.pass_time(number)
        elif move in ("down", "up"):
            core.on_link(move == "up", house.now)
            house.settle()
    core.stop("the end", house.now)
    house.settle()
    for child in list(core.children):
        if not child.pid:
            core.on_started(child.session, 1000 + next(aids), house.now)
    house.pass_time(20)
    for child in list(core.children):
        house.exits(child.session, signal=9)
    assert len(core.children) == 0
    assert [command for command in house.commands if type(command).__name__ == "Finish"]
