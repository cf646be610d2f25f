"""The raw chain for large frames: over tcp, without a copy, one at a time; the floor for tensors.

Client DEALER → ROUTER/ROUTER loop → worker DEALER, which answers a few bytes. With keys, every link is under CURVE.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import zmq

__all__ = ["RawTensor"]

_KEYS = "RAW_CURVE_KEYS"


def _secure(socket: zmq.Socket[bytes], *, server: bool) -> None:
    """Put ``socket`` under CURVE where there are keys: both sides present the same pair, as the mesh's do."""
    if not os.environ.get(_KEYS):
        return
    public, secret = (text.encode() for text in os.environ[_KEYS].split(" "))
    socket.curve_publickey, socket.curve_secretkey = public, secret
    if server:
        socket.curve_server = True
    else:
        socket.curve_serverkey = public


def _broker() -> None:
    context = zmq.Context()
    sockets = [context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)]
    for socket in sockets:
        _secure(socket, server=True)
        socket.bind("tcp://127.0.0.1:*")
    print(*(socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets), flush=True)
    clients, workers = sockets
    worker = workers.recv_multipart()[0]
    while True:
        workers.send_multipart([worker, *clients.recv_multipart(copy=False)], copy=False)
        clients.send_multipart(workers.recv_multipart(copy=False)[1:], copy=False)


def _worker(back: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    _secure(socket, server=False)
    socket.connect(back)
    socket.send(b"ready")
    while True:
        *envelope, body = socket.recv_multipart(copy=False)
        data = body.buffer
        socket.send_multipart([*envelope, b"%d %d %d" % (len(data), data[0], data[-1])], copy=False)


class RawTensor:
    """A context manager that runs the chain. ``keys`` are a CURVE pair or nothing; its processes get ``env`` too."""

    def __init__(self, keys: str = "", env: dict[str, str] | None = None) -> None:
        self._keys = keys
        plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        self._env = {**plain, _KEYS: keys, **(env or {})}
        self._processes: list[subprocess.Popen[str]] = []
        self._context = zmq.Context()

    def __enter__(self) -> RawTensor:
        try:
            front, back = self._start("broker").split()
            self._processes.append(
                subprocess.Popen([sys.executable, __file__, "worker", back], env=self._env, text=True)
            )
            self._socket = self._context.socket(zmq.DEALER)
            os.environ[_KEYS] = self._keys
            _secure(self._socket, server=False)
            self._socket.connect(front)
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.environ.pop(_KEYS, None)
        return self

    def _start(self, role: str) -> str:
        process = subprocess.Popen([sys.executable, __file__, role], env=self._env, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def send(self, array: Any) -> float:
        """Send the memory of ``array`` to the worker, and return the seconds until its answer is here."""
        began = time.perf_counter()
        self._socket.send_multipart([b"task", array], copy=False)
        if not self._socket.poll(60_000):
            raise TimeoutError("the raw chain did not answer within 60 s")
        answer = self._socket.recv_multipart()[-1]
        took = time.perf_counter() - began
        if int(answer.split()[0]) != array.nbytes:
            raise AssertionError(f"{array.nbytes} bytes were sent, and the worker answers {answer!r}")
        return took


if __name__ == "__main__":
    {"broker": _broker, "worker": _worker}[sys.argv[1]](*sys.argv[2:])
