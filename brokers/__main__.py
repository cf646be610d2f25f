"""``python -m omnibus.brokers``: one broker process.

The mesh's key comes in ``$OMNIBUS_KEY`` and never on the command line. ``omnibus broker`` is the same for people.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from omnibus import logs
from omnibus.address import KEY_VARIABLE, MeshKey, parse_address
from omnibus.errors import OmnibusError
from omnibus.handshake import PACKAGE_VERSION
from omnibus.hostid import ProcessMark, host_key, host_name
from omnibus.links import make_context, make_router
from omnibus.protocol import Limits
from omnibus.rundir import announce_ready
from omnibus.runfile import RunFile

from .auth import Authenticator, advertise, bind_all, new_key, remove_sockets
from .core import Broker
from .shell import Shell
from .state import Settings

__all__ = ["main", "parse"]

_LIMITS = Limits()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m omnibus.brokers", description="Run one Omnibus broker.")
    add = parser.add_argument
    add("--bind", action="append", required=True, metavar="ADDRESS", help="ipc://PATH or tcp://HOST:PORT; repeatable")
    add("--insecure", action="store_true", help="bind tcp without a key: whoever reaches the port may use the mesh")
    add("--run-file", type=Path, metavar="PATH", help="write address and key there, for others to find")
    add("--owner", type=int, metavar="PID", help="end with this process")
    add("--guard", type=int, metavar="N", help="give every N-th dispatch to a lower lane (default: strict order)")
    add("--grace", type=float, default=30.0, metavar="S", help="seconds for which a lost session may come back")
    add("--window-tasks", type=int, default=_LIMITS.window_tasks, metavar="N", help="a client's open tasks in a lane")
    add("--window-bytes", type=int, default=_LIMITS.window_bytes, metavar="N", help="their bytes")
    add("--log-level", metavar="LEVEL", help="debug, info, warning (the default) or error")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or the owner's end; return the exit status."""
    options = parse(sys.argv[1:] if argv is None else argv)
    logs.install(options.log_level)
    try:
        return _serve(options)
    except OmnibusError as error:
        print(f"omnibus broker: {error}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    owner = _open_owner(options.owner)
    wake = _signals()
    key = _key(options)
    context = make_context()
    router = make_router(context)
    authenticator = Authenticator(context, [key.public]) if key is not None else None
    endpoints = bind_all(router, options.bind, key=key, insecure=options.insecure)
    limits = Limits(window_tasks=options.window_tasks, window_bytes=options.window_bytes)
    # Over an open tcp port anybody may send a pickle, and nobody can tell it from a friend's: so none is loaded at all.
    keyless = key is None and any(parse_address(text, bind=True).is_tcp for text in options.bind)
    settings = Settings(limits=limits, code=not keyless, grace=options.grace, guard=options.guard)
    core = Broker(os.urandom(8), time.monotonic(), settings, version=PACKAGE_VERSION)
    addresses = tuple(advertise(endpoint, host_name()) for endpoint in endpoints)
    core.mesh.about = {"address": addresses[0], "pid": os.getpid(), "host": host_name(), "boot": host_key()}
    try:
        if options.run_file is not None:
            mark = ProcessMark.of(os.getpid())
            RunFile(addresses, core.mesh.epoch.hex(), mark, time.time(), key).write(options.run_file)
        announce_ready(addresses[0])
        _tame_collector()
        Shell(core, router, authenticator=authenticator, wake=wake, owner=owner).run()
    finally:
        if options.run_file is not None:
            RunFile.remove(options.run_file, core.mesh.epoch.hex())
        remove_sockets(endpoints)
        router.close(linger=500)
        if authenticator is not None:
            authenticator.close()
        context.term()
    return 0


def _key(options: argparse.Namespace) -> MeshKey | None:
    """Return the mesh's key where a tcp bind needs one: the one that was handed over, or a fresh one."""
    if options.insecure or not any(parse_address(text, bind=True).is_tcp for text in options.bind):
        return None
    text = os.environ.get(KEY_VARIABLE, "")
    return MeshKey.parse(text, f"${KEY_VARIABLE}") if text else new_key()


def _open_owner(pid: int | None) -> int | None:
    """Return a pidfd of the owner; leave at once where it is gone already."""
    if pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(0) from None


def _signals() -> int:
    """Turn SIGTERM and SIGINT into bytes in a pipe that the loop polls; return its read end."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read


def _tame_collector() -> None:
    """Let the cycle collector look rarely: a million queued tasks are a million objects and no garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


if __name__ == "__main__":
    sys.exit(main())
