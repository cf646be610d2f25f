"""Omnibus: an actor-model message bus over ZeroMQ for machine-learning work.

::

    import omnibus

    with omnibus.connect() as bus:
        print(bus.submit(pow, 2, 10).result())

Every name below is loaded when it is first used (PEP 562). The processes of a mesh start as ``python -m
omnibus.brokers`` and ``python -m omnibus.actors``, so this package is imported in all of them: what it would
load here, a broker would pay for in each of its starts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnibus.actors.actor import Actor
    from omnibus.actors.embed import serve
    from omnibus.aio import AsyncBus, aconnect
    from omnibus.bus import Bus, connect
    from omnibus.errors import (
        AlreadyExists,
        BusClosed,
        Cancelled,
        CapacityExceeded,
        ConnectTimeout,
        DeadLetter,
        Expired,
        ForkedError,
        MeshError,
        NotFound,
        NotPicklable,
        OmnibusError,
        OutOfMemory,
        Preempted,
        ProtocolError,
        RemoteError,
        SetupFailed,
        TaskError,
        TaskTimeout,
        Unauthorized,
        Unreachable,
        UsageError,
        WorkerDied,
    )
    from omnibus.executor import Executor
    from omnibus.futures import Future
    from omnibus.refs import ActorRef
    from omnibus.running import current

__all__ = [
    "Actor",
    "ActorRef",
    "AlreadyExists",
    "AsyncBus",
    "Bus",
    "BusClosed",
    "Cancelled",
    "CapacityExceeded",
    "ConnectTimeout",
    "DeadLetter",
    "Executor",
    "Expired",
    "ForkedError",
    "Future",
    "MeshError",
    "NotFound",
    "NotPicklable",
    "OmnibusError",
    "OutOfMemory",
    "Preempted",
    "ProtocolError",
    "RemoteError",
    "SetupFailed",
    "TaskError",
    "TaskTimeout",
    "Unauthorized",
    "Unreachable",
    "UsageError",
    "WorkerDied",
    "__version__",
    "aconnect",
    "connect",
    "current",
    "serve",
]

__version__ = "0.1.0"

_HOMES = {
    "Actor": "omnibus.actors.actor",
    "ActorRef": "omnibus.refs",
    "AsyncBus": "omnibus.aio",
    "Bus": "omnibus.bus",
    "Executor": "omnibus.executor",
    "Future": "omnibus.futures",
    "aconnect": "omnibus.aio",
    "connect": "omnibus.bus",
    "current": "omnibus.running",
    "serve": "omnibus.actors.embed",
}
"""Where a name that is no error lives; all other names of ``__all__`` are errors."""


def __getattr__(name: str) -> object:
    """Load a public name from its module, and keep it here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "omnibus.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
