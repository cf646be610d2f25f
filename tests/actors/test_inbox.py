"""The worker's state machine, stepped by hand, and playing the workers of the transcripts."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from omnibus.actors.inbox import Inbox, Job
from omnibus.errors import ProtocolError
from omnibus.protocol import BATCH, INLINE, Record, Verb, decode, encode
from tests.support.transcripts import TRANSCRIPTS, Bindings, Happening, Transcript, mark

SESSION = bytes(16)
HELLO = {"omb": 1, "role": "worker", "session": SESSION}
WELCOME = {"omb": 1, "epoch": b"epoch"}


def new(**more: Any) -> Inbox:
    return Inbox(HELLO | more)


def sent(inbox: Inbox) -> list[Record]:
    return [record for frames in inbox.take() for record in decode(frames)]


def tell(inbox: Inbox, *records: Record, blobs: tuple[bytes, ...] = ()) -> None:
    inbox.receive(encode(records, blobs))


def welcome(inbox: Inbox, **more: Any) -> list[Record]:
    """Answer the greeting; return what goes out beside it and behind it."""
    records = sent(inbox)
    assert records[0][0] == Verb.HELLO
    tell(inbox, [Verb.WELCOME, records[0][1], WELCOME | more, None, 0])
    return records[1:] + sent(inbox)


def ready(**more: Any) -> Inbox:
    inbox = new(**more)
    resumes = {"resumed": False, "received": 0} if "resume" in more else {}
    assert welcome(inbox, **resumes) == []
    tell(inbox, [Verb.DEFINE, 3, {"fn": "math:factorial"}, None, 0])
    return inbox


def run(aid: int, kind: int = 3, body: bytes | None = b"\x90") -> Record:
    return [Verb.RUN, aid, [kind, aid * 10, 1], body, 0]


# --- the handshake -------------------------------------------------------------------------------------------------


def test_hello_goes_first_and_welcome_makes_ready() -> None:
    inbox = new()
    [[verb, number, head, _, _]] = sent(inbox)
    assert (verb, head) == (Verb.HELLO, HELLO)
    states = [inbox.ready]
    tell(inbox, [Verb.WELCOME, number, WELCOME, None, 0])
    assert [*states, inbox.ready] == [False, True]
    assert inbox.welcome == WELCOME
    assert inbox.session == SESSION


@pytest.mark.parametrize("number", [0, 1])
def test_a_refusal_stops_the_worker(number: int) -> None:
    inbox = new()
    sent(inbox)
    tell(inbox, [Verb.ERROR, number, {"error": "AlreadyExists", "message": "taken"}, None, 0])
    assert inbox.stopping and inbox.refusal == {"error": "AlreadyExists", "message": "taken"}


def test_an_error_about_one_record_stops_nothing() -> None:
    inbox = ready()
    tell(inbox, [Verb.ERROR, 5, {"error": "ProtocolError", "message": "no such attempt"}, None, 0])
    assert not inbox.stopping and inbox.refusal is None


def test_hello_is_said_again_before_what_waits_to_be_sent() -> None:
    inbox = ready()
    tell(inbox, run(1), run(2))
    inbox.answer(7, b"\xc0", ())
    again = [Verb.ERROR, 0, {"error": "ProtocolError", "again": True}, None, 0]
    tell(inbox, again)
    tell(inbox, again)
    [hello, done] = sent(inbox)
    assert hello[0] == Verb.HELLO and hello[2]["running"] == [1, 2, 7]
    assert done[:2] == [Verb.DONE, 7]


def test_a_broker_that_was_restarted_is_told_nothing_of_the_old_work() -> None:
    inbox = ready()
    tell(inbox, run(1))
    inbox.greet()
    inbox.answer(7, b"\xc0", ())
    welcome(inbox, epoch=b"other")
    assert not inbox.queue and not inbox.works and inbox.ready


def test_stop_and_bye_end_the_work_after_what_is_being_done() -> None:
    for verb, parted in ((Verb.STOP, False), (Verb.BYE, True)):
        inbox = ready()
        tell(inbox, run(1), [verb, 0, None, None, 0])
        assert inbox.stopping and inbox.parted is parted
        assert [job.aid for job in inbox.queue] == [1]


# --- work ----------------------------------------------------------------------------------------------------------


def test_jobs_are_queued_in_order_with_their_bodies_and_blobs() -> None:
    inbox = ready()
    large = msgpack.packb("x" * INLINE)
    inbox.receive(
        encode(
            [
                [Verb.RUN, 1, [3, 10, 1], b"\x91\x05", 0],
                [Verb.RUN, 2, [3, 20, 2], b"\x91\x06", 2],
                [Verb.RUN, 3, [3, 30, 1], None, 2],
                [Verb.RUN, 4, [3, 40, 1], None, 0],
            ],
            [b"one", b"two", large, b"three"],
        )
    )
    work = inbox.works[3]
    assert list(inbox.queue) == [
        Job(1, work, 10, 1, b"\x91\x05", ()),
        Job(2, work, 20, 2, b"\x91\x06", [b"one", b"two"]),
        Job(3, work, 30, 1, large, [b"three"]),
        Job(4, work, 40, 1, b"\x90", ()),
    ]


def test_a_run_of_an_unknown_kind_is_not_taken_in_silence() -> None:
    with pytest.raises(KeyError):
        tell(ready(), run(1, kind=99))


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ready().receive([b"OMB2", b"\x90"])


def test_a_verb_that_is_not_known_is_ignored() -> None:
    inbox = ready()
    tell(inbox, [999, 0, None, None, 0], run(1))
    assert len(inbox.queue) == 1


def test_a_kind_says_how_it_runs() -> None:
    inbox = ready()
    tell(inbox, [Verb.DEFINE, 4, {"method": "count", "stream": True, "timeout": 2.5}, None, 0])
    work = inbox.works[4]
    assert (work.number, work.stream, work.timeout, work.code, work.call) == (4, True, 2.5, None, None)
    assert (inbox.works[3].stream, inbox.works[3].timeout) == (False, None)


def test_code_comes_once_for_each_digest() -> None:
    inbox = ready()
    tell(inbox, [Verb.DEFINE, 4, {"code": b"d1"}, b"code", 0], [Verb.DEFINE, 5, {"code": b"d1"}, None, 0])
    tell(inbox, [Verb.DEFINE, 6, {"code": b"d2"}, None, 1], blobs=(b"more code",))
    tell(inbox, [Verb.DEFINE, 7, {"code": b"d3"}, None, 0])
    assert [inbox.works[number].code for number in (4, 5, 6, 7)] == [b"code", b"code", b"more code", None]
    assert inbox.works[4].code is inbox.works[5].code


def test_forgotten_code_is_shelved_until_it_is_wanted_again() -> None:
    inbox = ready()
    tell(inbox, [Verb.DEFINE, 4, {"code": b"d1"}, b"code", 0], [Verb.DEFINE, 5, {"code": b"d1"}, None, 0])
    tell(inbox, [Verb.FORGET, 4, None, None, 0])
    assert inbox.codes == {b"d1": b"code"}
    tell(inbox, [Verb.FORGET, 5, None, None, 0], [Verb.FORGET, 5, None, None, 0], [Verb.FORGET, 3, None, None, 0])
    assert inbox.codes == {} and inbox.works == {}
    tell(inbox, [Verb.DEFINE, 6, {"code": b"d1"}, None, 0])
    assert inbox.works[6].code == b"code"


def test_the_shelf_is_bounded() -> None:
    inbox = ready()
    half = bytes(9 * 1024 * 1024)
    for number, digest in ((4, b"d4"), (5, b"d5")):
        tell(inbox, [Verb.DEFINE, number, {"code": digest}, None, 1], blobs=(half,))
        tell(inbox, [Verb.FORGET, number, None, None, 0])
    tell(inbox, [Verb.DEFINE, 6, {"code": b"d4"}, None, 0], [Verb.DEFINE, 7, {"code": b"d5"}, None, 0])
    assert inbox.works[6].code is None and inbox.works[7].code == half


def test_a_job_in_work_outlives_its_kind() -> None:
    inbox = ready()
    tell(inbox, run(1), [Verb.FORGET, 3, None, None, 0])
    assert inbox.queue[0].work.head == {"fn": "math:factorial"}


@pytest.mark.parametrize(("body", "blobs"), [(b"\x91\x0a", ()), (None, (b"\x91\x0a",))])
def test_an_actor_is_made_by_a_job(body: bytes | None, blobs: tuple[bytes, ...]) -> None:
    inbox = new()
    welcome(inbox)
    head = {"cls": "my.module:Counter", "name": "counter"}
    tell(inbox, [Verb.DEFINE, 0, head, None, 0], [Verb.SPAWN, 9, head, body, len(blobs)], blobs=blobs)
    [job] = inbox.queue
    assert (job.aid, job.setup, job.body, list(job.blobs)) == (9, True, b"\x91\x0a", [])
    assert job.work is inbox.works[0]


def test_an_actor_is_made_of_what_its_spawn_says_where_nothing_was_defined() -> None:
    inbox = new()
    welcome(inbox)
    tell(inbox, [Verb.SPAWN, 9, {"cls": "my.module:Counter"}, None, 0])
    [job] = inbox.queue
    assert job.work.head == {"cls": "my.module:Counter"} and job.body == b"\x90"


# --- cancelling and credits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.REVOKE])
def test_what_has_not_begun_is_given_back(verb: Verb) -> None:
    inbox = ready()
    tell(inbox, run(1), run(2), run(3), [verb, 2, None, None, 0])
    assert [job.aid for job in inbox.queue] == [1, 3]
    [[answer, aid, head, body, _]] = sent(inbox)
    assert (answer, aid, head["error"], body) == (Verb.FAIL, 2, "Revoked", None)
    assert not inbox.cancelled


def test_what_has_begun_is_noted_and_the_notes_are_bounded() -> None:
    inbox = ready()
    tell(inbox, *([Verb.CANCEL, aid, None, None, 0] for aid in range(1, 300)))
    assert 299 in inbox.cancelled and 1 not in inbox.cancelled
    assert len(inbox.cancelled) <= 256
    assert sent(inbox) == []


def test_all_that_waits_is_given_back_at_the_end() -> None:
    inbox = ready()
    tell(inbox, run(1), run(2))
    inbox.give_back("its worker stops")
    inbox.bye()
    assert not inbox.queue
    assert [record[:2] for record in sent(inbox)] == [[Verb.FAIL, 1], [Verb.FAIL, 2], [Verb.BYE, 0]]


def test_credits_let_a_stream_go_on() -> None:
    inbox = ready()
    inbox.credits[1] = 2
    inbox.chunk(1, b"\x01", ())
    inbox.chunk(1, bytes(INLINE), [b"beside"])
    assert inbox.credits[1] == 0
    tell(inbox, [Verb.CREDIT, 1, 16, None, 0], [Verb.CREDIT, 2, 16, None, 0])
    assert inbox.credits == {1: 16}
    [frames] = inbox.take()
    assert decode(frames) == [[Verb.CHUNK, 1, None, b"\x01", 0], [Verb.CHUNK, 1, None, None, 2]]
    assert frames[2:] == [bytes(INLINE), b"beside"]


# --- answers -------------------------------------------------------------------------------------------------------


def test_answers_go_out_in_order_and_large_bodies_beside_the_batch() -> None:
    inbox = ready()
    inbox.answer(1, b"\x05", ())
    inbox.answer(2, bytes(INLINE - 1), [b"one"])
    inbox.answer(3, bytes(INLINE), ())
    inbox.fail(4, {"error": "RemoteError", "message": "no"}, b"\x91\xa2no")
    [frames] = inbox.take()
    assert decode(frames) == [
        [Verb.DONE, 1, None, b"\x05", 0],
        [Verb.DONE, 2, None, bytes(INLINE - 1), 1],
        [Verb.DONE, 3, None, None, 1],
        [Verb.FAIL, 4, {"error": "RemoteError", "message": "no"}, b"\x91\xa2no", 0],
    ]
    assert frames[2:] == [b"one", bytes(INLINE)]
    assert inbox.take() == []


def test_many_answers_make_several_messages() -> None:
    inbox = ready()
    for aid in range(BATCH + 1):
        inbox.answer(aid, b"\x05", [b"%d" % aid])
    made = inbox.take()
    assert [record[1] for frames in made for record in decode(frames)] == list(range(BATCH + 1))
    assert [blob for frames in made for blob in frames[2:]] == [b"%d" % aid for aid in range(BATCH + 1)]
    assert all(len(decode(frames)) <= BATCH for frames in made)


def test_a_text_that_is_not_unicode_is_sent_as_one_that_is() -> None:
    inbox = ready()
    inbox.fail(1, {"error": "RemoteError", "message": "a\ud800ü", "code": 5}, None)
    [[_, _, head, _, _]] = sent(inbox)
    assert head == {"error": "RemoteError", "message": "a\\ud800ü", "code": 5}


def test_a_cost_is_told_when_it_changed_by_half() -> None:
    inbox = ready()
    work = inbox.works[3]
    for cost in (1_000, 1_500, 2_000, 2_001, 1_001, 1_000):
        work.cost = cost
        inbox.timed(work)
    assert sent(inbox) == [[Verb.TIMED, 3, cost, None, 0] for cost in (1_000, 2_001, 1_000)]


def test_a_ping_is_answered() -> None:
    inbox = ready()
    tell(inbox, [Verb.PING, 8, None, None, 0])
    assert sent(inbox) == [[Verb.PONG, 8, None, None, 0]]


# --- sessions that resume ------------------------------------------------------------------------------------------


def test_nothing_goes_out_before_the_welcome_of_a_new_link() -> None:
    inbox = ready(resume=True)
    inbox.answer(1, b"\x05", ())
    first = inbox.take()
    inbox.answer(2, b"\x06", ())
    second = inbox.take()
    tell(inbox, run(3))
    inbox.greet()
    inbox.answer(4, b"\x07", ())
    [[verb, number, head, _, _]] = sent(inbox)
    assert (verb, number) == (Verb.HELLO, 2)
    assert head["received"] == 2        # the DEFINE and the RUN
    assert head["running"] == [3]
    assert inbox.take() == []
    tell(inbox, [Verb.WELCOME, number, WELCOME | {"resumed": True, "received": 1}, None, 0])
    assert first != second
    assert inbox.take() == [*second, encode([[Verb.DONE, 4, None, b"\x07", 0]])]


def test_a_message_from_before_the_new_greeting_is_not_taken_twice() -> None:
    inbox = ready(resume=True)
    inbox.greet()
    tell(inbox, run(1))
    assert not inbox.queue
    assert welcome(inbox, resumed=True, received=0) == []
    tell(inbox, run(1))
    assert [job.aid for job in inbox.queue] == [1]


def test_an_answer_to_an_earlier_greeting_is_ignored() -> None:
    inbox = ready(resume=True)
    inbox.answer(1, b"\x05", ())
    inbox.take()
    inbox.greet()
    sent(inbox)
    inbox.greet()
    answer = WELCOME | {"resumed": True, "received": 0}
    tell(inbox, [Verb.WELCOME, 2, answer, None, 0])
    assert [record[0] for record in sent(inbox)] == [Verb.HELLO]
    tell(inbox, [Verb.WELCOME, 3, answer, None, 0])
    assert sent(inbox) == [[Verb.DONE, 1, None, b"\x05", 0]]
    assert sent(inbox) == []


def test_an_acknowledgement_rides_along_when_one_is_due() -> None:
    inbox = ready(resume=True)
    for number in range(31):
        tell(inbox, [Verb.PONG, number, None, None, 0])
    inbox.answer(1, b"\x05", ())
    assert sent(inbox) == [[Verb.ACK, 32, None, None, 0], [Verb.DONE, 1, None, b"\x05", 0]]
    tell(inbox, [Verb.ACK, 1, None, None, 0])
    inbox.greet()
    assert welcome(inbox, resumed=True, received=1) == []


def test_hello_is_said_once_where_the_broker_asks_for_it_several_times() -> None:
    inbox = ready(resume=True)
    again = [Verb.ERROR, 0, {"error": "ProtocolError", "again": True}, None, 0]
    tell(inbox, again)
    tell(inbox, again)
    assert [record[:2] for record in sent(inbox)] == [[Verb.HELLO, 2]]


def test_a_broker_that_cannot_resume_is_spoken_to_without_counting() -> None:
    inbox = new(resume=True)
    welcome(inbox)
    for number in range(40):
        tell(inbox, [Verb.PONG, number, None, None, 0])
    inbox.answer(1, b"\x05", ())
    assert sent(inbox) == [[Verb.DONE, 1, None, b"\x05", 0]]


def test_a_session_that_the_broker_gave_up_starts_over() -> None:
    inbox = ready(resume=True)
    tell(inbox, run(1))
    inbox.answer(9, b"\x05", ())
    inbox.take()
    inbox.greet()
    assert welcome(inbox, resumed=False, received=0) == []
    assert not inbox.queue and not inbox.works
    inbox.greet()
    [[_, _, head, _, _]] = sent(inbox)
    assert head["received"] == 0


# --- the transcripts -----------------------------------------------------------------------------------------------


def workers(transcript: Transcript) -> list[str]:
    """Return the peers of a transcript that join as workers or actors, and keep their link."""
    steps = [step for turn in transcript.turns for step in turn.inputs if isinstance(step, Happening)]
    joined = [step.peer for step in steps if step.what == "joins" and step.detail["role"] in ("worker", "actor")]
    return [peer for peer in joined if not any(step.peer == peer and step.what in ("lost", "back") for step in steps)]


CASES = [(transcript, peer) for transcript in TRANSCRIPTS for peer in workers(transcript)]


@pytest.mark.parametrize(("transcript", "name"), CASES, ids=lambda case: str(case))
def test_a_worker_takes_the_work_that_it_is_sent(transcript: Transcript, name: str) -> None:
    inbox = Inbox({"omb": 1, "role": "worker", "session": mark(name)})
    names = Bindings()
    assert welcome(inbox) == []
    expected: list[Record] = []
    kinds: dict[int, Any] = {}
    for turn in transcript.turns:
        for step in turn.inputs:
            if isinstance(step, Happening):
                names.values["$" + step.peer] = mark(step.peer)
        for message in turn.outputs:
            for record, blobs in names.invent(message) if message.peer == name else ():
                tell(inbox, record, blobs=tuple(blobs))
                note(record, blobs, expected, kinds)
    taken = [[job.aid, job.work.head, job.seq, job.attempt, job.body, list(job.blobs)] for job in inbox.queue]
    assert taken == expected
    assert {number: work.head for number, work in inbox.works.items()} == kinds


def note(record: Record, blobs: list[bytes], expected: list[Record], kinds: dict[int, Any]) -> None:
    """Keep the books that the inbox should keep."""
    verb, about, head, body, _ = record
    if body is None:
        body, blobs = (blobs[0], blobs[1:]) if blobs else (b"\x90", [])
    match verb:
        case Verb.DEFINE:
            kinds[about] = head
        case Verb.FORGET:
            kinds.pop(about, None)
        case Verb.RUN:
            expected.append([about, kinds[head[0]], head[1], head[2], body, blobs])
        case Verb.SPAWN:
            expected.append([about, kinds[0], 0, 1, body, blobs])
        case Verb.CANCEL | Verb.REVOKE:
            expected[:] = [job for job in expected if job[0] != about]


def test_workers_are_played() -> None:
    assert len(CASES) > 20
