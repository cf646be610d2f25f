"""Where a mesh is, and the key that opens it: addresses, key pairs and targets as checked values. No I/O.

The key scheme. A mesh has one CURVE key pair. The broker serves with it, and a client presents *the same
pair*: the broker accepts exactly the peers whose public key is the mesh's own. CURVE allows that: the two
sides still mix in fresh short-term keys, and the boxes that prove each side's identity have different nonces
and contents, so neither can be reflected as the other. Each side thereby proves to the other that it holds
the secret, nothing is enrolled, and a connection that was recorded stays sealed even when the secret leaks
later.

Its weaknesses: it is a shared secret. Holders cannot be told apart, one cannot be shut out without a new key
for all, and whoever has the secret can also pose as the broker. Who may read the run file may do all that the
mesh may do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from omnibus.errors import Unauthorized, UsageError

__all__ = [
    "ADDRESS_VARIABLE",
    "INSECURE_VARIABLE",
    "KEY_VARIABLE",
    "SOCKET_PATH_LIMIT",
    "Address",
    "MeshKey",
    "Target",
    "check_socket_path",
    "parse_address",
]

ADDRESS_VARIABLE: Final = "OMNIBUS_ADDRESS"
KEY_VARIABLE: Final = "OMNIBUS_KEY"
INSECURE_VARIABLE: Final = "OMNIBUS_INSECURE"

SOCKET_PATH_LIMIT: Final = 107
"""Bytes that the path of a unix socket may have: ``sun_path`` is 108 with its final zero."""

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUE: Final = {character: value for value, character in enumerate(_Z85)}
_KEY_CHARACTERS: Final = 40
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|\*")
_EVERY_HOST: Final = frozenset({"*", "0.0.0.0", "[::]"})


@dataclass(frozen=True, slots=True)
class MeshKey:
    """A CURVE key pair as text: two z85 strings of 40 characters. Its ``repr`` never shows the secret."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Check the form of both halves; that they belong together is checked where they are used."""
        for half, text in (("public", self.public), ("secret", self.secret)):
            if not _is_key(text):
                raise Unauthorized(f"{half} key is malformed: expected {_KEY_CHARACTERS} z85 characters (32 bytes)")

    @classmethod
    def parse(cls, text: str, source: str) -> MeshKey:
        """Read :meth:`text` back; white space between and around the halves is ignored.

        ``source`` names where the text came from, for the message of the :class:`Unauthorized` that malformed
        text raises.
        """
        joined = "".join(text.split())
        try:
            if len(joined) != 2 * _KEY_CHARACTERS:
                raise Unauthorized(f"{len(joined)} characters where {2 * _KEY_CHARACTERS} were expected")
            return cls(joined[:_KEY_CHARACTERS], joined[_KEY_CHARACTERS:])
        except Unauthorized as error:
            raise Unauthorized(
                f"{source} holds no mesh key: {error}. Expected the public half, then the secret half, in z85"
            ) from None

    def text(self) -> str:
        """Return both halves, the secret too, as one string: for an inherited environment or a 0600 file."""
        return self.public + self.secret


def _is_key(text: str) -> bool:
    """Return whether ``text`` is z85 for 32 bytes: five characters may overflow their four bytes."""
    if len(text) != _KEY_CHARACTERS or any(character not in _Z85_VALUE for character in text):
        return False
    for start in range(0, _KEY_CHARACTERS, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * 85 + _Z85_VALUE[character]
        if value >= 1 << 32:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Address:
    """A checked endpoint: ``ipc`` with a ``path``, or ``tcp`` with a ``host`` and a ``port`` (0: any)."""

    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_tcp(self) -> bool:
        """Whether it is a tcp endpoint, which needs the mesh key."""
        return self.scheme == "tcp"

    @property
    def wants_ipv6(self) -> bool:
        """Whether it is an IPv6 literal.

        Names are looked up as IPv4: ZeroMQ tries the first address only, and for ``localhost`` that may be
        ``::1`` where the broker listens on 127.0.0.1.
        """
        return self.host.startswith("[")

    def __str__(self) -> str:
        """Return it as ZeroMQ takes it."""
        return f"tcp://{self.host}:{self.port or '*'}" if self.is_tcp else f"ipc://{self.path}"


def parse_address(text: str, *, bind: bool = False) -> Address:
    """Check an endpoint and take it apart.

    With ``bind`` the port may be ``*`` or 0 (any free one) and the host ``*`` (every interface).
    Raises :class:`UsageError` that says what was wrong and how the address should look.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"address {text!r} is empty: expected ipc:///absolute/path or tcp://host:port")
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        hint = f"ipc://{text}" if text.startswith("/") else f"tcp://{text}" if ":" in text else "tcp://host:port"
        raise UsageError(f"address {text!r} has no scheme: did you mean {hint!r}?")
    if scheme == "ipc":
        check_socket_path(rest)
        return Address("ipc", path=rest)
    if scheme == "tcp":
        return _parse_tcp(text, rest, bind)
    raise UsageError(f"address {text!r}: scheme {scheme!r} is not spoken here; use ipc:///path or tcp://host:port")


def check_socket_path(path: str) -> None:
    """Raise :class:`UsageError` unless ``path`` can be a unix socket that permissions protect."""
    if path.startswith("@"):
        raise UsageError(f"ipc address {path!r} is an abstract socket, which no permission protects: use a path")
    if not path.startswith("/") or "\0" in path:
        raise UsageError(f"ipc address {path!r} is not an absolute path: write ipc:///run/…, with three slashes")
    length = len(path.encode(errors="surrogateescape"))
    if length > SOCKET_PATH_LIMIT:
        raise UsageError(
            f"path of a unix socket is {length} bytes, at most {SOCKET_PATH_LIMIT} are allowed: {path!r}. "
            "Set OMNIBUS_RUN_DIR (or TMPDIR) to a shorter directory"
        )


def _parse_tcp(text: str, rest: str, bind: bool) -> Address:
    host, separator, port = rest.rpartition(":")
    if not separator:
        raise UsageError(f"address {text!r} has no port: expected tcp://host:port")
    if not _HOST.fullmatch(host):
        raise UsageError(f"address {text!r}: {host!r} is no host name, IPv4 address or [IPv6 address]")
    if bind and port in ("*", "0"):
        return Address("tcp", host=host)
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        allowed = "1 to 65535, or * for any free port" if bind else "1 to 65535"
        raise UsageError(f"address {text!r}: port {port!r} is not in the range {allowed}")
    if not bind and host in _EVERY_HOST:
        raise UsageError(
            f"address {text!r} means every interface, which only a broker can bind: name the broker's host"
        )
    return Address("tcp", host=host, port=int(port))


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, with which key, and who said so.

    ``key`` is ``None`` over ``ipc``, whose private directory is the key, and over tcp that is explicitly
    ``insecure``. ``source`` and ``key_source`` say where address and key came from, for error messages.
    ``epoch`` is the mesh's, where a run file told it.
    """

    address: str
    key: MeshKey | None = None
    insecure: bool = False
    source: str = "address="
    key_source: str = ""
    epoch: str = ""

    def parsed(self) -> Address:
        """Return the address, checked and taken apart."""
        return parse_address(self.address)

    def environment(self) -> Mapping[str, str]:
        """Return the variables that lead a child process to the same mesh.

        They hold the secret: never in argv. All are there, empty where they do not apply, so that none of
        another mesh is inherited.
        """
        return {
            ADDRESS_VARIABLE: self.address,
            KEY_VARIABLE: self.key.text() if self.key else "",
            INSECURE_VARIABLE: "1" if self.insecure else "",
        }
