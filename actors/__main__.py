"""``python -m omnibus.actors``: how a mesh starts its processes on a host.

``node`` is the one for people; ``child`` and ``zygote`` are what a node starts by itself.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run what the first argument names; return the exit status."""
    what, *rest = arguments or [""]
    if what == "child":
        from .birth import run_fresh

        run_fresh(*map(int, rest))
    if what == "zygote":
        from .zygote import serve_spawned

        serve_spawned(int(rest[0]), int(rest[1]), rest[2:])
    from .nodeargs import run_node

    return run_node(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
