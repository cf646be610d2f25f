"""What a node core is told of its node, and what it has its shell do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from omnibus.address import Target

from .children import Page
from .config import CHILD_MAIN, ChildConfig
from .restart import RestartPolicy

__all__ = ["Command", "Finish", "Fork", "NodeSpec", "Signal"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node is: where it belongs, what it has, what it starts by itself.

    ``hello`` is the head of its HELLO. ``workers`` base workers of one CPU each are kept alive under ``policy``.
    ``grace`` is how long a child may take to stop. Without a broker the node stops after ``connect_grace`` seconds at
    its start, and after ``broker_grace`` later. ``entry`` is its children's main.
    """

    session: bytes
    target: Target
    hello: Mapping[str, Any]
    workers: int = 0
    credits: int = 1024
    code: bool = False
    grace: float = 5.0
    connect_grace: float = 30.0
    broker_grace: float = 30.0
    policy: RestartPolicy = field(default_factory=lambda: RestartPolicy(most=None, window=60.0, base=0.1, cap=10.0))
    entry: str = CHILD_MAIN


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a child; answer with ``on_started`` or ``on_refused``."""

    config: ChildConfig
    page: Page


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a child that was started."""

    session: bytes
    signum: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is over: send what is left, and leave with this status; ``why`` is for people."""

    status: int
    why: str


Command: TypeAlias = Fork | Signal | Finish
