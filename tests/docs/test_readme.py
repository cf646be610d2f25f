"""The README: its code runs as it stands, and it has what a reader looks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, run_python
from tests.repo.tree import ROOT

README = ROOT / "README.md"
TEXT = README.read_text()
PAGE_OF_CODE = 80


def test_the_code_runs(tmp_path: Path) -> None:
    run_python([block for block in blocks(README) if block.language == "python"], tmp_path)


def test_the_code_is_less_than_a_page() -> None:
    code = [block for block in blocks(README) if block.language in ("python", "c")]
    assert sum(len(block.text.splitlines()) for block in code) < PAGE_OF_CODE


@pytest.mark.parametrize("what", ["bus.submit(", "omnibus.Actor", ".stream(", "torch.", "omnibus.serve(", "priority="])
def test_the_code_shows(what: str) -> None:
    assert any(what in block.text for block in blocks(README) if block.language == "python")


def test_the_call_from_c_is_the_core_of_the_example_that_is_compiled() -> None:
    (shown,) = [block.text for block in blocks(README) if block.language == "c"]
    source = (ROOT / "examples/polyglot/client.c").read_text()
    assert squeeze(shown) in squeeze(source)


def squeeze(text: str) -> str:
    """Return ``text`` with any white space as one space."""
    return " ".join(text.split())


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_two_commands_are_there_and_the_makefile_has_them(command: str) -> None:
    assert re.search(rf"^(\$ )?{command}\b", TEXT, re.MULTILINE)
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_figures_name_the_benchmark_that_measures_them() -> None:
    table = TEXT[TEXT.index("## How it compares") : TEXT.index("## What it promises")]
    assert re.search(r"`benchmarks/\w+\.py`", table)


def test_every_page_of_the_documentation_is_reached_from_the_readme() -> None:
    missing = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page.name not in TEXT]
    assert not missing
