"""The broker as a state machine: frames and ``now`` in; frames, events and the next deadline out. No I/O.

A shell polls its socket, gives each message to :meth:`Broker.receive`, calls :meth:`Broker.advance` once a turn, sends what
:meth:`Broker.output` returns and reports what could not be sent to :meth:`Broker.send_failed`. Whatever a peer sends, ``receive``
does not raise: a fault is answered by an ERROR to that peer alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omnibus.channel import Channel
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.protocol import VERSION, Blob, Record, Verb, decode, encode, split_delimiter
from omnibus.protocol import messages as split

from .actors import ActorEntry, adopt, end_actor
from .clients import CLIENT_HANDLERS, drop_client
from .dispatch import dispatch
from .nodes import NODE_HANDLERS, drop_node
from .peers import Client, Node, Peer, Worker
from .placement import grow
from .state import Mesh, Settings
from .workers import WORKER_HANDLERS, drop_worker

__all__ = ["Broker", "Event", "Message"]

Message = tuple[bytes, list[Blob]]
_Handler = Callable[[Mesh, Any, int, Any, bytes | None, Sequence[Blob]], None]
_HANDLERS: dict[str, dict[int, _Handler]] = {
    "client": {int(verb): handler for verb, handler in CLIENT_HANDLERS.items()},
    "worker": {int(verb): handler for verb, handler in WORKER_HANDLERS.items()},
    "actor": {int(verb): handler for verb, handler in WORKER_HANDLERS.items()},
    "node": dict(NODE_HANDLERS),
}
_ROLES: dict[str, type[Peer]] = {"client": Client, "worker": Worker, "actor": Worker, "node": Node}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the shell should act on or log: ``what`` is ``joined``, ``left``, ``lost``, ``stray``, ``refused``."""

    what: str
    peer: str
    detail: str = ""
    pid: int = 0
    boot: str = ""
    session: bytes = b""


class Broker:
    """One broker's core.

    ``epoch`` are eight random bytes that name this life of the broker, ``mesh_version`` the package's version for the handshake.
    """

    def __init__(self, epoch: bytes, now: float, settings: Settings | None = None, *, version: str = "0") -> None:
        self.mesh = Mesh(epoch, now, settings or Settings(), first=int.from_bytes(epoch[:3], "big") << 32)
        self._version = version
        self._events: list[Event] = []
        self._strays: list[tuple[bytes, Record, bool]] = []
        self._resent: list[Message] = []
        self._probe_at = now + self.mesh.settings.probe

    # ------------------------------------------------------------------ input

    def receive(self, route: bytes, frames: Sequence[Blob], now: float) -> None:
        """Take one message that came over ``route``; ``frames`` are all that followed the routing id."""
        mesh = self.mesh
        mesh.now = now
        lockstep, frames = split_delimiter(frames)
        try:
            records = decode(frames, mesh.limits)
        except ProtocolError as error:
            self._stray(route, 0, "ProtocolError", str(error), lockstep)
            return
        peer = mesh.routes.get(route)
        if peer is None or records and records[0][0] == Verb.HELLO:
            peer = self._greet(route, records, lockstep, now)
            if peer is None:
                return
        elif peer.channel is not None:
            peer.channel.received += 1
        peer.seen = now
        if lockstep:
            peer.ask()
        handlers = _HANDLERS[peer.info["role"]]
        if len(frames) == 2:
            self._handle(peer, handlers, records)
        else:
            self._handle_blobs(peer, handlers, records, frames)

    def _handle(self, peer: Peer, handlers: dict[int, _Handler], records: list[Record]) -> None:
        """Handle the records of a message without blobs."""
        mesh = self.mesh
        for verb, about, head, body, _ in records:
            handler = handlers.get(verb)
            if handler is None:
                self._common(peer, verb, about)
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
                self._common(peer, verb, about)
                continue
            try:
                handler(mesh, peer, about, head, body, blobs)
            except Exception as error:
                self._fault(peer, verb, about, error)

    def _common(self, peer: Peer, verb: int, about: int) -> None:
        """Handle the verbs that every role may send."""
        if verb == Verb.PING:
            peer.put([Verb.PONG, about, None, None, 0])
        elif verb == Verb.ACK and peer.channel is not None:
            self._acknowledged(peer, about)
        elif verb == Verb.BYE:
            self._leave(peer, "it said BYE")
        elif verb not in (Verb.HELLO, Verb.PONG):
            known = f"{Verb(verb).name} from a {peer.info['role']}" if verb in _VERBS else f"unknown verb {verb}"
            head = {"error": "ProtocolError", "message": f"{known} is not understood; OMB/{VERSION} is spoken here", "again": False}
            peer.put([Verb.ERROR, about, head, None, 0])

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
        peer.put([Verb.ERROR, about, {"error": name, "message": message, "again": False}, None, 0])
        self._events.append(Event("refused", repr(peer), message))

    def send_failed(self, route: bytes, now: float) -> None:
        """Learn that a message could not be routed: the link is gone. Its session may come back for ``grace`` seconds."""
        peer = self.mesh.routes.pop(route, None)
        if peer is None:
            return
        peer.route = None
        peer.lost = now
        if peer.channel is None:
            peer.records.clear()
            peer.blobs.clear()
        self._events.append(Event("lost", repr(peer), "its link broke", session=peer.session))
        self.mesh.at(now + self.mesh.settings.grace, lambda at: self._give_up(peer, at))

    def peer_died(self, session: bytes, now: float, reason: str) -> None:
        """Learn for certain that a peer's process is gone: it cannot come back, and nothing need wait for it."""
        self.mesh.now = now
        peer = self.mesh.sessions.get(session)
        if peer is not None:
            self._leave(peer, reason)

    def advance(self, now: float) -> None:
        """Fire due timers and hand out work; to be called once a turn, after the messages."""
        mesh = self.mesh
        mesh.now = now
        timers = mesh.timers
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2](now)
        if now >= self._probe_at:
            self._probe(now)
        stirred = list(mesh.stirred)
        dispatch(mesh, now)
        for pool in stirred:
            if pool.queue.depth and not pool.free and mesh.pools.get(pool.shape) is pool:
                grow(mesh, pool)

    # ------------------------------------------------------------------ output

    def output(self) -> list[Message]:
        """Return the messages to send now, each with its route; a lockstep peer's wait until it has an answer for all that it asked."""
        mesh = self.mesh
        messages: list[Message] = []
        for route, record, lockstep in self._strays:
            frames = encode([record])
            messages.append((route, [b"", *frames] if lockstep else frames))
        self._strays.clear()
        messages += self._resent
        self._resent.clear()
        if not mesh.dirty:
            return messages
        waiting: list[Peer] = []
        for peer in mesh.dirty:
            if peer.lockstep and peer.asked and _owes(mesh, peer):
                waiting.append(peer)
                continue
            peer.dirty = False
            if peer.route is not None and (peer.asked if peer.lockstep else peer.records):
                _pack(peer, messages)
        mesh.dirty[:] = waiting
        return messages

    def events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def pending(self) -> bool:
        """Return whether there is output, or work to hand out, although nothing came in: after a peer's death, say."""
        return bool(self.mesh.dirty or self.mesh.stirred or self._strays)

    def next_deadline(self) -> float:
        """Return when :meth:`advance` must be called next at the latest."""
        timers = self.mesh.timers
        return min(timers[0][0], self._probe_at) if timers else self._probe_at

    # ------------------------------------------------------------------ sessions

    def _greet(self, route: bytes, records: list[Record], lockstep: bool, now: float) -> Peer | None:
        """Take a HELLO, from a new session or from one that comes back; whoever else speaks first is told to say it."""
        mesh = self.mesh
        if not records or records[0][0] != Verb.HELLO:
            self._stray(route, 0, "ProtocolError", "this link has said no HELLO (yet, or since the broker began)", lockstep, again=True)
            return None
        head = records[0][2]
        try:
            session, role = _introduction(head)
        except ProtocolError as error:
            self._stray(route, records[0][1], "ProtocolError", str(error), lockstep)
            return None
        peer = mesh.sessions.get(session)
        known = peer is not None
        if peer is not None and peer.info["role"] != role:
            self._stray(route, records[0][1], "ProtocolError", f"session {session.hex()} is a {peer.info['role']}'s", lockstep)
            return None
        if peer is not None:
            self._rebind(peer, route)
        else:
            peer = _ROLES[role](session, route, head, mesh.dirty, now)
            peer.channel = Channel() if head.get("resume") and not lockstep else None
            mesh.sessions[session] = mesh.routes[route] = peer
        peer.lockstep = lockstep
        self._welcome(peer, records[0][1], head, known)
        self._join(peer)
        return peer

    def _rebind(self, peer: Peer, route: bytes) -> None:
        if peer.route is not None:
            self.mesh.routes.pop(peer.route, None)
        peer.route, peer.lost = route, None
        self.mesh.routes[route] = peer
        if peer.channel is None:
            peer.records.clear()
            peer.blobs.clear()

    def _welcome(self, peer: Peer, about: int, hello: dict[str, Any], known: bool) -> None:
        """Answer HELLO. To a session that goes on over a new link, send again what did not arrive over the old one."""
        mesh = self.mesh
        limits = mesh.limits
        head = {
            "omb": VERSION,
            "version": self._version,
            "epoch": mesh.epoch,
            "session": peer.session,
            "name": peer.name,
            **mesh.about,
            "limits": {name: getattr(limits, name) for name in limits.__slots__},
        }
        channel, route = peer.channel, peer.route
        if channel is None or route is None:
            peer.put([Verb.WELCOME, about, head, None, 0])
            return
        try:
            kept = channel.resume(_count(hello.get("received"))) if known else []
        except ProtocolError as error:
            self._stray(route, about, "ProtocolError", str(error), False)
            return
        head |= {"resumed": known, "received": channel.received}
        self._strays.append((route, [Verb.WELCOME, about, head, None, 0], False))
        # A second HELLO over one link begins anew: what the first was to be sent again must not arrive twice.
        self._resent = [message for message in self._resent if message[0] != route]
        self._resent += [(route, frames) for frames in kept]
        if peer.records and not peer.dirty:
            peer.dirty = True
            mesh.dirty.append(peer)

    def _join(self, peer: Peer) -> None:
        """Give a peer that said HELLO its place."""
        mesh = self.mesh
        info = peer.info
        # A node's child is its node's to watch: it knows what the child had begun.
        pid = int(info.get("pid") or 0) if info.get("node") is None else 0
        self._events.append(Event("joined", repr(peer), "", pid, str(info.get("boot") or ""), peer.session))
        if isinstance(peer, Node) and peer.session not in mesh.nodes:
            mesh.nodes[peer.session] = peer
            for worker in mesh.every(Worker):
                if worker.info.get("node") == peer.session and worker.node is None:
                    self._settle(worker, peer)
            for pool in mesh.pools.values():
                mesh.stir(pool)
        elif isinstance(peer, Worker) and peer.pool is None:
            node = mesh.nodes.get(info.get("node") or b"")
            if node is not None or info.get("node") is None:
                self._settle(peer, node)

    def _settle(self, worker: Worker, node: Node | None) -> None:
        """Let a worker, whose node is known by now, begin to take work."""
        mesh = self.mesh
        worker.node = node
        if node is not None:
            node.workers[worker.session] = worker
        if worker.info["role"] == "actor":
            adopt(mesh, worker)
            return
        command = worker.info.get("command") or 0
        pending = node.pending.pop(command, None) if node is not None else None
        if pending is not None:
            pool, worker.devices = pending
            pool.starting -= 1
        else:
            pool = mesh.pool(_DEFAULT)
        pool.join(worker)
        mesh.stir(pool)

    def _give_up(self, peer: Peer, now: float) -> None:
        """End a session that did not come back in time."""
        if peer.lost is not None and now - peer.lost >= self.mesh.settings.grace and self.mesh.sessions.get(peer.session) is peer:
            self._leave(peer, f"its link was lost for {self.mesh.settings.grace:g} s")

    def _leave(self, peer: Peer, reason: str) -> None:
        """End a session for good."""
        mesh = self.mesh
        self._events.append(Event("left", repr(peer), reason, session=peer.session))
        if isinstance(peer, Client):
            drop_client(mesh, peer, reason)
            mesh.drop(peer)
        elif isinstance(peer, Node):
            drop_node(mesh, peer, reason)
        elif isinstance(peer, Worker):
            drop_worker(mesh, peer, "WorkerDied", reason, last=None, running=0)
            if peer.node is not None:
                peer.node.workers.pop(peer.session, None)
            actor: ActorEntry | None = peer.actor
            if actor is not None and mesh.actors.get(actor.name) is actor:
                end_actor(mesh, actor, "WorkerDied", {"message": reason})
            mesh.drop(peer)

    def _probe(self, now: float) -> None:
        """Send a PING to every quiet peer, so that a dead link shows as a failed send."""
        interval = self.mesh.settings.probe
        self._probe_at = now + interval
        for peer in self.mesh.sessions.values():
            if peer.route is not None and not peer.lockstep and now - peer.seen >= interval:
                peer.put([Verb.PING, 0, None, None, 0])

    def _stray(self, route: bytes, about: int, error: str, message: str, lockstep: bool, *, again: bool = False) -> None:
        """Answer someone who has no session, or who did not speak OMB/1."""
        self._events.append(Event("stray" if again else "refused", route.hex(), message))
        self._strays.append((route, [Verb.ERROR, about, {"error": error, "message": message, "again": again}, None, 0], lockstep))

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the state does not hold together; for tests."""
        self.mesh.check_invariants()


_VERBS = frozenset(int(verb) for verb in Verb)
from .kinds import Shape  # noqa: E402

_DEFAULT = Shape()


def _introduction(head: Any) -> tuple[bytes, str]:
    """Return session and role from a HELLO; raises :class:`ProtocolError` naming both sides' versions where they differ."""
    if not isinstance(head, dict):
        raise ProtocolError("HELLO carries a map")
    if head.get("omb") != VERSION:
        raise ProtocolError(f"the peer speaks OMB/{head.get('omb')!r:.20}, this broker OMB/{VERSION}: both sides need the same major version")
    session, role = head.get("session"), head.get("role")
    if not isinstance(session, bytes) or not 8 <= len(session) <= 32:
        raise ProtocolError(f"HELLO's 'session' must be 8 to 32 random bytes, not {session!r:.80}")
    if role not in _ROLES:
        raise ProtocolError(f"HELLO's 'role' must be one of {', '.join(_ROLES)}, not {role!r:.80}")
    return session, str(role)


def _owes(mesh: Mesh, peer: Peer) -> bool:
    """Return whether a lockstep peer still waits for the end of something."""
    if isinstance(peer, Client) and peer.tasks:
        return True
    return any(who is peer for actor in mesh.actors.values() for who, _ in (*actor.waiters, *actor.enders))


def _count(received: Any) -> int:
    """Return a HELLO's count of received messages; nonsense counts as none."""
    return received if type(received) is int and received >= 0 else 0


def _pack(peer: Peer, messages: list[Message]) -> None:
    """Pack what is queued for ``peer`` into messages (a lockstep peer's into one)."""
    route, channel = peer.route, peer.channel
    assert route is not None
    records, blobs = peer.records, peer.blobs
    peer.records, peer.blobs = [], []
    if peer.lockstep:
        peer.asked = False
        messages.append((route, [b"", *encode(records, blobs)]))
        return
    due = channel.acknowledgement() if channel is not None else None
    if due is not None:
        records.insert(0, due)
    for frames in split(records, blobs):
        if channel is not None:
            channel.keep(frames)
        messages.append((route, frames))
