"""The broker as a whole: what comes in, what goes out, and when it wants to be called."""

from __future__ import annotations

import pytest

from omnibus.brokers.core import Broker
from omnibus.protocol import BATCH, Record, Verb, encode
from tests.brokers.support import EPOCH, Recorder, define, done, hello, submit

PING: Record = [Verb.PING, 77, None, None, 0]

# ---------------------------------------------------------------------- what is not understood


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"OMB1"],
        [b"OMB2", b"\x90"],
        [b"OMB1", b"\xc1"],
        [b"OMB1", b"\x80"],
        [b"OMB1", b"\x91\x90"],
        [b"OMB1", b"\x90", b"a blob too many"],
        encode([[1, 2, 3, "text", 0]]),
        encode([[1, -2, None, None, 0]]),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_malformed_message_is_answered_to_its_sender(broker: Recorder, frames: list[bytes], known: bool) -> None:
    link = broker.client() if known else broker.link()
    link.lockstep = frames[:1] == [b""] and not known
    broker.receive(link.route, frames)
    broker.step()
    assert link.claim(Verb.ERROR, 0, error="ProtocolError", again=False).head["message"]
    assert len(broker.whats("refused")) == 1
    assert known == (link.session in broker.mesh.sessions)


def test_the_rest_of_a_message_goes_on_behind_a_fault(broker: Recorder) -> None:
    client = broker.client({})
    client.send([999, 5, None, None, 0], [Verb.SUBMIT, 6, 99, None, 0], submit(7), [Verb.RUN, 8, None, None, 0])
    assert "unknown verb 999" in client.claim(Verb.ERROR, 5, verb=999).head["message"]
    client.claim(Verb.ERROR, 6)
    assert "RUN from a client is not understood" in client.claim(Verb.ERROR, 8).head["message"]
    assert broker.counts()["queued"] == 1


def test_a_bye_among_blobs_ends_the_message(broker: Recorder) -> None:
    client = broker.client({})
    bye: Record = [Verb.BYE, 0, None, None, 0]
    client.send([Verb.SUBMIT, 1, 1, None, 1], bye, [Verb.SUBMIT, 2, 1, None, 1], blobs=[b"x", b"y"])
    assert broker.counts() == {"submitted": 1, "cancelled": 1, "dropped": 1}


def test_a_fault_behind_blobs_does_not_shift_them(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker()
    client.send([999, 5, None, None, 1], [Verb.SUBMIT, 7, 1, None, 1], blobs=[b"x", b"y"])
    client.claim(Verb.ERROR, 5)
    assert worker.run().blobs == [b"y"]


def test_an_error_that_is_no_omnibus_error_is_answered_too(broker: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker.client({})

    def fall_over(*_: object) -> None:
        raise KeyError("inside")

    broker.forgiving = True
    monkeypatch.setattr(broker.mesh.topics, "unsubscribe", fall_over)
    client.send([Verb.UNSUBSCRIBE, 4, None, None, 0])
    assert "malformed (KeyError('inside'))" in client.claim(Verb.ERROR, 4).head["message"]


def test_a_message_without_records_is_no_fault(broker: Recorder) -> None:
    client = broker.client()
    client.send()
    client.nothing()


# ---------------------------------------------------------------------- liveness


def test_a_ping_is_answered_with_its_number(broker: Recorder) -> None:
    for link in (broker.client(), broker.worker(), broker.node()):
        link.send(PING)
        link.claim(Verb.PONG, 77)


def test_a_quiet_peer_is_probed_and_a_busy_one_is_not(broker: Recorder) -> None:
    quiet, busy = broker.client(), broker.client()
    quiet.pings = busy.pings = False
    for _ in range(3):
        broker.step(0.5)
        busy.send([Verb.CANCEL, 1, None, None, 0])
    quiet.claim(Verb.PING, 0)
    quiet.nothing()
    busy.nothing()
    broker.step(1.6)
    quiet.claim_all(Verb.PING, Verb.PING)
    busy.claim(Verb.PING, 0)


def test_a_probe_finds_a_broken_link(broker: Recorder) -> None:
    client = broker.client()
    client.break_link(noticed=False)
    broker.step(1.1)
    assert broker.whats("lost") == ["its link broke"]


def test_an_idle_broker_wakes_up_for_the_probe_alone(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker(broker.node())
    for seq in range(1, 20):
        client.send(submit(seq))
        worker.send(done(worker.run().id))
        client.claim(Verb.RESULT, seq)
    broker.step(1)
    assert broker.mesh.timers == []
    assert broker.broker.next_deadline() == broker.now + broker.mesh.settings.probe
    assert not broker.broker.pending()


# ---------------------------------------------------------------------- output


def test_output_is_packed_in_batches_with_the_blobs_of_their_records(broker: Recorder) -> None:
    client, worker = broker.client({}), broker.worker(credits=1000)
    client.send(submit(1))
    run = worker.run()
    worker.send([Verb.TIMED, run.head[0], 1000, None, 0], done(run.id))
    client.claim(Verb.RESULT, 1)
    before = worker.messages
    records: list[Record] = [[Verb.SUBMIT, seq, 1, None, seq % 2] for seq in range(2, 302)]
    client.send(*records, blobs=[b"%d" % seq for seq in range(2, 302) if seq % 2])
    assert worker.messages - before == -(-300 // BATCH)
    runs = worker.runs()
    assert [run.head[1] for run in runs] == list(range(2, 302))
    assert all(run.blobs == ([b"%d" % run.head[1]] if run.head[1] % 2 else []) for run in runs)


def test_messages_are_acknowledged_in_both_directions(broker: Recorder) -> None:
    client, worker = broker.client({}, resume=True), broker.worker()
    for seq in range(1, 201):
        client.send(submit(seq))
        worker.send(done(worker.run().id))
        client.claim(Verb.RESULT, seq)
    channel = client.as_client().channel
    assert channel is not None
    assert client.channel is not None
    assert 0 < client.channel.unacknowledged < 40
    assert channel.unacknowledged < 100, "it is asked when it says nothing by itself"


def test_a_peer_that_acknowledges_nothing_costs_a_bounded_number_of_messages(
    broker: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnibus.brokers.core._MOST", 100)
    client = broker.client(resume=True)
    client.pings = False
    for number in range(1, 301):
        client.send([Verb.PING, number, None, None, 0])
    channel = client.as_client().channel
    assert channel is not None
    assert channel.unacknowledged == 100
    client.break_link()
    assert client.channel is not None
    client.channel.received = 150
    back = client.relink("client")
    back.claim(Verb.WELCOME, resumed=False)
    client.claim_all()


@pytest.mark.parametrize("count", [1000, 1 << 62])
def test_an_acknowledgement_of_what_was_never_sent_is_a_fault(broker: Recorder, count: int) -> None:
    client = broker.client(resume=True)
    client.send([Verb.ACK, count, None, None, 0])
    client.claim(Verb.ERROR, 0)


def test_a_peer_that_does_not_count_has_nothing_to_acknowledge(broker: Recorder) -> None:
    client = broker.client()
    client.send([Verb.ACK, 1, None, None, 0])
    client.claim(Verb.ERROR, 1)


def test_pending_says_that_there_is_something_to_do() -> None:
    core = Broker(EPOCH, 0.0)
    assert not core.pending()
    core.receive(b"route", encode([hello("client", b"session-")]), 0.0)
    assert core.pending()
    core.advance(0.0)
    core.output()
    core.receive(b"route", encode([define(1), submit(1)]), 0.0)
    assert core.pending()
    core.advance(0.0)
    assert not core.pending()
    core.peer_died(b"session-", 0.0, "it died")
    assert [event.what for event in core.events()] == ["joined", "left"]


def test_numbers_of_attempts_and_commands_differ_from_epoch_to_epoch() -> None:
    ones, others = Broker(b"\1\2\3epoch", 0.0), Broker(b"\1\2\4epoch", 0.0)
    assert ones.mesh.attempt() != others.mesh.attempt()
    assert ones.mesh.command() != others.mesh.command()
    assert ones.mesh.attempt() < 1 << 63


def test_an_unknown_peers_death_and_a_failed_send_to_nobody_are_nothing(broker: Recorder) -> None:
    broker.broker.peer_died(b"nobody--", broker.now, "it died")
    broker.broker.send_failed(b"nowhere", broker.now)
    broker.step()
    assert broker.events == []


def test_an_error_is_never_answered(broker: Recorder) -> None:
    for link in (broker.client(), broker.worker(), broker.node()):
        link.send([Verb.ERROR, 3, {"error": "ProtocolError", "message": "no", "again": False}, None, 0])
        link.nothing()
