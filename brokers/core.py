"""The broker as a state machine: frames and ``now`` in; frames, events and the next deadline out. No I/O.

A shell polls its socket, gives each message to :meth:`Broker.receive`, calls :meth:`Broker.advance` once a turn,
sends what :meth:`Broker.output` returns and reports what could not be sent to :meth:`Broker.send_failed`.
Whatever a peer sends, ``receive`` does not raise: a fault is answered by an ERROR to that peer alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from omnibus.errors import OmnibusError, ProtocolError
from omnibus.protocol import VERSION, Blob, Record, Verb, decode, split_delimiter
from omnibus.protocol import messages as split

from .clients import CLIENT_HANDLERS
from .dispatch import dispatch
from .events import Event
from .invariants import check_invariants
from .lockstep import expect_answers, reply
from .nodes import NODE_HANDLERS
from .peers import Peer
from .placement import grow
from .recall import watch
from .sessions import greet, leave, lose_link, probe, stray
from .state import Mesh, Message, Settings
from .workers import WORKER_HANDLERS

__all__ = ["Broker", "Event", "Message"]

_Handler = Callable[[Mesh, Any, int, Any, bytes | None, Sequence[Blob]], None]
_HANDLERS: dict[str, dict[int, _Handler]] = {
    "client": dict(CLIENT_HANDLERS),
    "worker": dict(WORKER_HANDLERS),
    "actor": dict(WORKER_HANDLERS),
    "node": dict(NODE_HANDLERS),
}
_UNANSWERED = frozenset({int(Verb.HELLO), int(Verb.PONG), int(Verb.ERROR)})
"""Verbs that are passed over where they have no meaning; were an ERROR answered, two peers could go on for ever."""
_VERBS = {int(verb): verb.name for verb in Verb}
_MANY = 64
_MOST = 16_384
"""Unacknowledged messages after which a peer is asked about them, and those that are kept at most."""


class Broker:
    """One broker's core.

    ``epoch`` are eight random bytes that name this life of the broker, ``version`` is the package's, for the
    handshake.
    """

    def __init__(self, epoch: bytes, now: float, settings: Settings | None = None, *, version: str = "0") -> None:
        self.mesh = Mesh(epoch, now, settings or Settings(), first=int.from_bytes(epoch[:3], "big") << 32)
        self._version = version
        self._probe_at = now + self.mesh.settings.probe

    # ------------------------------------------------------------------ input

    def receive(self, route: bytes, frames: Sequence[Blob], now: float) -> None:
        """Take one message that came over ``route``; ``frames`` are all that followed the routing id."""
        mesh = self.mesh
        mesh.now = now
        peer = mesh.routes.get(route)
        lockstep, frames = split_delimiter(frames)
        try:
            records = decode(frames, mesh.limits)
        except ProtocolError as error:
            self._malformed(route, peer, lockstep, error)
            return
        greeting = bool(records) and records[0][0] == Verb.HELLO
        if peer is None or greeting:
            peer = greet(mesh, route, records, lockstep=lockstep, version=self._version)
            if peer is None:
                return
        elif peer.channel is not None:
            peer.channel.received += 1
        peer.seen = now
        handlers = _HANDLERS[peer.role]
        if len(frames) == 2:
            self._handle(peer, handlers, records)
        else:
            self._handle_blobs(peer, handlers, records, frames)
        if peer.requests is not None:
            expect_answers(peer, records)

    def _malformed(self, route: bytes, peer: Peer | None, lockstep: bool, error: ProtocolError) -> None:
        """Answer a message that is not OMB/1; from a session it counts as one all the same."""
        if peer is not None:
            peer.seen = self.mesh.now
            if peer.channel is not None:
                peer.channel.received += 1
        stray(self.mesh, route, 0, error, lockstep=lockstep)

    def _handle(self, peer: Peer, handlers: dict[int, _Handler], records: list[Record]) -> None:
        """Handle the records of a message without blobs."""
        mesh = self.mesh
        for verb, about, head, body, _ in records:
            handler = handlers.get(verb)
            if handler is None:
                if not self._common(peer, verb, about):
                    return
                continue
            try:
                handler(mesh, peer, about, head, body, ())
            except Exception as error:
                self._fault(peer, verb, about, error)

    def _handle_blobs(
        self, peer: Peer, handlers: dict[int, _Handler], records: list[Record], frames: Sequence[Blob]
    ) -> None:
        """Handle records some of which own blobs."""
        mesh = self.mesh
        at = 2
        for verb, about, head, body, count in records:
            blobs = frames[at : at + count]
            at += count
            handler = handlers.get(verb)
            if handler is None:
                if not self._common(peer, verb, about):
                    return
                continue
            try:
                handler(mesh, peer, about, head, body, blobs)
            except Exception as error:
                self._fault(peer, verb, about, error)

    def _common(self, peer: Peer, verb: int, about: int) -> bool:
        """Handle the verbs that every role may send; false where nothing that follows matters any more."""
        if verb == Verb.ACK and peer.channel is not None:
            self._acknowledged(peer, about)
        elif verb == Verb.PING:
            peer.put([Verb.PONG, about, None, None, 0])
        elif verb == Verb.BYE:
            leave(self.mesh, peer, "it said BYE", certain=True)
            return False
        elif verb not in _UNANSWERED:
            name = f"{_VERBS[verb]} from a {peer.role}" if verb in _VERBS else f"unknown verb {verb}"
            self._fault(peer, verb, about, ProtocolError(f"{name} is not understood; OMB/{VERSION} is spoken here"))
        return True

    def _acknowledged(self, peer: Peer, count: int) -> None:
        """Forget the messages that have arrived at ``peer``."""
        assert peer.channel is not None
        try:
            peer.channel.acknowledged(count)
        except ProtocolError as error:
            self._fault(peer, Verb.ACK, 0, error)

    def _fault(self, peer: Peer, verb: int, about: int, error: Exception) -> None:
        """Answer a record that could not be handled; the rest of its message goes on."""
        name = type(error).__name__ if isinstance(error, OmnibusError) else "ProtocolError"
        message = str(error) if isinstance(error, OmnibusError) else f"record of verb {verb} is malformed ({error!r})"
        peer.put([Verb.ERROR, about, {"error": name, "message": message, "verb": verb, "again": False}, None, 0])
        self.mesh.note("refused", peer, message)

    def send_failed(self, route: bytes, now: float) -> None:
        """Learn that a message could not be routed: the link is gone. Its session may come back for a while."""
        self.mesh.now = now
        peer = self.mesh.routes.get(route)
        if peer is not None:
            lose_link(self.mesh, peer, "its link broke")

    def peer_died(self, session: bytes, now: float, reason: str) -> None:
        """Learn for certain that a peer's process is gone: it cannot come back, and nothing need wait for it."""
        self.mesh.now = now
        peer = self.mesh.sessions.get(session)
        if peer is not None:
            leave(self.mesh, peer, reason, certain=True)

    def advance(self, now: float) -> None:
        """Fire due timers and hand out work; to be called once a turn, after the messages."""
        mesh = self.mesh
        mesh.now = now
        timers = mesh.timers
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2](now)
        if now >= self._probe_at:
            self._probe_at = now + mesh.settings.probe
            probe(mesh, now)
        for pool in dispatch(mesh, now) if mesh.stirred else ():
            if not pool.queue.depth:
                if pool.free:
                    watch(mesh, pool)
            elif not pool.free and not pool.for_actor:
                grow(mesh, pool)

    # ------------------------------------------------------------------ output

    def output(self) -> list[Message]:
        """Return the messages to send now, each with its route.

        A REQ peer's wait until there is an answer for all that it asked.
        """
        mesh = self.mesh
        messages, mesh.urgent = mesh.urgent, []
        dirty = mesh.dirty
        for peer in dirty:
            peer.dirty = False
            if peer.route is None:
                continue  # what is queued waits for it to come back
            if peer.requests is not None:
                reply(peer, messages)
            elif peer.records:
                _pack(peer, messages)
        dirty.clear()
        return messages

    def events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self.mesh.events = self.mesh.events, []
        return events

    def pending(self) -> bool:
        """Return whether there is output, or work to hand out, although nothing came in: after a peer's death, say."""
        return bool(self.mesh.dirty or self.mesh.stirred or self.mesh.urgent)

    def next_deadline(self) -> float:
        """Return when :meth:`advance` must be called next at the latest."""
        timers = self.mesh.timers
        return min(timers[0][0], self._probe_at) if timers else self._probe_at

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the state does not hold together; for tests."""
        check_invariants(self.mesh)


def _pack(peer: Peer, messages: list[Message]) -> None:
    """Pack what is queued for ``peer`` into messages, and keep them where it may not get them."""
    route, channel = peer.route, peer.channel
    assert route is not None
    records, blobs = peer.records, peer.blobs
    peer.records, peer.blobs = [], []
    if channel is None:
        messages += [(route, frames) for frames in split(records, blobs)]
        return
    due = channel.acknowledgement()
    if due is not None:
        records.insert(0, due)
    if channel.unacknowledged >= _MANY:
        records.append([Verb.PING, 0, None, None, 0])  # an acknowledgement comes with whatever the peer has to say
    for frames in split(records, blobs):
        channel.keep(frames)
        messages.append((route, frames))
    if channel.unacknowledged > _MOST:
        channel.acknowledged(channel.sent - _MOST)  # as if: it then cannot go on over another link
