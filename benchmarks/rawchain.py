"""The raw chain: the floor that every figure of the bus is set against.

Three processes and plain pyzmq: a client's DEALER, a ROUTER/ROUTER loop in Python, a worker's DEALER, and back. One
message a task, no logic, no futures. ``RawChain`` starts the two other processes, and measures from this one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

import zmq

__all__ = ["RawChain"]


def _broker(front: str, back: str) -> None:
    context = zmq.Context()
    clients, workers = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    clients.bind(front)
    workers.bind(back)
    worker = workers.recv_multipart()[0]
    poller = zmq.Poller()
    poller.register(clients, zmq.POLLIN)
    poller.register(workers, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            while True:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if socket is clients:
                    workers.send_multipart([worker, *frames])
                else:
                    clients.send_multipart(frames[1:])


def _worker(back: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(back)
    socket.send(b"ready")
    while True:
        socket.send_multipart(socket.recv_multipart())


class RawChain:
    """A context manager that runs the chain over ``ipc://`` and measures it."""

    def __enter__(self) -> RawChain:
        self._folder = tempfile.mkdtemp(prefix="raw-")
        front, back = f"ipc://{self._folder}/f", f"ipc://{self._folder}/b"
        run = [sys.executable, __file__]
        self._processes = [subprocess.Popen([*run, "broker", front, back]), subprocess.Popen([*run, "worker", back])]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.connect(front)
        self.latency(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(0)
        self._context.term()
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)

    @property
    def pids(self) -> list[int]:
        """The processes of the chain, this one among them."""
        return [os.getpid(), *(process.pid for process in self._processes)]

    def rate(self, count: int, window: int = 1000) -> float:
        """Return round trips per second with ``window`` messages of 16 bytes in flight."""
        send, receive, body = self._socket.send_multipart, self._socket.recv_multipart, [b"task", b"0123456789abcdef"]
        began = time.perf_counter()
        for _ in range(min(window, count)):
            send(body)
        for done in range(count):
            receive()
            if done + window < count:
                send(body)
        return count / (time.perf_counter() - began)

    def latency(self, count: int) -> list[float]:
        """Return the sorted times of ``count`` round trips, one at a time, in seconds."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self._socket.send_multipart([b"task", b"0123456789abcdef"])
            self._socket.recv_multipart()
            times.append(time.perf_counter() - began)
        return sorted(times)


if __name__ == "__main__":
    {"broker": _broker, "worker": _worker}[sys.argv[1]](*sys.argv[2:])
