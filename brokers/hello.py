"""What a peer says of itself in HELLO, checked field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnibus.errors import ProtocolError
from omnibus.protocol import VERSION, Limits

from .reading import Reader, short

__all__ = ["ROLES", "Hello", "parse_hello"]

ROLES = ("client", "worker", "actor", "node")
_SESSION = (8, 32)
_NUMBER = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Hello:
    """One peer's introduction.

    All: ``session`` names its life, ``name`` it for people; ``host``, ``boot`` and ``pid`` are where it runs.
    ``resume``: it counts its messages, and has ``received`` so many. Clients: ``within`` is the session of the
    worker whose task made it. Workers and actors: ``node`` is their supervisor's session, ``command`` the START
    that they come from (0: the node began them by itself), ``devices`` what they see of its GPUs, ``incarnation`` how
    often they were restarted,
    ``credits`` how many attempts they may be given, and ``concurrency`` how many they work on at a time;
    ``running`` are the attempts that they hold, where they say HELLO anew. Nodes: ``cpus``, ``gpus``, ``memory``
    and ``labels`` of the host, and ``workers``, the base that they keep up by themselves.
    """

    session: bytes
    role: str
    name: str | None = None
    version: str | None = None
    host: str | None = None
    boot: str | None = None
    pid: int = 0
    python: str | None = None
    resume: bool = False
    received: int = 0
    within: bytes | None = None
    node: bytes | None = None
    command: int = 0
    devices: tuple[str, ...] = ()
    incarnation: int = 0
    credits: int = 1
    concurrency: int = 1
    running: frozenset[int] | None = None
    cpus: float = 1.0
    gpus: tuple[str, ...] = ()
    memory: int = 0
    labels: dict[str, str] | None = None
    workers: int = 0


def parse_hello(head: Any, limits: Limits) -> Hello:
    """Return the introduction that a HELLO's head is.

    Raises :class:`ProtocolError` for a wrong field, and naming both sides' versions where they differ.
    """
    read = Reader(head, "HELLO", limits)
    if read.get("omb") != VERSION:
        spoken = f"the peer speaks OMB/{short(read.get('omb'))}, this broker OMB/{VERSION}"
        raise ProtocolError(f"{spoken}: both sides need the same major version")
    session, role = read.binary("session", *_SESSION), read.get("role")
    if session is None:
        raise read.wrong("session", "{} to {} random bytes".format(*_SESSION))
    if role not in ROLES:
        raise read.wrong("role", f"one of {', '.join(ROLES)}")
    return Hello(
        session=session,
        role=role,
        name=read.text("name"),
        version=read.text("version"),
        host=read.text("host"),
        boot=read.text("boot"),
        pid=read.integer("pid", 0, 0, 1 << 31),
        python=read.text("python"),
        resume=read.flag("resume"),
        received=read.integer("received", 0, 0, _NUMBER),
        **_of_role(role, read),
    )


def _of_role(role: str, read: Reader) -> dict[str, Any]:
    """Return what only peers of this role say."""
    if role == "client":
        return {"within": read.binary("within", *_SESSION)}
    if role == "node":
        return {
            "cpus": read.number("cpus", 1, 0, 65_536),
            "gpus": tuple(dict.fromkeys(read.names("gpus"))),
            "memory": read.integer("memory", 0, 0, 1 << 62),
            "labels": read.labels("labels"),
            "workers": read.integer("workers", 0, 0, 65_536),
        }
    return {
        "node": read.binary("node", *_SESSION),
        "command": read.integer("command", 0, 0, _NUMBER),
        "running": frozenset(read.numbers("running")) if "running" in read else None,
        "devices": read.names("devices"),
        "incarnation": read.integer("incarnation", 0, 0, 1 << 31),
        "credits": read.integer("credits", 1, 0, 1 << 20),
        "concurrency": read.integer("concurrency", 1, 1, 1 << 20),
    }
