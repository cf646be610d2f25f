"""Why a link does not come about: ZeroMQ retries in silence, and only a socket monitor sees what happens.

A client that is refused would merely time out, and a broker does not see a peer whose key cannot open the
first box. A :class:`LinkWatch` tells both, in words for an error or a log.
"""

from __future__ import annotations

import itertools
import os
import struct
from typing import Final, NamedTuple

import zmq

__all__ = ["LinkEvent", "LinkWatch"]

_EVENT: Final = struct.Struct("=hi")
_NAMES: Final = itertools.count()
_EVENTS: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.DISCONNECTED
    | zmq.Event.CONNECT_RETRIED
)
_MISMATCH: Final = 0x11000002
_CRYPTOGRAPHIC: Final = 0x11000001


class LinkEvent(NamedTuple):
    """One thing that happened to a link.

    ``what`` is ``up``, ``down``, ``retried``, ``failed`` or ``refused``.

    ``failed`` is tried again by ZeroMQ, ``refused`` is final. ``why`` is a clause for people.
    """

    what: str
    endpoint: str
    why: str


class LinkWatch:
    """Watches the links of one socket, from before its first ``bind`` or ``connect`` if it is to see all.

    ``monitor`` is a socket to poll; :meth:`events` takes what came. Close it before the watched socket.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.last: LinkEvent | None = None
        """What best explains why there is no link now; ``None`` while there is one."""
        self._watched = socket
        address = f"inproc://omnibus.watch.{os.getpid()}.{next(_NAMES)}"
        socket.monitor(address, _EVENTS)
        self.monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self.monitor.connect(address)

    def events(self) -> list[LinkEvent]:
        """Return what has happened since the last call, without waiting."""
        found = []
        while self.monitor.poll(0):
            # pyzmq's own parser imports asyncio, a sixth of an idle process; the form is that of zmq_socket_monitor(3).
            numbers, endpoint = self.monitor.recv_multipart()
            number, value = _EVENT.unpack(numbers)
            what, why = _explain(number, value, self._has_key())
            if what:
                event = LinkEvent(what, endpoint.decode(errors="replace"), why)
                found.append(event)
                self._keep(event)
        return found

    def _keep(self, event: LinkEvent) -> None:
        if event.what == "up":
            self.last = None
        elif event.what in ("failed", "refused") or self.last is None:
            self.last = event  # a retry or a disconnect that follows a refusal explains less than the refusal

    def close(self) -> None:
        """Stop watching."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self.monitor.close(0)

    def _has_key(self) -> bool:
        return not self._watched.closed and self._watched.get(zmq.MECHANISM) == zmq.CURVE


def _explain(event: int, value: int, has_key: bool) -> tuple[str, str]:
    """Return what an event is and why it came, with ``has_key`` telling whether our side uses CURVE."""
    if event == zmq.Event.HANDSHAKE_SUCCEEDED:
        return "up", "the handshake is done"
    if event == zmq.Event.DISCONNECTED:
        return "down", "the link broke"
    if event == zmq.Event.CONNECT_RETRIED:
        return "retried", "nobody listens there, or the way to it is blocked"
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return "refused", f"the other side does not know this key (status {value})"
    if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
        key = "has another key" if has_key else "demands the mesh's key"
        return (
            "failed",
            f"the other side hung up during the handshake: it {key}, or it is no Omnibus mesh",
        )
    if event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
        return "refused", _protocol_failure(value, has_key)
    return "", ""


def _protocol_failure(value: int, has_key: bool) -> str:
    if value == _MISMATCH:
        return "the other side has no key and this one does" if has_key else "the other side demands the mesh's key"
    if value == _CRYPTOGRAPHIC and not has_key:
        return "the other side demands the mesh's key"
    if value == _CRYPTOGRAPHIC:
        return "the other side has another key, or none"
    return f"the other side broke the handshake (ZeroMQ protocol error {value:#x})"
