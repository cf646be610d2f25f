"""Sizes and habits that no linter rule holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, modules, parse

FILE, TEST_FILE, FUNCTION = 400, 900, 60
# In strings too: a script that a test hands to another interpreter should wait for an event like any other.
SLEEP = re.compile(
    r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))|^from (time|asyncio) import .*\bsleep\b", re.MULTILINE
)

SOURCES = [
    *modules().values(),
    *(path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))),
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_short(path: Path) -> None:
    assert lines(path) <= FILE, f"{name_of(path)}: split it by what its parts decide"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION
    ]
    assert not long, f"longer than {FUNCTION} lines: {long}"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_a_test_file_is_short_and_does_not_sleep(path: Path) -> None:
    assert lines(path) <= TEST_FILE
    text = path.read_text()
    sleeps = [text.count("\n", 0, found.start()) + 1 for found in SLEEP.finditer(text)]
    assert path == Path(__file__) or not sleeps, (
        f"{name_of(path)} sleeps in lines {sleeps}: wait for an event, poll through "
        "tests.support.events.eventually, and let a long task wait for a threading.Event"
    )


@pytest.mark.parametrize("line", ["time.sleep(1)", "await asyncio.sleep(0.1)", "from time import sleep"])
def test_the_search_for_sleeps_finds_them(line: str) -> None:
    assert SLEEP.search(line)
    assert not SLEEP.search("await asyncio.sleep(0)")
