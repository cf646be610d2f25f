"""``python -m omnibus.actors``: how a mesh starts its processes on a host.

``node`` is the one for people; ``child`` and ``zygote`` are what a node starts by itself. The mesh's key comes in
``$OMNIBUS_KEY``, and never on the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from .commands import NodeSpec

__all__ = ["main", "parse"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the first argument names; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    what, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if what == "child":
        from .birth import run_fresh

        run_fresh(*map(int, rest))
    if what == "zygote":
        from .zygote import serve_spawned

        serve_spawned(int(rest[0]), int(rest[1]), rest[2:])
    return _node(parse(arguments))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a node's command line."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m omnibus.actors", description="Processes of an Omnibus mesh.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="node")
    node = commands.add_parser("node", help="supervise the workers and actors of this host")
    add = node.add_argument
    add("--workers", type=int, metavar="N", help="workers that are always there (default: one for each CPU)")
    add("--cpus", type=float, metavar="C", help="CPUs to use (default: those that this process may use)")
    add("--gpus", default="auto", metavar="G", help="how many GPUs to use, their names with commas, or auto")
    add("--memory", default="", metavar="M", help="bytes to give out, such as 64G (default: what there is)")
    add("--label", action="append", default=[], metavar="K=V", help="a property that tasks may ask for; repeatable")
    add("--address", metavar="A", help="the broker's address (default: $OMNIBUS_ADDRESS, then the run file)")
    add("--insecure", action="store_true", help="reach a tcp broker without a key")
    add("--owner", type=int, metavar="PID", help="end with this process")
    add("--name", metavar="NAME", help="the node's name (default: the host's)")
    add("--allow", action="append", default=[], metavar="PKG", help="functions of PKG may be named; repeatable")
    add("--preload", action="append", default=[], metavar="MOD", help="load this module once, for all; repeatable")
    add("--grace", type=float, default=5.0, metavar="S", help="seconds that a child may take to stop")
    add("--broker-grace", type=float, metavar="S", help="seconds to live on without a broker (default: 30; 2 if owned)")
    add("--entry", help=argparse.SUPPRESS)
    add("--log-level", metavar="LEVEL", help="debug, info, warning (the default) or error")
    return parser.parse_args(list(arguments))


def _node(options: argparse.Namespace) -> int:
    """Run a node to its end; return the exit status."""
    from omnibus import logs
    from omnibus.errors import OmnibusError
    from omnibus.functions import ALLOW_VARIABLE
    from omnibus.hostid import host_name

    from .supervisor import Supervisor

    try:
        if options.allow:
            os.environ[ALLOW_VARIABLE] = ",".join(options.allow)
        logs.install(options.log_level, node=options.name or host_name())
        owner = _open_owner(options.owner)
        return Supervisor(_spec(options), owner=owner, preload=options.preload).run()
    except OmnibusError as error:
        print(f"omnibus node: {error}", file=sys.stderr)
        return 1


def _open_owner(pid: int | None) -> int | None:
    """Return a pidfd of the owner; leave at once where it is gone already."""
    if pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(0) from None


def _spec(options: argparse.Namespace) -> NodeSpec:
    """Return what the options make of this host; raises :class:`omnibus.UsageError` naming the one that is wrong."""
    from omnibus.errors import Unreachable
    from omnibus.handshake import describe, new_session
    from omnibus.hostid import host_name
    from omnibus.rundir import resolve

    from .commands import NodeSpec
    from .config import CHILD_MAIN

    target = resolve(options.address, insecure=options.insecure)
    if target is None:
        raise Unreachable("this node belongs to no mesh: give --address, set $OMNIBUS_ADDRESS, or run `omnibus up`")
    session = new_session()
    resources = _resources(options)
    patience = options.broker_grace if options.broker_grace is not None else 30.0 if options.owner is None else 2.0
    hello = describe("node", session, name=options.name or host_name(), code=False, credits=0, **resources)
    return NodeSpec(
        session,
        target,
        hello,
        workers=resources["workers"],
        code=not (target.insecure and target.parsed().is_tcp),
        grace=options.grace,
        broker_grace=patience,
        entry=options.entry or CHILD_MAIN,
    )


def _resources(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the node gives out, as its HELLO says it."""
    from omnibus.errors import UsageError

    from .resources import find_cpus, find_gpus, find_memory, parse_bytes

    cpus = find_cpus() if options.cpus is None else options.cpus
    workers = max(1, int(cpus)) if options.workers is None else options.workers
    if cpus <= 0 or workers < 0:
        raise UsageError(f"--cpus {cpus:g} and --workers {workers}: expected more than 0, and 0 or more")
    labels = dict(label.partition("=")[::2] for label in options.label)
    if not all(labels) or not all("=" in label for label in options.label):
        raise UsageError(f"--label {options.label}: each must be of the form name=value")
    return {
        "cpus": cpus,
        "gpus": list(_gpus(options.gpus, find_gpus())),
        "memory": parse_bytes(options.memory) if options.memory else find_memory(),
        "labels": labels,
        "workers": workers,
    }


def _gpus(wanted: str, found: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs that ``--gpus`` means: all that were found, so many of them, or exactly those named."""
    from omnibus.errors import UsageError

    if wanted == "auto":
        return found
    if not wanted.isdecimal():
        return tuple(name.strip() for name in wanted.split(",") if name.strip())
    if int(wanted) > len(found):
        raise UsageError(f"--gpus {wanted}: this host has {len(found)} ({', '.join(found) or 'none was found'})")
    return found[: int(wanted)]


if __name__ == "__main__":
    sys.exit(main())
