"""A child process on the bench: the test is its broker, its supervisor and its output's reader."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import zmq

from omnibus.actors.config import ChildConfig
from omnibus.address import Target
from omnibus.payload import encode_call
from omnibus.protocol import Record, Verb, decode, encode
from omnibus.sharedmem import StatusPage
from tests.support.events import eventually
from tests.support.sockets import Context

__all__ = ["Child"]

JOBS = "tests.actors.childjobs"


class Child:
    """One child, started as a fresh interpreter. Close it, whatever happened. ``tcp``: over a link that may break."""

    def __init__(self, context: Context, folder: Path, role: str = "worker", *, tcp: bool = False) -> None:
        self.folder = folder
        self.page = StatusPage.create()
        self.session = os.urandom(16)
        self.hello: dict[str, Any] = {}
        self._aids = itertools.count(1)
        self._kinds = itertools.count(1)
        self._records: deque[Record] = deque()
        self._route = b""
        self._context = context
        self._router = context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*" if tcp else f"ipc://{folder}/b")
        self._address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        target = Target(self._address, insecure=tcp)
        config = ChildConfig("it", role, self.session, b"n" * 16, target, code=True, credits=100)
        told, death = os.memfd_create("config", 0), os.pipe()
        page = os.dup(self.page.fd)
        os.set_inheritable(page, True)
        fields = {name: getattr(config, name) for name in config.__slots__} | {"page_fd": page}
        os.write(told, ChildConfig(**fields).pack())
        os.lseek(told, 0, os.SEEK_SET)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "omnibus.actors", "child", str(told), str(death[0])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(told, death[0], page),
            cwd=Path(__file__).parents[2],
        )
        for fd in (told, page, *death):
            os.close(fd)

    def close(self) -> None:
        """Kill what is left, and reap it."""
        self.process.kill()
        self.process.communicate()
        self._router.close(0)
        self.page.close()

    # ------------------------------------------------------------------ the broker

    def next(self, timeout: int = 20) -> Record:
        """Return the child's next record, what it says of costs left out."""
        while True:
            while not self._records:
                assert self._router.poll(timeout * 1000), f"the child says nothing; {self.process.poll()=}"
                route, *frames = self._router.recv_multipart()
                self._route = route
                self._records.extend(decode(frames))
            record = self._records.popleft()
            if record[0] not in (Verb.TIMED, Verb.PONG):
                return record

    def welcome(self, **more: Any) -> None:
        """Answer the child's HELLO."""
        verb, number, self.hello, _, _ = self.next()
        assert verb == Verb.HELLO
        self.tell([Verb.WELCOME, number, {"omb": 1, "epoch": b"e", **more}, None, 0])

    def arrives(self, timeout: int = 20) -> None:
        """Wait until something has come from the child, and leave it."""
        assert self._router.poll(timeout * 1000)

    def break_link(self) -> None:
        """Lose the link, and what is under way on it."""
        self._router.close(0)
        self._records.clear()

    def mend_link(self) -> None:
        """Listen again where the child tries to come back; ZeroMQ closes sockets in its own time."""
        self._router = self._context.socket(zmq.ROUTER)

        def listen() -> bool:
            with contextlib.suppress(zmq.ZMQError):
                self._router.bind(self._address)
                return True
            return False

        eventually(listen)

    def tell(self, *records: Record) -> None:
        """Send records in one message."""
        self._router.send_multipart([self._route, *encode(records)])

    def tell_raw(self, *frames: bytes) -> None:
        """Send a message that may be none."""
        self._router.send_multipart([self._route, *frames])

    def run(self, job: str, *args: Any, **head: Any) -> int:
        """Hand out an attempt at a function, of ``childjobs`` if no module is named, or at a ``.method``."""
        kind, aid = next(self._kinds), next(self._aids)
        what = {"method": job[1:]} if job.startswith(".") else {"fn": job if ":" in job else f"{JOBS}:{job}"}
        body, _ = encode_call(args, {}, code=False)
        self.tell(
            [Verb.DEFINE, kind, {**what, "session": b"c" * 16, **head}, None, 0],
            [Verb.RUN, aid, [kind, aid, 1], body, 0],
        )
        return aid

    def spawn(self, cls: str, **head: Any) -> int:
        """Have the actor made; return the attempt's number."""
        aid = next(self._aids)
        making = {"cls": f"{JOBS}:{cls}", "name": "it", **head}
        self.tell([Verb.DEFINE, 0, making, None, 0], [Verb.SPAWN, aid, making, b"\x90", 0])
        return aid

    # ------------------------------------------------------------------ the supervisor

    def gate(self) -> str:
        """Return the path of a gate at which a job says that it is there; see :meth:`reached`."""
        path = str(self.folder / f"gate{next(self._aids)}")
        os.mkfifo(path)
        os.mkfifo(path + ".go")
        return path

    @staticmethod
    def reached(path: str) -> None:
        """Wait until a job is at its gate."""
        with open(path, "rb", buffering=0) as pipe:
            assert pipe.read(1) == b"."

    @staticmethod
    def let_go(path: str) -> None:
        """Let a job at its gate go on."""
        with open(path + ".go", "wb", buffering=0) as pipe:
            pipe.write(b".")

    def signal(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def printed(self) -> str:
        """Return what is in the child's output now, without waiting."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        return os.read(fd, 65536).decode() if select.select([fd], [], [], 0)[0] else ""

    def ended(self, timeout: float = 20.0) -> tuple[int, str, str]:
        """Wait for the child's end; return its status, the rest of its output, and its error output."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.decode(), err.decode()
