"""Sessions: how peers come, lose their link, come back over another, and leave.

::

    HELLO ──▶ linked ──────────────▶ gone       BYE, the end of its process, refusal
                │ ▲                    ▲
     link broke │ │ HELLO anew         │ nothing came for `grace` seconds
                ▼ │                    │
               lost ───────────────────┘

A worker with a supervisor is not given up on the broker's own view: while its node is there, the node is asked to
end the process, and says how far that had got. Until then it is *closing*: it takes nothing any more.
"""

from __future__ import annotations

from omnibus.errors import CapacityExceeded, OmnibusError, ProtocolError, Unreachable
from omnibus.protocol import VERSION, Blob, Record, Verb

from .actors import adopt, end_actor, name_taken
from .clients import drop_client
from .events import Event
from .hello import Hello, parse_hello
from .lockstep import repeat_reply
from .losses import bury, lose
from .nodes import drop_node, room_came
from .peers import Client, Node, Peer, Worker
from .placement import halt
from .pools import Pool
from .recall import recall
from .state import Mesh
from .workers import freed

__all__ = ["greet", "leave", "lose_link", "probe", "stray"]

_PEERS: dict[str, type[Peer]] = {"client": Client, "worker": Worker, "actor": Worker, "node": Node}


# ---------------------------------------------------------------------- coming


def greet(mesh: Mesh, route: bytes, records: list[Record], *, lockstep: bool, version: str) -> Peer | None:
    """Take a HELLO, from a new session or from one that comes back; whoever else speaks first is told to say it."""
    if not records or records[0][0] != Verb.HELLO:
        error: OmnibusError = ProtocolError("this link has said no HELLO (yet, or since the broker began)")
        stray(mesh, route, 0, error, lockstep=lockstep, again=True)
        return None
    _, about, head, _, _ = records[0]
    try:
        hello = parse_hello(head, mesh.limits)
        peer = mesh.sessions.get(hello.session)
        resend = _return(mesh, peer, hello, route, lockstep) if peer is not None else None
        if peer is None or resend is None:
            peer, resend = _admit(mesh, hello, route, lockstep), None
    except OmnibusError as error:
        stray(mesh, route, about, error, lockstep=lockstep)
        return None
    _welcome(mesh, peer, about, version, resend)
    if resend is None:
        _join(mesh, peer)
    return peer


def stray(mesh: Mesh, route: bytes, about: int, error: Exception, *, lockstep: bool, again: bool = False) -> None:
    """Answer a message that belongs to no session, or begins none."""
    mesh.note("stray" if again else "refused", route.hex(), str(error))
    record = [Verb.ERROR, about, {"error": type(error).__name__, "message": str(error), "again": again}, None, 0]
    peer = mesh.routes.get(route)
    if peer is not None and peer.requests is None:
        peer.put(record)  # its messages are counted
    else:
        mesh.send_first(route, record, lockstep=lockstep)


def _admit(mesh: Mesh, hello: Hello, route: bytes, lockstep: bool) -> Peer:
    """Begin a session; raises the reason where it may not begin."""
    why = mesh.dead.get(hello.session)
    if why is not None:
        raise Unreachable(f"session {hello.session.hex()} is that of a process which has ended: {why}")
    if len(mesh.sessions) >= mesh.settings.sessions:
        raise CapacityExceeded(f"this broker has {len(mesh.sessions)} sessions, its limit: end some first")
    if lockstep and hello.role != "client":
        raise ProtocolError(f"a REQ peer is only sent what it asks for, and cannot be a {hello.role}: use a DEALER")
    if hello.role == "actor" and hello.name is None:
        raise ProtocolError("HELLO of an actor: 'name' must be its name")
    before = mesh.routes.get(route)
    if before is not None:
        lose_link(mesh, before, "another session began on its link")
    peer = _PEERS[hello.role](hello, route, mesh.dirty, mesh.now, lockstep=lockstep)
    mesh.sessions[hello.session] = mesh.routes[route] = peer
    pid = hello.pid if hello.node is None else 0  # a child is its node's to watch: that knows what the child had begun
    mesh.events.append(Event("joined", repr(peer), "", pid, hello.boot or "", hello.session))
    return peer


def _welcome(mesh: Mesh, peer: Peer, about: int, version: str, resend: list[list[Blob]] | None) -> None:
    """Tell a peer that it is in and what holds here; to one that goes on, what came and what did not arrive of it."""
    limits = mesh.limits
    head = {
        "omb": VERSION,
        "version": version,
        "epoch": mesh.epoch,
        "session": peer.session,
        "name": peer.name,
        **mesh.about,
        **({} if mesh.settings.code else {"code": False}),
        "limits": {name: getattr(limits, name) for name in limits.__slots__},
    }
    route = peer.route
    assert route is not None
    if peer.requests is not None:
        peer.records.insert(0, [Verb.WELCOME, about, head, None, 0])
        peer.stir()
        return
    if peer.channel is not None:
        head |= {"resumed": resend is not None, "received": peer.channel.received}
        # A second HELLO over one link begins anew: what the first was to be sent again must not arrive twice.
        mesh.urgent = [message for message in mesh.urgent if message[0] != route]
    mesh.send_first(route, [Verb.WELCOME, about, head, None, 0])
    mesh.urgent += [(route, frames) for frames in resend or ()]


# ---------------------------------------------------------------------- coming back


def _return(mesh: Mesh, peer: Peer, hello: Hello, route: bytes, lockstep: bool) -> list[list[Blob]] | None:
    """Go on with a session, most often over a new link; return the messages that are to be sent again.

    Returns ``None`` where it cannot go on, for too much was lost: it has ended, and another may begin in its
    name. Raises :class:`ProtocolError` for a HELLO that makes no sense.
    """
    if peer.role != hello.role:
        raise ProtocolError(f"session {peer.session.hex()} is a {peer.role}'s, not a {hello.role}'s")
    if lockstep != (peer.requests is not None):
        raise ProtocolError(f"session {peer.session.hex()} began as the other of DEALER and REQ, and goes on as that")
    resend: list[list[Blob]] = []
    if peer.channel is not None:
        if hello.received < peer.channel.sent - peer.channel.unacknowledged:
            why = f"it has got {hello.received} messages, and what came next is not kept any more"
            leave(mesh, peer, why, certain=True)
            return None
        resend = peer.channel.resume(hello.received)
    if peer.route != route:
        _relink(mesh, peer, route)
    if isinstance(peer, Worker) and peer.channel is None and hello.running is not None:
        _lose_unheld(mesh, peer, hello.running)
    return resend


def _relink(mesh: Mesh, peer: Peer, route: bytes) -> None:
    """Let a session go on over another link; what was queued meanwhile goes out now."""
    before = mesh.routes.get(route)
    if before is not None:
        lose_link(mesh, before, "another session came back on its link")
    if peer.route is not None:
        del mesh.routes[peer.route]
    peer.route, peer.lost = route, None
    mesh.routes[route] = peer
    mesh.note("returned", peer, session=peer.session)
    if peer.requests is not None:
        repeat_reply(peer)
    if peer.records:
        peer.stir()
    if isinstance(peer, Worker) and peer.pool is not None:
        peer.pool.enlist(peer)
        mesh.stir(peer.pool)
    elif isinstance(peer, Node):
        room_came(mesh, peer)


def _lose_unheld(mesh: Mesh, worker: Worker, running: frozenset[int]) -> None:
    """Count as lost what a worker that does not count its messages no longer holds: the RUN or the answer is gone."""
    for aid, task in reversed(list(worker.attempts.items())):
        if aid not in running:
            lose(mesh, worker, task, "WorkerDied", "its link broke, and what it was sent or had answered is lost")
    freed(mesh, worker)


# ---------------------------------------------------------------------- a place


def _join(mesh: Mesh, peer: Peer) -> None:
    """Give a new peer its place. A worker may come before its node, and then waits for it."""
    if isinstance(peer, Node):
        mesh.nodes[peer.session] = peer
        for worker in [worker for worker in mesh.every(Worker) if worker.hello.node == peer.session]:
            _settle(mesh, worker, peer)
        room_came(mesh, peer)
    elif isinstance(peer, Worker):
        if peer.hello.node is None:
            _settle(mesh, peer, None)
        elif peer.hello.node in mesh.nodes:
            _settle(mesh, peer, mesh.nodes[peer.hello.node])
        else:
            mesh.at(mesh.now + mesh.settings.grace, lambda now: _give_up_orphan(mesh, peer))


def _give_up_orphan(mesh: Mesh, worker: Worker) -> None:
    if worker.node is None and not worker.gone:
        if worker.route is not None:
            mesh.send_first(worker.route, [Verb.STOP, 0, None, None, 0])
        leave(mesh, worker, "its node has not come", certain=True)


def _settle(mesh: Mesh, worker: Worker, node: Node | None) -> None:
    """Let a worker, whose node is known by now, begin to take work."""
    worker.node = node
    if node is not None:
        node.workers[worker.session] = worker
    if worker.role == "actor":
        taken = name_taken(mesh, worker.name) if node is None else None
        if taken is None:
            adopt(mesh, worker)
        else:
            _refuse_name(mesh, worker, taken)
        return
    pool = _pool_of(mesh, worker, node)
    if pool is None:
        halt(mesh, worker)
        return
    pool.failures = 0
    pool.join(worker)
    mesh.stir(pool)


def _refuse_name(mesh: Mesh, worker: Worker, why: str) -> None:
    """Turn away an actor in someone else's process whose name is held by another."""
    assert worker.route is not None
    mesh.note("refused", worker, why)
    mesh.send_first(worker.route, [Verb.ERROR, 0, {"error": "AlreadyExists", "message": why, "again": False}, None, 0])
    mesh.drop(worker)


def _pool_of(mesh: Mesh, worker: Worker, node: Node | None) -> Pool | None:
    """Return the pool of a worker, that which it was started for; ``None`` where nobody knows what that was."""
    command = worker.hello.command
    if node is None:
        return mesh.default
    if not command:
        node.coming = max(0, node.coming - 1)
        return mesh.default
    holding = node.holdings.get(command)
    if holding is None or holding.joined or holding.pool.for_actor:
        return None  # an earlier broker asked for it
    holding.pool.starting -= 1
    holding.session, worker.holding = worker.session, holding
    return holding.pool


# ---------------------------------------------------------------------- losing the link


def lose_link(mesh: Mesh, peer: Peer, why: str) -> None:
    """Learn that a link is gone. Its session may come back for ``grace`` seconds; what is queued for it waits."""
    assert peer.route is not None
    del mesh.routes[peer.route]
    peer.route, peer.lost = None, mesh.now
    mesh.note("lost", peer, why, session=peer.session)
    if isinstance(peer, Worker) and peer.pool is not None:
        peer.pool.unlist(peer)
        if peer.node is not None and peer.actor is None:
            recall(peer, first=0)
    if isinstance(peer, Client) and peer.unused:
        leave(mesh, peer, "it did nothing", certain=True)
        return
    mesh.at(mesh.now + mesh.settings.grace, lambda now: _give_up(mesh, peer))


def _give_up(mesh: Mesh, peer: Peer) -> None:
    """End a session that did not come back in time."""
    if peer.lost is None or mesh.now - peer.lost < mesh.settings.grace or peer.gone:
        return
    if isinstance(peer, Worker) and peer.node is not None and not peer.closing:
        halt(mesh, peer)
    leave(mesh, peer, f"its link was lost for {mesh.settings.grace:g} s", certain=False)


# ---------------------------------------------------------------------- leaving


def leave(mesh: Mesh, peer: Peer, why: str, *, certain: bool) -> None:
    """End a session: it said BYE or its process is gone, which is ``certain``, or it did not come back."""
    if isinstance(peer, Worker) and peer.node is not None:
        _await_report(mesh, peer, why)
        return
    mesh.note("left", peer, why, session=peer.session)
    if isinstance(peer, Client):
        drop_client(mesh, peer)
    elif isinstance(peer, Node):
        drop_node(mesh, peer, why, certain=certain)
    else:
        assert isinstance(peer, Worker)
        _bury(mesh, peer, why)


def _await_report(mesh: Mesh, worker: Worker, why: str) -> None:
    """Let the node say what became of the worker's process; bury it without that where nothing comes."""
    worker.closing = True
    if worker.pool is not None:
        worker.pool.retire(worker)

    def give_up(now: float) -> None:
        if not worker.gone:
            mesh.note("left", worker, why, session=worker.session)
            _bury(mesh, worker, why)

    mesh.at(mesh.now + mesh.settings.grace, give_up)


def _bury(mesh: Mesh, worker: Worker, why: str) -> None:
    """Bury a worker whose end no supervisor reports, and its actor with it."""
    bury(mesh, worker, "WorkerDied", why)
    actor = worker.actor
    if actor is not None and actor.worker is worker and mesh.actors.get(actor.name) is actor:
        if actor.state == "stopping":
            end_actor(mesh, actor, "NotFound", {"message": "it was stopped"})
        else:
            end_actor(mesh, actor, "WorkerDied", {"message": why})


# ---------------------------------------------------------------------- quiet peers


def probe(mesh: Mesh, now: float) -> None:
    """Send a PING to every quiet peer, so that a dead link shows as a failed send.

    A REQ peer cannot be sent one: it is ended when it was silent for long.
    """
    idle: list[Peer] = []
    for peer in mesh.sessions.values():
        if peer.route is None:
            continue
        if peer.requests is None:
            if now - peer.seen >= mesh.settings.probe:
                peer.put([Verb.PING, 0, None, None, 0])
        elif not peer.requests and now - peer.seen >= mesh.settings.idle:
            idle.append(peer)
    for peer in idle:
        leave(mesh, peer, f"it was silent for {mesh.settings.idle:g} s", certain=True)
