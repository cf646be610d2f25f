"""Topics: what was published lately, numbered, and who follows it.

Each topic keeps its last messages, bounded in number and bytes. A subscription is a cursor into that: it gets
what it has credit for, in order; where it fell behind what is kept, it is told how many it missed. Nothing is
dropped in silence, and a slow subscriber costs the broker no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnibus.errors import CapacityExceeded
from omnibus.protocol import Blob, Verb

from .tasks import size_of

if TYPE_CHECKING:
    from .peers import Peer

__all__ = ["Subscription", "Topic", "Topics"]


class Topic:
    """The last messages of one name, numbered from 1: ``first`` is the oldest kept, ``next`` the next to come."""

    __slots__ = ("first", "followers", "kept", "name", "next", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: deque[tuple[bytes | None, Sequence[Blob], int]] = deque()
        self.followers: dict[tuple[bytes, int], Subscription] = {}
        self.first = 1
        self.next = 1
        self.size = 0


class Subscription:
    """One follower of one topic: the next number that it wants, and how many it may still be sent."""

    __slots__ = ("credit", "cursor", "peer", "sid", "topic")

    def __init__(self, peer: Peer, sid: int, topic: Topic, cursor: int, credit: int) -> None:
        self.peer = peer
        self.sid = sid
        self.topic = topic
        self.cursor = cursor
        self.credit = credit

    def advance(self) -> None:
        """Send what it wants and has credit for. An EVENT's head is its number, or ``[number, missed]`` after a gap."""
        topic = self.topic
        while self.credit > 0:
            number = max(self.cursor, topic.first)
            if number >= topic.next:
                return  # where all that it missed is gone, it is told with the next one
            body, blobs, _ = topic.kept[number - topic.first]
            head = number if number == self.cursor else [number, number - self.cursor]
            self.peer.put([Verb.EVENT, self.sid, head, body, len(blobs)], blobs)
            self.cursor = number + 1
            self.credit -= 1


class Topics:
    """Every topic by name.

    ``keep`` messages and ``keep_bytes`` are kept of each, ``most_bytes`` of all together. At most ``most`` topics
    exist, and ``most_followed`` subscriptions of one session.
    """

    def __init__(
        self,
        keep: int = 10_000,
        keep_bytes: int = 16 << 20,
        *,
        most: int = 10_000,
        most_bytes: int = 256 << 20,
        most_followed: int = 1_024,
    ) -> None:
        self.size = 0
        self._topics: dict[str, Topic] = {}  # that which was published to longest ago comes first
        self._following: dict[bytes, dict[int, Subscription]] = {}
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._most = most
        self._most_bytes = most_bytes
        self._most_followed = most_followed

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic:
        """Return the topic, made on first use; raises :class:`CapacityExceeded` for too many of which none can go."""
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= self._most:
                self._evict()
            topic = self._topics[name] = Topic(name)
        return topic

    def _evict(self) -> None:
        for name, topic in self._topics.items():
            if not topic.followers:
                self.size -= topic.size
                del self._topics[name]
                return
        raise CapacityExceeded(f"{len(self._topics)} topics are followed, the limit: use fewer names, or unsubscribe")

    def publish(self, topic: Topic, body: bytes | None, blobs: Sequence[Blob]) -> int:
        """Keep a message, hand it to the followers that have credit, and return its number."""
        size = size_of(body, blobs)
        topic.kept.append((body, blobs, size))
        topic.size += size
        self.size += size
        number = topic.next
        topic.next += 1
        self._topics[topic.name] = self._topics.pop(topic.name)
        for follower in topic.followers.values():
            follower.advance()
        while len(topic.kept) > self._keep or (topic.size > self._keep_bytes and len(topic.kept) > 1):
            self._forget_oldest(topic)
        if self.size > self._most_bytes:
            self._shrink(topic)
        return number

    def _shrink(self, latest: Topic) -> None:
        """Forget messages of the topics that were quiet for longest, until all together are small enough again."""
        for topic in self._topics.values():
            while topic.kept and (topic is not latest or len(topic.kept) > 1):
                self._forget_oldest(topic)
                if self.size <= self._most_bytes:
                    return

    def _forget_oldest(self, topic: Topic) -> None:
        size = topic.kept.popleft()[2]
        topic.size -= size
        self.size -= size
        topic.first += 1

    def subscribe(self, peer: Peer, sid: int, topic: Topic, since: int | None, credit: int) -> Subscription:
        """Follow ``topic`` from number ``since`` on (``None``: from the next to come); a known ``sid`` is replaced.

        The caller lets it :meth:`~Subscription.advance` once the request is answered. Raises
        :class:`CapacityExceeded` where the session follows too many.
        """
        self.unsubscribe(peer.session, sid)
        mine = self._following.get(peer.session, {})
        if len(mine) >= self._most_followed:
            raise CapacityExceeded(f"{peer} has {len(mine)} subscriptions, the limit: unsubscribe from some first")
        cursor = topic.next if since is None else min(max(1, since), topic.next)
        follower = Subscription(peer, sid, topic, cursor, credit)
        mine[sid] = topic.followers[peer.session, sid] = follower
        self._following[peer.session] = mine
        return follower

    def credit(self, session: bytes, sid: int, count: int) -> None:
        """Let a subscription be sent ``count`` more; unknown ones are ignored, for they may just have ended."""
        follower = self._following.get(session, {}).get(sid)
        if follower is not None:
            follower.credit += count
            follower.advance()

    def unsubscribe(self, session: bytes, sid: int) -> None:
        """Forget a subscription; unknown ones are ignored."""
        mine = self._following.get(session, {})
        follower = mine.pop(sid, None)
        if follower is not None:
            del follower.topic.followers[session, sid]
            if not mine:
                del self._following[session]

    def forget(self, session: bytes) -> None:
        """Forget all subscriptions of a session that ended."""
        for sid in list(self._following.get(session, {})):
            self.unsubscribe(session, sid)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the indexes do not agree; for tests."""
        for name, topic in self._topics.items():
            assert topic.name == name, f"topic {name} is misfiled"
            assert len(topic.kept) == topic.next - topic.first, f"topic {name}: its numbers are off"
            assert topic.size == sum(size for _, _, size in topic.kept), f"topic {name}: its size is off"
        assert self.size == sum(topic.size for topic in self._topics.values()), "topics: the size of all is off"
        followed = {(session, sid): one for session, mine in self._following.items() for sid, one in mine.items()}
        assert all(self._following.values()), "topics: a session follows nothing and is kept"
        following = {key: one for topic in self._topics.values() for key, one in topic.followers.items()}
        assert followed == following, "topics: followers and subscriptions differ"
