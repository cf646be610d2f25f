"""The client's state machine, stepped by hand: every message is made here, and every end is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from omnibus import errors, payload
from omnibus.errors import BusClosed, Cancelled, ProtocolError, RemoteError, Unreachable, UsageError
from omnibus.faults import error_from
from omnibus.peer import ClientPeer, Lane
from omnibus.protocol import BATCH, INLINE, SIGNATURE, Limits, Record, Verb, decode, encode

SESSION = bytes(16)
WELCOME = {"omb": 1, "epoch": b"epoch", "limits": {"window_tasks": 7, "window_bytes": 70}}


class Ending:
    """A future that notes how often and how it ended."""

    def __init__(self, lane: Lane | None = None, size: int = 0) -> None:
        self.lane = lane
        self.size = size
        self.ends: list[Any] = []

    def set_result(self, result: Any, /) -> None:
        self.ends.append(result)

    def set_exception(self, exception: BaseException | None, /) -> None:
        self.ends.append(exception)


class Sink:
    """What takes parts, and notes them."""

    def __init__(self, fails: bool = False) -> None:
        self.got: list[Any] = []
        self.fails = fails

    def feed(self, value: Any, number: int, missed: int) -> None:
        if self.fails:
            raise RuntimeError("the reader is broken")
        self.got.append((value, number, missed))

    def end(self, error: BaseException | None) -> None:
        self.got.append(error)


def new(*, code: bool = False) -> ClientPeer:
    return ClientPeer({"omb": 1, "role": "client", "session": SESSION}, code=code)


def sent(peer: ClientPeer) -> list[Record]:
    """Take all that the peer wants to send, as records."""
    records: list[Record] = []
    while (frames := peer.take()) is not None:
        records += decode(frames)
    return records


def tell(peer: ClientPeer, *records: Record, blobs: tuple[bytes, ...] = ()) -> None:
    peer.receive(encode(records, blobs))
    peer.check_invariants()


def greeted(peer: ClientPeer, **more: Any) -> ClientPeer:
    [[verb, number, _, _, _]] = sent(peer)
    assert verb == Verb.HELLO
    tell(peer, [Verb.WELCOME, number, WELCOME | more, None, 0])
    return peer


def ready(*, code: bool = False) -> ClientPeer:
    return greeted(new(code=code), resumed=False, received=0)


def ask(peer: ClientPeer, seq: int, *, size: int = 0) -> Ending:
    lane = peer.lane(0)
    ending = peer.pending[seq] = Ending(lane, size)
    lane.tasks += 1
    lane.size += size
    peer.out.append([Verb.SUBMIT, seq, 1, b"\x90", 0])
    return ending


def error_of(ending: Ending) -> Any:
    [error] = ending.ends
    return error


# --- the handshake -------------------------------------------------------------------------------------------------


def test_nothing_but_hello_goes_out_before_welcome() -> None:
    peer = new()
    ask(peer, 1)
    [[verb, number, head, body, blobs]] = sent(peer)
    assert (verb, body, blobs) == (Verb.HELLO, None, 0)
    assert head == {"omb": 1, "role": "client", "session": SESSION, "resume": True, "received": 0}
    assert peer.take() is None
    tell(peer, [Verb.WELCOME, number, WELCOME, None, 0])
    assert peer.ready and peer.welcome == WELCOME
    assert (peer.window_tasks, peer.window_bytes) == (7, 70)
    assert sent(peer) == [[Verb.SUBMIT, 1, 1, b"\x90", 0]]


def test_limits_that_are_not_stated_stay_as_they_were() -> None:
    peer = new()
    sent(peer)
    tell(peer, [Verb.WELCOME, 1, {"omb": 1}, None, 0])
    assert (peer.window_tasks, peer.window_bytes) == (1_000_000, 1 << 30)


@pytest.mark.parametrize("head", [None, {"omb": 2}, "welcome"])
def test_a_welcome_of_another_version_ends_the_session(head: Any) -> None:
    peer = new()
    waiting = ask(peer, 1)
    sent(peer)
    tell(peer, [Verb.WELCOME, 1, head, None, 0])
    assert isinstance(peer.failure, ProtocolError) and "OMB/1 was expected" in str(peer.failure)
    assert waiting.ends == [peer.failure]


@pytest.mark.parametrize("number", [0, 1])
def test_a_refusal_of_the_first_hello_ends_the_session(number: int) -> None:
    peer = new()
    sent(peer)
    tell(peer, [Verb.ERROR, number, {"error": "ProtocolError", "message": "you speak OMB/9"}, None, 0])
    assert type(peer.failure) is ProtocolError and str(peer.failure) == "you speak OMB/9"
    assert peer.take() is None


def test_an_answer_to_an_earlier_greeting_is_ignored() -> None:
    peer = new()
    sent(peer)
    peer.greet()
    tell(peer, [Verb.WELCOME, 1, WELCOME, None, 0])
    states = [peer.ready]
    tell(peer, [Verb.WELCOME, 2, WELCOME, None, 0])
    assert [*states, peer.ready] == [False, True]


def test_a_hello_that_the_socket_did_not_take_is_said_anew() -> None:
    peer = new()
    frames = peer.take()
    assert frames is not None
    peer.untake(frames)
    greeted(peer)
    assert peer.ready


# --- sending -------------------------------------------------------------------------------------------------------


def test_requests_go_out_in_order_and_in_batches() -> None:
    peer = ready()
    for seq in range(1, 2 * BATCH + 2):
        peer.out.append([Verb.SUBMIT, seq, 1, b"\x90", 0])
    sizes = []
    seqs = []
    while (frames := peer.take()) is not None:
        records = decode(frames)
        sizes.append(len(records))
        seqs += [record[1] for record in records]
    assert sizes == [BATCH, BATCH, 1]
    assert seqs == list(range(1, 2 * BATCH + 2))


def test_a_large_body_and_blobs_travel_beside_the_batch() -> None:
    peer = ready()
    small, large = bytes(INLINE - 1), bytes(INLINE)
    peer.request([Verb.SUBMIT, 1, 1, small, 0], ())
    peer.request([Verb.SUBMIT, 2, 1, large, 0], ())
    peer.request([Verb.SUBMIT, 3, 1, large, 0], [b"one", b"two"])
    peer.request([Verb.SUBMIT, 4, 1, b"\x90", 0], [b"three"])
    frames = peer.take()
    assert frames is not None
    assert [record[3:] for record in decode(frames)] == [[small, 0], [None, 1], [None, 3], [b"\x90", 1]]
    assert frames[2:] == [large, large, b"one", b"two", b"three"]
    assert frames[2] is large
    peer.request([Verb.SUBMIT, 5, 1, b"\x90", 0], [b"four"])
    assert peer.take() == encode([[Verb.SUBMIT, 5, 1, b"\x90", 1]], [b"four"])


def test_a_message_holds_no_more_blobs_than_a_receiver_takes() -> None:
    peer = ready()
    most = Limits().blobs
    for seq in (1, 2, 3):
        peer.request([Verb.SUBMIT, seq, 1, b"\x90", 0], [b""] * (most - seq))
    for seq in (1, 2, 3):
        frames = peer.take()
        assert frames is not None
        assert [record[1] for record in decode(frames)] == [seq]
    assert peer.take() is None


def test_a_message_that_the_socket_did_not_take_goes_first() -> None:
    peer = ready()
    ask(peer, 1)
    frames = peer.take()
    assert frames is not None
    ask(peer, 2)
    peer.untake(frames)
    assert [record[1] for record in sent(peer)] == [1, 2]


def test_options_that_msgpack_cannot_pack_end_their_request_alone() -> None:
    peer = ready()
    before = ask(peer, 1)
    peer.request([Verb.SUBMIT, 9, 1, bytes(INLINE), 0], [b"blob"])
    bad = peer.pending[2] = Ending()
    peer.request([Verb.SPAWN, 2, {"env": {"A": object()}}, b"\x90", 0], [b"lost with it"])
    worse = peer.pending[3] = Ending()
    peer.request([Verb.PUBLISH, 3, {"topic": "\ud800"}, None, 0], ())
    declared = peer.pending[4] = Ending()
    peer.request([Verb.DEFINE, 4, {"labels": {"a": object()}}, None, 0], ())
    after = ask(peer, 5)
    frames = peer.take()
    assert frames is not None
    assert [record[1] for record in decode(frames)] == [1, 9, 5]
    assert frames[2:] == [bytes(INLINE), b"blob"]
    assert peer.take() is None
    for ending in (bad, worse):
        assert isinstance(error_of(ending), UsageError)
        assert "msgpack cannot pack the options of request" in str(error_of(ending))
    assert not before.ends and not after.ends and not declared.ends


# --- answers -------------------------------------------------------------------------------------------------------


def test_a_result_ends_its_request_and_makes_room() -> None:
    peer = ready()
    first, second = ask(peer, 1, size=10), ask(peer, 2, size=5)
    lane = peer.lane(0)
    assert (lane.tasks, lane.size) == (2, 15)
    tell(peer, [Verb.RESULT, 2, None, b"\x05", 0])
    assert (first.ends, second.ends) == ([], [5])
    assert (lane.tasks, lane.size) == (1, 10)
    tell(peer, [Verb.RESULT, 1, None, None, 0])
    assert first.ends == [None]
    assert (lane.tasks, lane.size) == (0, 0)
    assert peer.pending == {}


def test_values_find_their_blobs() -> None:
    peer = ready()
    endings = [ask(peer, seq) for seq in (1, 2, 3)]
    text, big = "x" * INLINE, bytes(INLINE)
    long_body, _ = payload.encode(text, code=False)
    body, blobs = payload.encode([big, 1], code=False)
    peer.receive(
        encode(
            [[Verb.RESULT, 1, None, None, 1], [Verb.RESULT, 2, None, body, 1], [Verb.RESULT, 3, None, b"\x07", 0]],
            [long_body, *blobs],
        )
    )
    assert [ending.ends for ending in endings] == [[text], [[big, 1]], [7]]


def test_a_value_that_cannot_be_read_ends_its_request_alone() -> None:
    peer = ready()
    first, second = ask(peer, 1), ask(peer, 2)
    pickled = payload.encode({1, object}, code=True)[0]
    tell(peer, [Verb.RESULT, 1, None, pickled, 0], [Verb.RESULT, 2, None, b"\x07", 0])
    assert isinstance(error_of(first), errors.Unauthorized)
    assert second.ends == [7]


def test_a_pickle_is_read_where_code_may_travel() -> None:
    peer = ready(code=True)
    ending = ask(peer, 1)
    tell(peer, [Verb.RESULT, 1, None, payload.encode({1, object}, code=True)[0], 0])
    assert ending.ends == [{1, object}]


def test_a_failure_ends_its_request() -> None:
    peer = ready()
    ending = ask(peer, 1)
    head = {"error": "Cancelled", "message": "it was cancelled", "state": "cancelled", "attempts": 1}
    tell(peer, [Verb.FAILED, 1, head, None, 0])
    assert type(error_of(ending)) is Cancelled and str(error_of(ending)) == "it was cancelled"
    assert peer.lane(0).tasks == 0


def test_an_error_ends_the_request_that_it_names() -> None:
    peer = ready()
    ending = ask(peer, 3)
    tell(peer, [Verb.ERROR, 3, {"error": "ProtocolError", "message": "no kind 9", "again": False}, None, 0])
    assert str(error_of(ending)) == "no kind 9"
    assert peer.failure is None


def test_a_complaint_about_a_kind_is_none_about_the_request_of_that_number() -> None:
    peer = ready()
    ending = ask(peer, 3)
    head = {"error": "ProtocolError", "message": "no labels", "verb": int(Verb.DEFINE), "again": False}
    tell(peer, [Verb.ERROR, 3, head, None, 0], [Verb.RESULT, 3, None, b"\x05", 0])
    assert ending.ends == [5]


def test_answers_that_nobody_waits_for_are_ignored() -> None:
    peer = ready()
    tell(
        peer,
        [Verb.RESULT, 9, None, b"\xc1", 0],
        [Verb.FAILED, 9, {"error": "Expired"}, None, 0],
        [Verb.ERROR, 9, {"error": "ProtocolError"}, None, 0],
        [Verb.CHUNK, 9, None, b"\xc1", 0],
        [Verb.EVENT, 9, 1, b"\xc1", 0],
        [999, 9, {"new": True}, b"\xc1", 0],
    )
    assert peer.failure is None and sent(peer) == []


def test_a_second_answer_is_ignored() -> None:
    peer = ready()
    ending = ask(peer, 1)
    tell(peer, [Verb.RESULT, 1, None, b"\x05", 0], [Verb.RESULT, 1, None, b"\x06", 0])
    tell(peer, [Verb.FAILED, 1, {"error": "WorkerDied"}, None, 0])
    assert ending.ends == [5]


def test_a_ping_is_answered_before_all_else() -> None:
    peer = ready()
    ask(peer, 1)
    tell(peer, [Verb.PING, 8, None, None, 0], [Verb.PING, 9, None, None, 0])
    assert [record[:2] for record in sent(peer)] == [[Verb.PONG, 8], [Verb.PONG, 9], [Verb.SUBMIT, 1]]


# --- streams and subscriptions -------------------------------------------------------------------------------------


def test_parts_go_to_their_sink_until_the_end() -> None:
    peer = ready()
    ending = ask(peer, 1)
    sink = peer.sinks[1] = Sink()
    tell(peer, [Verb.CHUNK, 1, None, b"\x01", 0], [Verb.CHUNK, 1, None, None, 1], blobs=(b"\x02",))
    assert sink.got == [(1, 0, 0), (2, 0, 0)]
    tell(peer, [Verb.RESULT, 1, None, b"\xc0", 0])
    assert ending.ends == [None]


def test_events_say_their_number_and_what_was_missed() -> None:
    peer = ready()
    sink = peer.sinks[5] = Sink()
    tell(peer, [Verb.EVENT, 5, 3, b"\x01", 0], [Verb.EVENT, 5, [9, 5], b"\x02", 0])
    assert sink.got == [(1, 3, 0), (2, 9, 5)]


@pytest.mark.parametrize("verb", [Verb.FAILED, Verb.ERROR])
def test_a_failure_ends_the_sink_too(verb: Verb) -> None:
    peer = ready()
    ending = ask(peer, 1)
    sink = peer.sinks[1] = Sink()
    tell(peer, [verb, 1, {"error": "WorkerDied", "message": "gone"}, None, 0])
    assert sink.got == ending.ends and str(error_of(ending)) == "gone"
    assert peer.sinks == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_part_that_cannot_be_read_ends_its_stream_and_cancels_it(fails: bool) -> None:
    peer = ready()
    ending, other = ask(peer, 1), ask(peer, 2)
    sent(peer)
    sink = peer.sinks[1] = Sink(fails)
    body = b"\x01" if fails else b"\xc1"
    tell(peer, [Verb.CHUNK, 1, None, body, 0], [Verb.CHUNK, 1, None, b"\x02", 0], [Verb.RESULT, 2, None, b"\x07", 0])
    assert sink.got == ending.ends
    assert isinstance(error_of(ending), RuntimeError if fails else ProtocolError)
    assert other.ends == [7]
    assert sent(peer) == [[Verb.CANCEL, 1, None, None, 0]]
    tell(peer, [Verb.FAILED, 1, {"error": "Cancelled"}, None, 0])
    assert len(ending.ends) == 1 and peer.failure is None


def test_an_event_that_cannot_be_read_ends_its_subscription() -> None:
    peer = ready()
    sink, other = Sink(), Sink()
    peer.sinks |= {5: sink, 6: other}
    tell(peer, [Verb.EVENT, 5, 1, b"\xc1", 0], [Verb.EVENT, 6, 1, b"\x01", 0])
    [error] = sink.got
    assert isinstance(error, ProtocolError)
    assert other.got == [(1, 1, 0)]
    assert sent(peer) == [[Verb.UNSUBSCRIBE, 5, None, None, 0]]
    assert peer.failure is None


# --- the session and its links -------------------------------------------------------------------------------------


def test_over_a_new_link_what_did_not_arrive_is_sent_again() -> None:
    peer = ready()
    ask(peer, 1)
    first = peer.take()
    ask(peer, 2)
    second = peer.take()
    tell(peer, [Verb.PONG, 0, None, None, 0])
    ask(peer, 3)
    peer.greet()
    [[verb, number, head, _, _]] = decode(peer.take() or [])
    assert (verb, head["received"]) == (Verb.HELLO, 1)
    assert peer.take() is None
    tell(peer, [Verb.WELCOME, number, WELCOME | {"resumed": True, "received": 1}, None, 0])
    assert first is not None
    assert peer.take() == second
    assert [record[1] for record in sent(peer)] == [3]


def test_a_message_from_before_the_new_greeting_is_not_counted() -> None:
    peer = ready()
    ending = ask(peer, 1)
    sent(peer)
    peer.greet()
    tell(peer, [Verb.RESULT, 1, None, b"\x05", 0])
    assert ending.ends == []
    [[_, number, head, _, _]] = sent(peer)
    assert head["received"] == 0
    answer = WELCOME | {"resumed": True, "received": 1}
    tell(peer, [Verb.WELCOME, number, answer, None, 0])
    tell(peer, [Verb.RESULT, 1, None, b"\x05", 0])
    assert ending.ends == [5]


def test_what_the_broker_acknowledged_is_not_kept() -> None:
    peer = ready()
    for seq in (1, 2, 3):
        ask(peer, seq)
        peer.take()
    tell(peer, [Verb.ACK, 2, None, None, 0])
    peer.greet()
    greeted(peer, resumed=True, received=2)
    assert [record[1] for record in sent(peer)] == [3]


def test_an_acknowledgement_rides_along_when_one_is_due() -> None:
    peer = ready()
    for number in range(32):
        tell(peer, [Verb.PONG, number, None, None, 0])
    peer.request([Verb.SUBMIT, 1, 1, b"\x90", 0], [b"blob"])
    frames = peer.take()
    assert frames == encode([[Verb.ACK, 32, None, None, 0], [Verb.SUBMIT, 1, 1, b"\x90", 1]], [b"blob"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [({"epoch": b"other"}, "was restarted"), ({"resumed": False}, "gave this session up"), ({}, "gave this session")],
)
def test_a_broker_that_does_not_know_the_session_ends_it(answer: dict[str, Any], words: str) -> None:
    peer = ready()
    ending = ask(peer, 1)
    peer.greet()
    greeted(peer, **answer)
    assert isinstance(peer.failure, Unreachable) and words in str(peer.failure)
    assert ending.ends == [peer.failure]
    assert peer.take() is None


def test_hello_is_said_once_where_the_broker_asks_for_it_several_times() -> None:
    peer = ready()
    again = [Verb.ERROR, 0, {"error": "ProtocolError", "message": "who?", "again": True}, None, 0]
    tell(peer, again)
    tell(peer, again)
    [[verb, number, _, _, _]] = sent(peer)
    assert (verb, number) == (Verb.HELLO, 2)
    assert peer.failure is None


def test_an_error_about_the_session_ends_it() -> None:
    peer = ready()
    ending = ask(peer, 1)
    sink = peer.sinks[4] = Sink()
    tell(peer, [Verb.ERROR, 0, {"error": "Unauthorized", "message": "no"}, None, 0])
    assert type(peer.failure) is errors.Unauthorized
    assert ending.ends == sink.got == [peer.failure]
    assert peer.lane(0).tasks == 0


def test_the_brokers_bye_ends_the_session() -> None:
    peer = ready()
    ending = ask(peer, 1)
    tell(peer, [Verb.BYE, 0, None, None, 0])
    assert type(error_of(ending)) is Unreachable


@pytest.mark.parametrize(
    "frames",
    [
        [b"OMB2", b"\x90"],
        [SIGNATURE, b"\xc1"],
        encode([[Verb.ERROR, 0, "no map", None, 0]]),
        encode([[Verb.ACK, 99, None, None, 0]]),
        encode([[Verb.EVENT, 5, [1, 2, 3], b"\x01", 0]]),
        encode([[Verb.WELCOME, 1, {"omb": 1, "epoch": b"epoch", "resumed": True, "received": 99}, None, 0]]),
        encode([[Verb.WELCOME, 1, WELCOME | {"resumed": True, "limits": {"window_tasks": "many"}}, None, 0]]),
    ],
)
def test_a_broker_that_breaks_the_protocol_ends_the_session_and_nothing_raises(frames: list[bytes]) -> None:
    peer = ready()
    ending = ask(peer, 1)
    peer.sinks[5] = Sink()
    peer.receive(frames)
    assert isinstance(peer.failure, ProtocolError)
    assert ending.ends == [peer.failure]


def test_the_first_failure_stays() -> None:
    peer = ready()
    first, second = Unreachable("first"), Unreachable("second")
    peer.fail(first)
    late = ask(peer, 2)
    peer.fail(second)
    assert peer.failure is first
    assert late.ends == [second]
    peer.greet()
    assert peer.take() is None


def test_closing_ends_all_and_says_bye_behind_what_was_asked() -> None:
    peer = ready()
    endings = [ask(peer, seq) for seq in (1, 2)]
    sink = peer.sinks[9] = Sink()
    assert peer.close() == 2
    assert all(type(error_of(ending)) is BusClosed for ending in endings)
    assert [type(error) for error in sink.got] == [BusClosed]
    assert [record[0] for record in sent(peer)] == [Verb.SUBMIT, Verb.SUBMIT, Verb.BYE]
    assert peer.close() == 0


def test_closing_before_the_welcome_sends_nothing() -> None:
    peer = new()
    ending = ask(peer, 1)
    assert peer.close() == 1
    assert type(error_of(ending)) is BusClosed
    assert peer.take() is None


def test_lanes_are_counted_apart() -> None:
    peer = ready()
    assert peer.lane(1) is peer.lane(1) is not peer.lane(0)
    assert (peer.next_seq(), peer.next_seq()) == (1, 2)


# --- errors --------------------------------------------------------------------------------------------------------


def test_a_remote_error_is_rebuilt_with_its_cause() -> None:
    head = {"error": "RemoteError", "message": "ValueError: no", "type": "builtins.ValueError", "traceback": "Trace"}
    error = error_from(head, b"\x91\xa2no")
    assert isinstance(error, RemoteError)
    assert (error.type_name, error.traceback) == ("builtins.ValueError", "Trace")
    assert str(error) == "ValueError: no\n\nRemote traceback:\nTrace"
    assert repr(error.__cause__) == "ValueError('no')"


def test_a_remote_error_without_more_is_one() -> None:
    error = error_from({"error": "RemoteError"}, None)
    assert isinstance(error, RemoteError)
    assert (str(error), error.type_name, error.traceback, error.__cause__) == ("RemoteError", "", "", None)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_of_the_tree_is_known_by_its_name(name: str) -> None:
    cls = getattr(errors, name)
    if isinstance(cls, type):
        assert type(error_from({"error": name, "message": "so it is"}, None)) is cls


def test_a_newer_peers_error_is_a_task_error() -> None:
    assert type(error_from({"error": "Bewitched", "message": "a spell"}, None)) is errors.TaskError
    assert str(error_from({"error": "Bewitched"}, None)) == "Bewitched"


@pytest.mark.parametrize("head", [None, 5, ["error"], "WorkerDied"])
def test_an_error_that_is_no_map_is_a_protocol_error(head: Any) -> None:
    assert type(error_from(head, None)) is ProtocolError
