"""Topics: what was published lately, numbered, and who follows it.

Each topic keeps its last messages, bounded in number and bytes. A subscription is a cursor into that: it gets what it has credit
for, in order; where it fell behind what is kept, it is told how many it missed. Nothing is dropped in silence, and a slow
subscriber costs the broker no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnibus.protocol import Blob, Verb

if TYPE_CHECKING:
    from .peers import Peer

__all__ = ["Subscription", "Topic", "Topics"]


class Topic:
    """The last messages of one name. ``first`` is the number of the oldest kept, ``next`` that of the next to come; numbers begin at 1."""

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
        while self.credit > 0 and self.cursor < topic.next:
            missed = max(0, topic.first - self.cursor)
            self.cursor += missed
            if self.cursor >= topic.next:
                return
            body, blobs, _ = topic.kept[self.cursor - topic.first]
            head = [self.cursor, missed] if missed else self.cursor
            self.peer.put([Verb.EVENT, self.sid, head, body, len(blobs)], blobs)
            self.cursor += 1
            self.credit -= 1


class Topics:
    """Every topic by name. ``keep`` messages and ``keep_bytes`` are kept of each; at most ``most`` topics exist."""

    def __init__(self, keep: int = 10_000, keep_bytes: int = 16 << 20, most: int = 10_000) -> None:
        self._topics: dict[str, Topic] = {}
        self._following: dict[tuple[bytes, int], Subscription] = {}
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._most = most

    def get(self, name: str) -> Topic | None:
        """Return the topic, made on first use; ``None`` when there are too many and none can go."""
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= self._most and not self._evict():
                return None
            topic = self._topics[name] = Topic(name)
        return topic

    def _evict(self) -> bool:
        idle = next((name for name, topic in self._topics.items() if not topic.followers), None)
        if idle is not None:
            del self._topics[idle]
        return idle is not None

    def publish(self, topic: Topic, body: bytes | None, blobs: Sequence[Blob]) -> int:
        """Keep a message, hand it to the followers that have credit, and return its number."""
        size = (len(body) if body else 0) + sum(len(blob) for blob in blobs)
        topic.kept.append((body, blobs, size))
        topic.size += size
        number = topic.next
        topic.next += 1
        for follower in topic.followers.values():
            follower.advance()
        while len(topic.kept) > self._keep or (topic.size > self._keep_bytes and len(topic.kept) > 1):
            topic.size -= topic.kept.popleft()[2]
            topic.first += 1
        return number

    def subscribe(self, peer: Peer, sid: int, topic: Topic, since: int | None, credit: int) -> Subscription:
        """Follow ``topic`` from number ``since`` on (``None``: from the next to come); a known ``sid`` is replaced."""
        self.unsubscribe(peer.session, sid)
        cursor = topic.next if since is None else max(1, since)
        follower = Subscription(peer, sid, topic, min(cursor, topic.next), credit)
        topic.followers[peer.session, sid] = self._following[peer.session, sid] = follower
        follower.advance()
        return follower

    def credit(self, session: bytes, sid: int, count: int) -> bool:
        """Let a subscription be sent ``count`` more; false where there is none of that number."""
        follower = self._following.get((session, sid))
        if follower is None:
            return False
        follower.credit += count
        follower.advance()
        return True

    def unsubscribe(self, session: bytes, sid: int) -> None:
        """Forget a subscription; unknown ones are ignored."""
        follower = self._following.pop((session, sid), None)
        if follower is not None:
            del follower.topic.followers[session, sid]

    def forget(self, session: bytes) -> None:
        """Forget all subscriptions of a session that ended."""
        for owner, sid in [key for key in self._following if key[0] == session]:
            self.unsubscribe(owner, sid)
