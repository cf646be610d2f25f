"""An embedded mesh: a broker and a node that belong to this process and end with it."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnibus.address import Target
from omnibus.errors import UsageError
from omnibus.face import WITHIN_VARIABLE
from omnibus.launch.base import Handle
from omnibus.launch.local import LocalLauncher
from omnibus.private import private_dir, remove_private_dir
from omnibus.protocol import Verb
from omnibus.streams import SUBSCRIPTION_CREDIT

if TYPE_CHECKING:
    from omnibus.peer import ClientPeer

__all__ = ["EmbeddedMesh", "Output", "interpreter", "mesh_environment"]

_KEPT = 256 << 20
_KEEP_MEMORY = f"glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold={_KEPT}:glibc.malloc.trim_threshold={_KEPT}"


def interpreter() -> list[str]:
    """Return how the mesh's processes are started: by this interpreter, with no working directory in its path."""
    return [sys.executable, "-P", "-m"]


def mesh_environment() -> dict[str, str]:
    """Return what the mesh's processes must know of this one: where its modules come from, and how to allocate.

    Memory that a large frame is received into would be fresh each time, and faulting it in page by page is most of the
    work: so it is kept and used again (``benchmarks/tensor_tcp.py``), up to 256 MiB for a process that saw large
    frames. ``$GLIBC_TUNABLES`` of the caller's own is left as it is. It must be set before a process begins.
    """
    package = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return {
        "GLIBC_TUNABLES": tunables or _KEEP_MEMORY,
        "OMNIBUS_SYS_PATH": json.dumps([os.path.abspath(entry) for entry in sys.path]),
        "PYTHONPATH": os.pathsep.join([package, inherited] if inherited else [package]),
    }


class EmbeddedMesh:
    """A broker and a node over ``ipc://`` in a private directory. :meth:`start` makes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = Target(f"ipc://{folder}/broker", source="embedded mesh")
        self._launcher = LocalLauncher()
        self._broker: Handle | None = None
        self._node: Handle | None = None
        self._stopped = False
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def start(
        cls,
        *,
        workers: int | None = None,
        cpus: float | None = None,
        gpus: int | str | None = None,
        memory: int | None = None,
        preload: tuple[str, ...] = (),
        timeout: float = 10.0,
    ) -> EmbeddedMesh:
        """Start both side by side, and return once they serve.

        ``workers`` defaults to the number of CPUs that this process may use. Raises :class:`omnibus.SetupFailed` with
        their last words where one of them ends at once, :class:`omnibus.ConnectTimeout` where one is not ready in
        time.
        """
        count = len(os.sched_getaffinity(0)) if workers is None else workers
        if count < 0:
            raise UsageError(f"workers must be 0 or more, not {workers}")
        options = ["--workers", str(count), "--name", "local"]
        for flag, value in (("--cpus", cpus), ("--gpus", gpus), ("--memory", memory)):
            if value is not None:
                options += [flag, str(value)]
        for module in preload:
            options += ["--preload", module]
        mesh = cls(private_dir())
        try:
            mesh._launch(options, timeout)
        except BaseException:
            mesh.stop()
            raise
        atexit.register(mesh.stop)
        return mesh

    def _launch(self, options: list[str], timeout: float) -> None:
        run = interpreter()
        owner = ["--owner", str(os.getpid())]
        environment = mesh_environment() | dict(self.target.environment()) | {WITHIN_VARIABLE: ""}
        bind = ["--bind", self.target.address, *owner]
        start = self._launcher.submit
        self._broker = start([*run, "omnibus.brokers", *bind], name="broker", env=environment, ready=True)
        self._node = start([*run, "omnibus.actors", "node", *options, *owner], name="node", env=environment, ready=True)
        self._launcher.wait_ready(self._broker, timeout)
        self._launcher.wait_ready(self._node, timeout)

    def show_output(self, peer: ClientPeer, submitted: Callable[[], None]) -> None:
        """Have what the workers print appear on this process's own output, by way of the session that ``peer`` is."""
        seq = peer.next_seq()
        peer.sinks[seq] = Output(peer, seq)
        peer.out.append([Verb.SUBSCRIBE, seq, {"topic": "log", "since": 1, "credit": SUBSCRIPTION_CREDIT}, None, 0])
        submitted()

    def stop_node(self) -> None:
        """End the node and its children first, so that their last output still reaches this process."""
        if os.getpid() == self._owner and self._node is not None and not self._stopped:
            self._launcher.cancel(self._node, grace=5.0)

    def stop(self) -> None:
        """End both, and remove the directory. Doing it twice does nothing, nor does a forked copy of this process."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        atexit.unregister(self.stop)
        self._launcher.close(grace=5.0)
        remove_private_dir(self.folder)


class Output:
    """Writes what children print to the ``sys.stdout`` and ``sys.stderr`` of now, each line marked with its source."""

    def __init__(self, peer: ClientPeer, seq: int) -> None:
        self._peer = peer
        self._seq = seq
        self._taken = 0

    def feed(self, value: Any, number: int, missed: int) -> None:
        """Show one line."""
        stream = sys.stderr if value.get("stream") == "err" else sys.stdout
        try:
            if missed:
                stream.write(f"({missed} lines of output were dropped)\n")
            stream.write(f"({value['source']} pid={value['pid']}) {value['text']}\n")
        except (OSError, ValueError):
            return  # the program has closed its output
        self._taken += 1
        if self._taken >= SUBSCRIPTION_CREDIT // 2:
            self._peer.out.append([Verb.CREDIT, self._seq, self._taken, None, 0])
            self._taken = 0

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes."""
