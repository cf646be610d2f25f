"""REQ peers: exactly one message for each that they sent, once all that it asked is answered.

What the broker has to say of itself, an event say, waits for the next reply. A reply may get lost with its link; a
REQ peer that begins anew on another link is told its answers again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnibus.protocol import Record, Verb, encode

from .peers import Client

if TYPE_CHECKING:
    from .peers import Peer
    from .state import Message

__all__ = ["expect_answers", "repeat_reply", "reply"]

_TASKS = frozenset({int(Verb.SUBMIT), int(Verb.ASK), int(Verb.TELL)})
_QUESTIONS = frozenset(
    int(verb) for verb in (Verb.SPAWN, Verb.STOP, Verb.STATUS, Verb.FETCH, Verb.PUBLISH, Verb.SUBSCRIBE)
)
_ENDS = frozenset({int(Verb.RESULT), int(Verb.FAILED)})


def _answers(record: Record) -> bool:
    """Return whether a record answers a request of its number; an ERROR may be about a kind of that number instead."""
    verb, _, head, _, _ = record
    return verb in _ENDS or (verb == Verb.ERROR and (head["verb"] in _TASKS or head["verb"] in _QUESTIONS))


def expect_answers(peer: Peer, records: list[Record]) -> None:
    """Note which numbers of a message, whose records were handled just now, are still to be answered."""
    assert peer.requests is not None
    answered = {record[1] for record in peer.records if _answers(record)}
    unanswered: set[int] = set()
    for verb, about, *_ in records:
        if about in answered or not isinstance(peer, Client):
            continue
        task = peer.tasks.get(about)
        if (verb in _TASKS and task is not None and not task.kind.silent) or (verb in _QUESTIONS and about):
            unanswered.add(about)
    peer.requests.append(unanswered)
    peer.stir()


def reply(peer: Peer, messages: list[Message]) -> None:
    """Append the replies that are complete by now to ``messages``."""
    requests = peer.requests
    assert requests is not None and peer.route is not None
    for record in peer.records:
        if _answers(record):
            for unanswered in requests:
                unanswered.discard(record[1])
    while requests and not requests[0]:
        requests.popleft()
        peer.reply = records, blobs = peer.records, peer.blobs
        peer.records, peer.blobs = [], []
        messages.append((peer.route, [b"", *encode(records, blobs)]))


def repeat_reply(peer: Peer) -> None:
    """Queue the answers of the last reply again, in front of all else, and expect no requests of the old link's."""
    assert peer.requests is not None
    peer.requests.clear()
    records, blobs = peer.reply
    peer.reply = [], []
    kept: list[Record] = []
    owned: list[object] = []
    at = 0
    for record in records:
        if record[0] in _ENDS or record[0] == Verb.ERROR:
            kept.append(record)
            owned += blobs[at : at + record[4]]
        at += record[4]
    peer.records[:0] = kept
    peer.blobs[:0] = owned
