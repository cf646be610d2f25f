"""ZeroMQ sockets as the mesh uses them: their options, and the client's half of CURVE.

The options, and why. *Send queues are bounded*, so that a peer that takes nothing shows as a full queue,
never as memory. *A DEALER's receive queue is not*: ZeroMQ stops reading a link whose receive queue is full,
the heartbeats' answers among it, and then breaks the link itself; what may arrive is bounded by credits and
windows already. *Heartbeats run over tcp only*: a frame must pass within ``silence``, and over ipc the kernel
reports a dead peer at once. A frame beyond ``message_bytes`` breaks the link that sent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from omnibus.address import MeshKey, Target
from omnibus.errors import MeshError, Unauthorized
from omnibus.protocol import Limits

__all__ = [
    "BROKER",
    "CLIENT",
    "Tuning",
    "check_pair",
    "make_context",
    "make_dealer",
    "make_router",
    "secure_client",
    "set_heartbeats",
]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may be set of a socket; times are seconds, queues are messages for each peer (0: no bound)."""

    heartbeat: float = 2.0
    silence: float = 15.0
    linger: float = 1.0
    send_queue: int = 1000
    receive_queue: int = 0
    message_bytes: int = Limits().message_bytes
    reconnect: float = 0.05
    reconnect_most: float = 1.0


CLIENT: Final = Tuning()
BROKER: Final = Tuning(receive_queue=1000)
"""A broker reads all the time, so a bounded receive queue passes the pressure on to a peer that floods it."""


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context with one I/O thread whose end never waits for ever."""
    context = zmq.Context(io_threads=1)
    context.set(zmq.BLOCKY, 0)
    return context


def make_dealer(context: zmq.Context[zmq.Socket[bytes]], target: Target, tuning: Tuning = CLIENT) -> zmq.Socket[bytes]:
    """Return a DEALER that connects to ``target`` with its key; whether anybody answers there shows later.

    Raises :class:`UsageError` for a malformed address, :class:`Unauthorized` for a tcp target with neither
    key nor ``insecure``.
    """
    address = target.parsed()
    if address.is_tcp and target.key is None and not target.insecure:
        raise Unauthorized(
            f"{target.address} needs the mesh's key, and the target has none: see omnibus.rundir.resolve"
        )
    socket = context.socket(zmq.DEALER)
    try:
        _tune(socket, tuning, heartbeats=address.is_tcp)
        socket.set(zmq.IPV6, int(address.wants_ipv6))
        if address.is_tcp and target.key is not None and not target.insecure:
            secure_client(socket, target.key)
        socket.connect(str(address))
    except BaseException:
        socket.close(0)
        raise
    return socket


def make_router(context: zmq.Context[zmq.Socket[bytes]], tuning: Tuning = BROKER) -> zmq.Socket[bytes]:
    """Return a ROUTER, bound nowhere yet, for which a message that cannot be routed is an error."""
    socket = context.socket(zmq.ROUTER)
    _tune(socket, tuning, heartbeats=True)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    return socket


def set_heartbeats(socket: zmq.Socket[bytes], tuning: Tuning, *, on: bool) -> None:
    """Set the heartbeats of the links that ``socket`` binds or connects from now on."""
    socket.set(zmq.HEARTBEAT_IVL, _ms(tuning.heartbeat) if on else 0)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _ms(tuning.silence) if on else 0)
    socket.set(zmq.HEARTBEAT_TTL, _ms(tuning.silence) if on else 0)


def secure_client(socket: zmq.Socket[bytes], key: MeshKey) -> None:
    """Make ``socket`` present the mesh's key pair, and accept only a broker that holds it.

    Call it before ``connect``.
    """
    check_pair(key)
    socket.set(zmq.CURVE_SERVERKEY, key.public.encode())
    socket.set(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, key.secret.encode())


def check_pair(key: MeshKey) -> None:
    """Raise :class:`Unauthorized` unless the two halves of ``key`` belong together.

    Raises :class:`MeshError` where libzmq has no CURVE.
    """
    if not zmq.has("curve"):
        raise MeshError(f"libzmq {zmq.zmq_version()} was built without CURVE: install pyzmq's own wheel, or use ipc")
    if zmq.curve_public(key.secret.encode()) != key.public.encode():
        raise Unauthorized(f"the halves of the mesh key {key.public} do not belong together: copy the key file anew")


def _tune(socket: zmq.Socket[bytes], tuning: Tuning, *, heartbeats: bool) -> None:
    socket.set(zmq.LINGER, _ms(tuning.linger))
    socket.set(zmq.SNDHWM, tuning.send_queue)
    socket.set(zmq.RCVHWM, tuning.receive_queue)
    socket.set(zmq.MAXMSGSIZE, tuning.message_bytes)
    socket.set(zmq.RECONNECT_IVL, _ms(tuning.reconnect))
    socket.set(zmq.RECONNECT_IVL_MAX, _ms(tuning.reconnect_most))
    set_heartbeats(socket, tuning, on=heartbeats)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
