"""ZeroMQ contexts for tests: whatever a test opens in one is closed with it, also where the test fails half-way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

__all__ = ["Context", "open_context"]

Context = zmq.Context[zmq.Socket[bytes]]


@contextlib.contextmanager
def open_context() -> Iterator[Context]:
    """Give a context that keeps its sockets, so that none is collected, with a warning, before the context ends."""
    kept: list[zmq.Socket[bytes]] = []

    class Keeping(zmq.Context[zmq.Socket[bytes]]):
        def socket(self, *args: Any, **more: Any) -> zmq.Socket[bytes]:
            kept.append(super().socket(*args, **more))
            return kept[-1]

    context = Keeping()
    try:
        yield context
    finally:
        context.destroy(linger=0)
