"""Gates: tasks that wait in another process until a test lets them go, without sleeping."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Gate", "pass_gate"]


def pass_gate(path: str) -> str:
    """Wait, in any process, until the gate at ``path`` lets one more through."""
    with open(path, "rb", buffering=0) as pipe:
        pipe.read(1)
    return path


class Gate:
    """A named pipe; :func:`pass_gate` waits there until :meth:`open` has let it through. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)

    def open(self, count: int) -> None:
        """Let ``count`` more through."""
        os.write(self._fd, b"." * count)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
