"""What a child process is told at its birth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from omnibus.address import MeshKey, Target

__all__ = ["CHILD_MAIN", "ChildConfig"]

CHILD_MAIN: Final = "omnibus.actors.process:main"


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """One child's life: who it is, where its broker is, what it may use.

    ``session`` names this incarnation, ``node`` is its supervisor's session; ``command`` is the id of the START
    that asked for it (0: none did). ``cpus`` sets its threads and ``devices`` the GPUs that it sees; ``env`` is
    added to its environment. ``entry`` is the ``module:function`` that is called with this configuration and
    returns the exit status. ``code``: whether code by value may be loaded. ``fresh``: start a new interpreter
    instead of forking the zygote. ``page_fd`` is the status page's descriptor in the child (-1: none), which the
    entry attaches.
    """

    name: str
    role: str
    session: bytes
    node: bytes
    target: Target
    credits: int = 1
    incarnation: int = 0
    command: int = 0
    cpus: float = 1.0
    devices: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entry: str = CHILD_MAIN
    code: bool = False
    fresh: bool = False
    page_fd: int = -1

    def pack(self) -> bytes:
        """Return it as bytes, for a descriptor that only the child inherits: they hold the mesh's key."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        target, key = self.target, self.target.key
        fields["target"] = [target.address, key and [key.public, key.secret], target.insecure, target.source]
        fields["devices"] = list(self.devices)
        fields["env"] = dict(self.env)
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> ChildConfig:
        """Return what :meth:`pack` packed."""
        fields: dict[str, Any] = msgpack.unpackb(packed)
        address, key, insecure, source = fields["target"]
        fields["target"] = Target(address, key and MeshKey(*key), insecure, source)
        fields["devices"] = tuple(fields["devices"])
        return cls(**fields)
