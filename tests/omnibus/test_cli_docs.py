"""``docs/howto/cli.md`` does what it says: its sessions are run in their order, command by command."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.cli import app
from tests.repo.tree import ROOT
from tests.support.cli import environment
from tests.support.console import Session, pattern, steps

PAGE = (ROOT / "docs" / "howto" / "cli.md").read_text()
RUNS_ON = re.compile(r"\bomnibus (up|broker|node)\b")
SESSION = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRYING = "## Trying it"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def session(run_dir: Path, tmp_path: Path) -> Iterator[Session]:
    """Give a shell in an empty directory where ``omnibus`` and ``python`` are this environment's."""
    for name, text in MODULE.findall(PAGE):
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    opened = Session(tmp_path, environment(run_dir, PATH=path), RUNS_ON)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def cluster() -> Iterator[str]:
    """Give a second run directory."""
    path = f"/tmp/obc{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def sessions(text: str) -> list[str]:
    return SESSION.findall(text)


def test_what_the_page_shows_is_what_happens(session: Session, cluster: str) -> None:
    text, _, _ = PAGE.partition(TRYING)
    # The page speaks of another host and a fixed port: both are here.
    text = text.replace("10.0.0.1:7890", f"127.0.0.1:{free_port()}").replace("/tmp/cluster", cluster)
    for block in sessions(text):
        for step in steps(block):
            session.run(step)


@pytest.mark.parametrize("number", [0, 1])
def test_the_page_can_be_tried(session: Session, number: int) -> None:
    pytest.importorskip("sklearn")
    block = sessions(PAGE.partition(TRYING)[2])[number]
    for step in steps(block):
        session.run(step)


def test_the_page_names_every_command() -> None:
    table, _, _ = PAGE.partition("## A mesh in one terminal")
    assert {each.callback.__name__ for each in app.registered_commands if each.callback} == set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    )


def test_every_session_has_a_command() -> None:
    shown = sessions(PAGE)
    assert len(shown) == PAGE.count("```text\n") > 10
    assert PAGE.count("```python\n") == len(MODULE.findall(PAGE)) == 1
    assert all(step.command or step.interrupted is not None for block in shown for step in steps(block))


# ---------------------------------------------------------------------- the reader of sessions itself


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a"], "a\n", True),
        (["a"], "b\n", False),
        (["a"], "a\na\n", False),
        (["a … c"], "a b c\n", True),
        (["a … c"], "a b\nc\n", False),
        (["…", "z"], "a\nb\nz\n", True),
        (["…", "z"], "z\n", True),
        (["a", "…"], "a\n", True),
        (["a  b"], "   a     b   \n", True),
        ([], "", True),
        ([], "a\n", False),
    ],
)
def test_what_is_shown_stands_for_what_is_printed(shown: list[str], printed: str, same: bool) -> None:
    assert (pattern(shown).fullmatch(printed) is not None) == same


def test_a_session_is_read_as_steps(tmp_path: Path) -> None:
    first, second = steps("$ one\na\n$ two\nb\n^C\nc\n")
    assert (first.command, first.printed, first.interrupted) == ("one", ["a"], None)
    assert (second.command, second.printed, second.interrupted) == ("two", ["b"], ["c"])
    (end,) = steps("^C\nbye\n")
    assert (end.command, end.interrupted) == ("", ["bye"])
    with pytest.raises(AssertionError, match="begins with a command"):
        steps("hello\n")
    shell = Session(tmp_path, os.environ, re.compile("never"))
    with pytest.raises(AssertionError, match=r"(?s)\$ echo b\nshould print\na\nand printed\nb"):
        shell.run(steps("$ echo b\na\n")[0])
