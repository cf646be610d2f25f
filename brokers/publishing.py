"""Topics as peers ask for them: publish, follow, give credit, stop following."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from omnibus.protocol import Blob, Verb

from .reading import Reader

if TYPE_CHECKING:
    from .peers import Client, Peer
    from .state import Mesh

__all__ = ["on_publish", "on_subscribe", "on_unsubscribe"]

_CREDIT = 1024
_MOST_CREDIT = 1 << 32
_NUMBER = (1 << 64) - 1


def on_publish(mesh: Mesh, peer: Peer, about: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Publish a message under the topic that the head names; with a non-zero id, its number is the RESULT."""
    topic = mesh.topics.get(_name(Reader(head, f"PUBLISH {about}", mesh.limits)))
    number = mesh.topics.publish(topic, body, blobs)
    if about:
        peer.put([Verb.RESULT, about, None, msgpack.packb(number), 0])


def on_subscribe(mesh: Mesh, client: Client, sid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Follow a topic from ``since`` on, or from now; RESULT carries the number that comes first."""
    read = Reader(head, f"SUBSCRIBE {sid}", mesh.limits)
    name = _name(read)
    since = read.integer("since", 0, 0, _NUMBER) if "since" in read else None
    credit = read.integer("credit", _CREDIT, 0, _MOST_CREDIT)
    follower = mesh.topics.subscribe(client, sid, mesh.topics.get(name), since, credit)
    client.put([Verb.RESULT, sid, None, msgpack.packb(follower.cursor), 0])
    follower.advance()


def on_unsubscribe(mesh: Mesh, client: Client, sid: int, head: Any, body: bytes | None, blobs: Sequence[Blob]) -> None:
    """Stop following."""
    mesh.topics.unsubscribe(client.session, sid)


def _name(read: Reader) -> str:
    name = read.text("topic")
    if name is None:
        raise read.wrong("topic", "a name")
    return name
