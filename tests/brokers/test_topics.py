"""Topics: replay, gaps, credit, and their bounds; and as peers ask for them."""

from __future__ import annotations

import msgpack
import pytest

from omnibus.brokers.hello import Hello
from omnibus.brokers.peers import Client
from omnibus.brokers.topics import Subscription, Topics
from omnibus.errors import CapacityExceeded
from omnibus.protocol import Record, Verb
from tests.brokers.support import Link, Recorder


def follower(topics: Topics, name: str, since: int | None, credit: int = 100, sid: int = 1) -> Subscription:
    peer = Client(Hello(b"session-", "client"), b"route", [], 0.0)
    found = topics.subscribe(peer, sid, topics.get(name), since, credit)
    found.advance()
    return found


def heads(subscription: Subscription) -> list[object]:
    """Take the heads of the events that it got."""
    records, subscription.peer.records = subscription.peer.records, []
    return [record[2] for record in records]


def publish(topics: Topics, name: str, *bodies: bytes) -> None:
    for body in bodies:
        topics.publish(topics.get(name), body, ())
        topics.check_invariants()


def test_messages_are_numbered_from_one_and_replayed_from_any_number() -> None:
    topics = Topics()
    publish(topics, "t", b"a", b"b", b"c")
    assert heads(follower(topics, "t", 1)) == [1, 2, 3]
    assert heads(follower(topics, "t", 3)) == [3]
    assert heads(follower(topics, "t", 0)) == [1, 2, 3]
    assert heads(follower(topics, "t", 99)) == []


def test_without_since_it_begins_with_the_next() -> None:
    topics = Topics()
    publish(topics, "t", b"a")
    one = follower(topics, "t", None)
    publish(topics, "t", b"b")
    assert heads(one) == [2]


def test_a_gap_is_reported_once() -> None:
    topics = Topics(keep=2)
    publish(topics, "t", b"a", b"b", b"c", b"d")
    assert heads(follower(topics, "t", 1)) == [[3, 2], 4]


def test_credit_bounds_what_is_sent() -> None:
    topics = Topics()
    one = follower(topics, "t", 1, credit=2)
    publish(topics, "t", *[b"x"] * 5)
    assert heads(one) == [1, 2]
    topics.credit(b"session-", 1, 2)
    assert heads(one) == [3, 4]
    topics.credit(b"session-", 7, 2)
    topics.credit(b"nobody--", 1, 2)
    assert heads(one) == []


def test_a_slow_follower_misses_what_is_not_kept_and_is_told() -> None:
    topics = Topics(keep=3)
    one = follower(topics, "t", 1, credit=1)
    publish(topics, "t", *[b"x"] * 10)
    assert heads(one) == [1]
    topics.credit(b"session-", 1, 5)
    assert heads(one) == [[8, 6], 9, 10]


def test_a_gap_up_to_the_end_is_told_with_the_next_message() -> None:
    topics = Topics(most_bytes=100)
    one = follower(topics, "t", 1, credit=0)
    publish(topics, "t", bytes(40), bytes(40))
    publish(topics, "u", bytes(100))
    assert not topics.get("t").kept
    topics.credit(b"session-", 1, 5)
    assert heads(one) == []
    publish(topics, "t", b"x")
    assert heads(one) == [[3, 2]]


def test_a_subscription_is_replaced_and_ended_by_its_number() -> None:
    topics = Topics()
    first = follower(topics, "t", None)
    second = topics.subscribe(first.peer, 1, topics.get("u"), None, 5)
    publish(topics, "t", b"x")
    publish(topics, "u", b"x")
    assert heads(second) == [1]
    topics.unsubscribe(b"session-", 1)
    topics.unsubscribe(b"session-", 1)
    publish(topics, "u", b"x")
    assert heads(second) == []


def test_bytes_are_bounded_for_each_and_for_all() -> None:
    topics = Topics(keep_bytes=100, most_bytes=250)
    publish(topics, "a", bytes(40), bytes(40), bytes(40))
    assert topics.get("a").first == 2
    publish(topics, "b", bytes(90))
    publish(topics, "c", bytes(90))
    assert topics.size <= 250
    assert topics.get("a").first == 3, "the topic that was quiet for longest gave way"
    publish(topics, "big", bytes(1000))
    assert topics.get("big").kept, "the last message is kept, however large"
    assert topics.size == 1000


def test_topics_without_followers_give_way_to_new_ones() -> None:
    topics = Topics(most=2)
    follower(topics, "followed", None)
    publish(topics, "old", b"x")
    publish(topics, "new", b"x")
    assert len(topics) == 2
    assert topics.get("followed").followers
    follower(topics, "new", None, sid=2)
    with pytest.raises(CapacityExceeded, match="2 topics are followed"):
        topics.get("more")


def test_subscriptions_of_a_session_are_bounded_and_end_with_it() -> None:
    topics = Topics(most_followed=2)
    one = follower(topics, "a", None, sid=1)
    topics.subscribe(one.peer, 2, topics.get("a"), None, 1)
    with pytest.raises(CapacityExceeded, match="2 subscriptions"):
        topics.subscribe(one.peer, 3, topics.get("a"), None, 1)
    topics.subscribe(one.peer, 2, topics.get("b"), None, 1)
    topics.forget(b"session-")
    topics.forget(b"session-")
    topics.check_invariants()
    assert not topics.get("a").followers
    assert not topics.get("b").followers


# ---------------------------------------------------------------------- as peers ask


def publishing(number: int, topic: object, body: bytes = b"news") -> Record:
    return [Verb.PUBLISH, number, {"topic": topic}, body, 0]


def follow(client: Link, sid: int, **head: object) -> int:
    client.send([Verb.SUBSCRIBE, sid, {"topic": "t", **head}, None, 0])
    first: int = msgpack.unpackb(client.claim(Verb.RESULT, sid).body)
    return first


def test_publishing_answers_with_the_number_where_one_is_wanted(broker: Recorder) -> None:
    client = broker.client()
    client.send(publishing(0, "t"), publishing(7, "t"))
    assert msgpack.unpackb(client.claim(Verb.RESULT, 7).body) == 2


def test_events_come_after_the_answer_and_with_their_blobs(broker: Recorder) -> None:
    client = broker.client()
    client.send([Verb.PUBLISH, 0, {"topic": "t"}, None, 2], blobs=[b"one", b"two"])
    client.send([Verb.SUBSCRIBE, 3, {"topic": "t", "since": 1}, None, 0])
    assert msgpack.unpackb(client.claim(Verb.RESULT, 3).body) == 1
    event = client.claim(Verb.EVENT, 3)
    assert (event.head, event.body, event.blobs) == (1, None, [b"one", b"two"])


def test_workers_and_nodes_publish_too(broker: Recorder) -> None:
    client, worker, node = broker.client(), broker.worker(), broker.node()
    assert follow(client, 1) == 1
    worker.send(publishing(0, "t"))
    node.send(publishing(5, "t"))
    assert [event.head for event in client.claim_all(Verb.EVENT, Verb.EVENT)] == [1, 2]
    assert msgpack.unpackb(node.claim(Verb.RESULT, 5).body) == 2


def test_credit_and_unsubscribe_by_number(broker: Recorder) -> None:
    client = broker.client()
    follow(client, 4, credit=0)
    client.send(publishing(0, "t"))
    client.nothing()
    client.send([Verb.CREDIT, 4, 10, None, 0])
    client.claim(Verb.EVENT, 4)
    client.send([Verb.UNSUBSCRIBE, 4, None, None, 0])
    client.send(publishing(0, "t"))


@pytest.mark.parametrize("topic", [None, "", 5, "x" * 257, ["t"]])
def test_a_topic_is_a_name(broker: Recorder, topic: object) -> None:
    client = broker.client()
    client.send(publishing(1, topic), [Verb.SUBSCRIBE, 2, {"topic": topic}, None, 0])
    for number in (1, 2):
        assert "'topic' must be" in client.claim(Verb.ERROR, number).head["message"]


@pytest.mark.parametrize("head", [{"since": -1}, {"since": "x"}, {"credit": -1}, {"credit": 1.5}, {"credit": 1 << 40}])
def test_since_and_credit_are_checked_and_nothing_is_followed(broker: Recorder, head: dict[str, object]) -> None:
    client = broker.client()
    client.send([Verb.SUBSCRIBE, 2, {"topic": "t", **head}, None, 0])
    client.claim(Verb.ERROR, 2)
    client.send(publishing(0, "t"))


def test_a_follower_that_leaves_is_forgotten(broker: Recorder) -> None:
    client, other = broker.client(), broker.client()
    follow(client, 1)
    client.send([Verb.BYE, 0, None, None, 0])
    other.send(publishing(0, "t"))
    assert not broker.mesh.topics.get("t").followers
