"""What a peer says of itself in HELLO."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from omnibus.hostid import host_key, host_name
from omnibus.protocol import VERSION

__all__ = ["PACKAGE_VERSION", "describe", "new_session", "watch_broker"]

PACKAGE_VERSION = "0.1.0"


def new_session() -> bytes:
    """Return a fresh session id: sixteen random bytes."""
    return os.urandom(16)


def watch_broker(welcome: Mapping[str, Any]) -> int | None:
    """Return a pidfd of the broker that sent ``welcome``, by which its end is seen; ``None`` if it is elsewhere."""
    if welcome.get("boot") != host_key():
        return None
    try:
        return os.pidfd_open(int(welcome["pid"]))
    except (OSError, KeyError, ValueError):
        return None


def describe(role: str, session: bytes, **more: Any) -> dict[str, Any]:
    """Return the head of a HELLO: version, role, session, process, host, and what the role adds."""
    return {
        "omb": VERSION,
        "version": PACKAGE_VERSION,
        "role": role,
        "session": session,
        "pid": os.getpid(),
        "host": host_name(),
        "boot": host_key(),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        **more,
    }
