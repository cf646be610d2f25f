"""What a child process runs to be looked at: this module loads nothing."""

from __future__ import annotations

import sys

__all__: list[str] = []

HEAVY = ("numpy", "pyarrow", "torch", "cloudpickle", "asyncio", "tenacity", "omnibus.bus", "omnibus.peer")


def loaded() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]
