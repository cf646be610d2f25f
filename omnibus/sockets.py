"""Whole messages over a ZeroMQ socket, never blocking, small frames copied and large ones not.

ZeroMQ hands a frame over without a copy at a fixed price that only large frames repay, so the batch frame is copied
out and blobs are not; pyzmq's own threshold decides on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import zmq

from omnibus.protocol import Blob

__all__ = ["Sent", "descriptor", "receive", "receive_next", "send"]

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class Sent(IntEnum):
    """What became of a message."""

    OK = 0
    FULL = 1
    GONE = 2


def descriptor(socket: zmq.Socket[bytes]) -> int:
    """Return the socket's file descriptor: edge-triggered, so ask the socket itself before each wait on it."""
    return int(socket.getsockopt(zmq.FD))


def receive(socket: zmq.Socket[bytes], copied: int) -> list[Blob] | None:
    """Return the frames of the next message, ``None`` when none is there.

    The first ``copied`` frames come as ``bytes``, the rest as ``zmq.Frame``, whose memory is ZeroMQ's own and
    writable. Asking for the socket's events first costs less than half of an exception.
    """
    if not socket.getsockopt(_EVENTS) & _POLLIN:  # type: ignore[operator]
        return None
    return receive_next(socket, copied)


def receive_next(socket: zmq.Socket[bytes], copied: int) -> list[Blob]:
    """Wait for the next message, and return its frames as :func:`receive` does."""
    frames: list[Blob] = []
    while True:
        # A frame knows whether more follow; asking the socket for it costs as much as two frames.
        frame = socket.recv(0, False)
        frames.append(frame.bytes if len(frames) < copied else frame)
        if not frame.more:
            return frames


def send(socket: zmq.Socket[bytes], frames: Sequence[Blob]) -> Sent:
    """Send one message if the socket takes it now; say whether it did, its queue is full, or its peer is gone."""
    last = len(frames) - 1
    try:
        for index, frame in enumerate(frames):
            socket.send(frame, _MORE if index < last else _NOBLOCK, copy=index < 3 and type(frame) is bytes)
    except zmq.Again:
        return Sent.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return Sent.GONE
        raise
    return Sent.OK
