"""The documentation as programs: the fenced blocks of a page, run in their order.

The ``python`` blocks of a page are one script, its ``console`` and ``sh`` blocks one shell session in which the lines
that begin with ``$ `` are commands. What a block should print stands in a ``text`` block right below it, or in a
console block below the command; ``…`` stands for anything within a line. ``<!-- not run: why -->`` above a fence
exempts a block.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

__all__ = ["Block", "blocks", "matches", "pages", "run_python", "run_shell"]

MARK = re.compile(r"<!-- not run: (.+) -->")
FENCE = re.compile(r"(`{3,})(\w*)")
SENTINEL = "=== block {} ==="


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is that of its first line of text, ``skipped`` why it is not run."""

    page: str
    line: int
    language: str
    text: str
    skipped: str = ""
    expected: str | None = None

    @property
    def where(self) -> str:
        """Return where it stands."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the README and every page below ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page, each with the ``text`` block that follows it at once as what it should print."""
    found: list[Block] = []
    gap = True
    for block, apart in _parse(path):
        if block.language == "text" and found and not (gap or apart):
            last = found.pop()
            block = Block(last.page, last.line, last.language, last.text, last.skipped, block.text)
        found.append(block)
        gap = block.language == "text" or block.expected is not None
    return found


def _parse(path: Path) -> Iterator[tuple[Block, bool]]:
    """Yield each block, and whether prose stands between it and the one before."""
    page = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    skipped, apart = "", True
    for number, line in lines:
        if mark := MARK.fullmatch(line.strip()):
            skipped = mark[1]
        elif fence := FENCE.match(line):
            text: list[str] = []
            for _, inside in lines:
                if inside.rstrip() == fence[1]:
                    break
                text.append(inside)
            else:
                raise ValueError(f"{page}:{number}: a fence that is not closed")
            yield Block(page, number + 1, fence[2], "".join(f"{each}\n" for each in text), skipped), apart
            skipped, apart = "", False
        elif line.strip():
            skipped, apart = "", True


def matches(expected: str, printed: str) -> bool:
    """Tell whether what was printed is what was expected."""
    pattern = r"[^\n]*".join(map(re.escape, expected.strip().split("…")))
    return re.fullmatch(pattern, printed.strip()) is not None


def run_python(page: list[Block], folder: Path) -> None:
    """Run blocks as one script, in ``folder``; fail unless it ends well and each prints what it should."""
    if any("import torch" in block.text for block in page):
        pytest.importorskip("torch")
    script = folder / "page.py"
    script.write_text("".join(f"print({SENTINEL.format(n)!r}, flush=True)\n{b.text}" for n, b in enumerate(page)))
    printed = _run([sys.executable, str(script)], folder, page)
    for block, output in zip(page, printed, strict=True):
        if block.expected is not None:
            _compare(block.where, block.expected, output)


def run_shell(page: list[Block], folder: Path) -> None:
    """Run the commands of blocks as one shell session in the root; each must end well and print what it should."""
    commands = [(block, *command) for block in page for command in _commands(block)]
    script = ["set -euo pipefail\n"]
    script += [f"echo '{SENTINEL.format(n)}'\n{command}\n" for n, (_, command, _) in enumerate(commands)]
    file = folder / "page.sh"
    file.write_text("".join(script))
    printed = _run(["bash", str(file)], ROOT, [block for block, _, _ in commands])
    for (block, command, expected), output in zip(commands, printed, strict=True):
        if expected:
            _compare(f"{block.where}: {command}", expected, output)


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the commands of a shell block, each with the lines below it."""
    command, below = "", ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, below
            command, below = line[2:], ""
        elif command.endswith("\\") and not below:
            command += f"\n{line}"
        else:
            assert command, f"{block.where}: a shell block begins with a command, '$ …', not with {line!r}"
            below += f"{line}\n"
    yield command, below


def _run(command: list[str], folder: Path, page: list[Block]) -> list[str]:
    """Run a program that prints a sentinel before each block; return what it printed after each."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "120"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)
    printed = re.split(SENTINEL.format(r"\d+") + "\n", ran.stdout)[1:]
    last = page[len(printed) - 1].where if printed else page[0].page
    assert ran.returncode == 0, f"{last} ended with status {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return printed


def _compare(where: str, expected: str, printed: str) -> None:
    assert matches(expected, printed), f"{where} should print\n{expected}\nand printed\n{printed}"
