"""Who may connect to a broker: binds that are private or keyed, and the handler that admits key holders.

Over ``ipc`` the socket's directory is the key: 0700 and ours. Over ``tcp``, loopback too since a host is
shared by its users, both sides prove that they hold the mesh's key pair (see :mod:`omnibus.address`), unless
the mesh is explicitly insecure. ZeroMQ asks the handler over an in-process socket, which the broker's own
loop polls: there is no thread.
"""

from __future__ import annotations

import errno
import logging
import os
import socket as sockets
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from omnibus.errors import AlreadyExists, MeshError, Unauthorized, UsageError
from omnibus.links import BROKER, Tuning, check_pair, set_heartbeats
from omnibus.rundir import Address, MeshKey, check_private_dir, parse_address

__all__ = [
    "Authenticator",
    "Sender",
    "advertise",
    "bind_all",
    "check_bind",
    "new_key",
    "remove_sockets",
    "secure_server",
    "sender",
]

_log = logging.getLogger(__name__)

_HANDLER: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_DOMAIN: Final = b"omnibus"
_KEY_BYTES: Final = 32
_REMEMBERED: Final = 1000


def new_key() -> MeshKey:
    """Return a new key pair for a mesh, from libsodium's random numbers."""
    if not zmq.has("curve"):
        raise MeshError(
            f"libzmq {zmq.zmq_version()} was built without CURVE: install pyzmq's own wheel, or use ipc only"
        )
    public, secret = zmq.curve_keypair()
    return MeshKey(public.decode(), secret.decode())


def check_bind(text: str, key: MeshKey | None, insecure: bool) -> Address:
    """Return the address taken apart, where a broker may listen there.

    Raises :class:`Unauthorized` for a tcp address with neither ``key`` nor an explicit ``insecure``, or for
    an ipc path in a directory that others may enter; :class:`UsageError` for a malformed address or a path
    that is no socket; and :class:`AlreadyExists` where somebody listens already, whom ZeroMQ would push
    aside.
    """
    address = parse_address(text, bind=True)
    if not address.is_tcp:
        check_private_dir(Path(address.path).parent)
        _refuse_taken(address.path)
    elif key is None and not insecure:
        raise Unauthorized(
            f"{address} would be open to every user who reaches it, and is not bound: give the mesh a key "
            "(`omnibus up` makes one by itself), or say insecure (--insecure) if the network is yours alone"
        )
    return address


def bind_all(
    router: zmq.Socket[bytes],
    addresses: Sequence[str],
    *,
    key: MeshKey | None = None,
    insecure: bool = False,
    tuning: Tuning = BROKER,
) -> list[str]:
    """Bind one ROUTER to every address, and return where it listens, in their order, with the chosen ports.

    With ``key``, which outranks ``insecure``, the tcp binds use CURVE and admit nobody until an
    :class:`Authenticator` is in the router's context. Raises what :func:`check_bind` raises, before anything
    is bound.
    """
    checked = [check_bind(text, key, insecure) for text in addresses]
    bound: dict[int, str] = {}
    # ipc first: a bind takes the options that were set last, and a ZAP domain cannot be unset.
    try:
        for index in sorted(range(len(checked)), key=lambda index: checked[index].is_tcp):
            address = checked[index]
            set_heartbeats(router, tuning, on=address.is_tcp)
            router.set(zmq.IPV6, int(address.wants_ipv6))
            if address.is_tcp and key is not None:
                secure_server(router, key)
            bound[index] = _bind(router, address)
    except BaseException:
        remove_sockets(bound.values())
        raise
    return [bound[index] for index in range(len(checked))]


def remove_sockets(endpoints: Iterable[str]) -> None:
    """Remove the files of ipc endpoints, which ZeroMQ leaves behind; call it just before closing the socket.

    While it is still open nobody else can have taken the path.
    """
    for endpoint in endpoints:
        address = parse_address(endpoint, bind=True)
        if not address.is_tcp:
            Path(address.path).unlink(missing_ok=True)


def secure_server(socket: zmq.Socket[bytes], key: MeshKey) -> None:
    """Make what ``socket`` binds from now on demand the mesh's key, and an :class:`Authenticator`'s consent.

    The enforced domain shuts the door where no handler runs: without it ZeroMQ would admit every peer that
    knows the public key.
    """
    check_pair(key)
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, key.secret.encode())
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def advertise(endpoint: str, host: str) -> str:
    """Return the endpoint for others: one that is bound to every interface is reached by the host's name."""
    address = parse_address(endpoint, bind=True)
    if address.is_tcp and address.host in ("*", "0.0.0.0", "[::]"):
        return f"tcp://{host}:{address.port}"
    return endpoint


class Authenticator:
    """Answers ZeroMQ's questions about who may connect: CURVE peers whose public key is allowed, nobody else.

    Poll ``socket``; when it is readable call :meth:`handle`. Make it before the first keyed bind takes peers,
    in their context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed_public_keys: Iterable[str]) -> None:
        self.accepted = 0
        """Connections that were let in."""
        self.refused: Counter[str] = Counter()
        """Connections that were not, by reason."""
        self._allowed = {z85.decode(public): public for public in allowed_public_keys}
        self._seen: Counter[str] = Counter()
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        try:
            self.socket.bind(_HANDLER)
        except zmq.ZMQError as error:
            self.socket.close(0)
            raise UsageError(
                f"this ZeroMQ context has an authenticator already ({error}): one serves all its sockets"
            ) from None

    def handle(self) -> None:
        """Answer all questions that wait, without blocking; malformed ones are answered with a refusal."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer(frames)

    def close(self) -> None:
        """Stop answering: from now on nobody is let in."""
        self.socket.close(0)

    def _answer(self, frames: list[bytes]) -> None:
        request = frames[1] if len(frames) > 1 else b""
        address = frames[3].decode(errors="replace") if len(frames) > 3 else ""
        public, reason = self._judge(frames)
        if public is None:
            self._refuse(address, reason)
            status, text, user = b"400", reason.encode(), b""
        else:
            self.accepted += 1
            _log.debug("peer admitted", extra={"address": address, "public_key": public})
            status, text, user = b"200", b"OK", public.encode()
        try:
            self.socket.send_multipart([_VERSION, request, status, text, user, b""], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.warning("authentication reply not sent", extra={"address": address, "reason": str(error)})

    def _judge(self, frames: list[bytes]) -> tuple[str | None, str]:
        """Return the public key that may come in, else ``None`` and why not."""
        if len(frames) < 6 or frames[0] != _VERSION:
            return None, "malformed request"
        if frames[2] != _DOMAIN:
            return None, "unknown domain"
        if frames[5] != b"CURVE":
            return None, "mechanism is not CURVE"
        if len(frames) != 7 or len(frames[6]) != _KEY_BYTES:
            return None, "malformed request"
        return self._allowed.get(frames[6]), "unknown key"

    def _refuse(self, address: str, reason: str) -> None:
        """Count a refusal and log it, ever more rarely where one address goes on trying."""
        self.refused[reason] += 1
        if len(self._seen) >= _REMEMBERED and address not in self._seen:
            self._seen.clear()
        self._seen[address] += 1
        times = self._seen[address]
        if times & (times - 1) == 0:
            _log.warning("peer refused", extra={"address": address, "reason": reason, "times": times})


class Sender(NamedTuple):
    """What the transport vouches for about a message's sender.

    ``public_key`` where it came by CURVE, ``uid`` and ``pid`` where it came by ipc, nothing where it came by
    insecure tcp.
    """

    public_key: str | None = None
    uid: int | None = None
    pid: int | None = None

    @property
    def holds_key(self) -> bool:
        """Whether it holds the mesh's key, in either form: only then may it ship code."""
        return self.public_key is not None or self.uid is not None


def sender(frame: zmq.Frame, *, keyed: bool) -> Sender:
    """Return who sent the message that ``frame``, received with ``copy=False``, is any part of.

    ``keyed`` says whether the socket's tcp binds demand CURVE. Where they do not, a peer may write any user
    id into its own handshake, so none is believed; the peer's address is always ZeroMQ's own observation.
    """
    host, *credentials = (_property(frame, "Peer-Address") or "").rsplit(":", 3)
    # An ipc peer shows as "localhost:uid:gid:pid". An IPv6 address has colons too, but no such host part.
    if host in ("", "localhost") and len(credentials) == 3:
        return Sender(uid=int(credentials[0]), pid=int(credentials[2]))
    return Sender(public_key=_property(frame, "User-Id")) if keyed else Sender()


def _property(frame: zmq.Frame, name: str) -> str | None:
    try:
        value = frame.get(name)
    except zmq.ZMQError:
        return None
    return value if isinstance(value, str) else None


def _bind(router: zmq.Socket[bytes], address: Address) -> str:
    try:
        router.bind(str(address))
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise AlreadyExists(
                f"{address} is taken by another process: stop it, or use port * for any free one"
            ) from None
        raise UsageError(f"{address} cannot be bound ({error}): name an address of this host") from None
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


def _refuse_taken(path: str) -> None:
    """Raise where ZeroMQ, which removes what is at the path, would push a live socket or a file aside."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"ipc path {path} is there and is no socket: remove it, or use another path")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # its queue of connections is full, so somebody listens
        except OSError:
            return  # a dead broker's
    raise AlreadyExists(f"ipc path {path} is taken by a live process: stop it, or use another path")
