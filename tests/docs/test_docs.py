"""Each page of the documentation does what it says: its blocks run, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, matches, pages, run_python, run_shell
from tests.repo.tree import ROOT

SHELL = ("sh", "console")
# What is not run, by its first line: a block is exempt by a mark above it that says why, and by standing here.
NOT_RUN = [
    ("README.md", "make demo"),
    ("README.md", "$ pip install ."),
    ("docs/howto/security.md", "$ scp head:"),
    ("docs/tutorial.md", "$ omnibus up --workers 4"),
]
DRAWN = {"", "c", "json", "mermaid", "text", "javascript", "ini"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def of(path: Path, *languages: str) -> list[Block]:
    return [block for block in blocks(path) if block.language in languages and not block.skipped]


DOCS = [path for path in pages() if path.name != "README.md" or path.parent != ROOT]


@pytest.mark.parametrize("path", [path for path in DOCS if of(path, "python")], ids=name_of)
def test_the_python_of_a_page_runs(path: Path, tmp_path: Path) -> None:
    run_python(of(path, "python"), tmp_path)


@pytest.mark.parametrize("path", [path for path in pages() if of(path, *SHELL)], ids=name_of)
def test_the_commands_of_a_page_run(path: Path, tmp_path: Path) -> None:
    run_shell(of(path, *SHELL), tmp_path)


def test_what_is_not_run_is_listed() -> None:
    skipped = [block for path in pages() for block in blocks(path) if block.skipped]
    assert len(skipped) == len(NOT_RUN), [block.where for block in skipped]
    for block, (page, beginning) in zip(skipped, NOT_RUN, strict=True):
        assert block.page == page
        assert block.text.startswith(beginning)


def test_every_block_is_run_or_drawn() -> None:
    known = {"python", *SHELL, *DRAWN}
    assert not [block.where for path in pages() for block in blocks(path) if block.language not in known]


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert not broken, f"{name_of(path)}: {broken}"


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_files_that_a_page_names_exist(path: Path) -> None:
    rooms = "actors|benchmarks|brokers|docs|examples|launch|omnibus|tests"
    named = re.findall(rf"`((?:{rooms})/[\w/.-]+\.\w+)`", path.read_text())
    assert not [each for each in named if not (ROOT / each).exists()]


# --- the reader of pages itself


PAGE = """\
Words.
```python
print(1)
```
```text
1
```
More words.
<!-- not run: too slow -->
```sh
$ make all
```
```text
apart
```
```console
$ echo a \\
  b
a …
$ true
```
"""


@pytest.fixture
def page(tmp_path: Path) -> list[Block]:
    (tmp_path / "page.md").write_text(PAGE)
    return blocks(tmp_path / "page.md")


def test_blocks_are_read_with_what_they_print(page: list[Block]) -> None:
    assert [(each.language, each.line, each.skipped, each.expected) for each in page] == [
        ("python", 3, "", "1\n"),
        ("sh", 11, "too slow", "apart\n"),
        ("console", 17, "", None),
    ]


def test_a_page_runs(page: list[Block], tmp_path: Path) -> None:
    run_python([page[0]], tmp_path)
    run_shell([page[2]], tmp_path)


def test_a_page_that_prints_something_else_fails(page: list[Block], tmp_path: Path) -> None:
    wrong = Block("page", 1, "python", "print(2)\n", expected="1\n")
    with pytest.raises(AssertionError, match="page:1 should print\n1"):
        run_python([page[0], wrong], tmp_path)
    with pytest.raises(AssertionError, match="page:1: echo 2 should print"):
        run_shell([Block("page", 1, "sh", "$ echo 2\n1\n")], tmp_path)


def test_a_page_that_fails_says_where(page: list[Block], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)page:7 ended with status 1:.*ZeroDivisionError"):
        run_python([page[0], Block("page", 7, "python", "1 / 0\n"), Block("page", 9, "python", "print(3)\n")], tmp_path)
    with pytest.raises(AssertionError, match="page:7 ended with status 1"):
        run_shell([Block("page", 7, "sh", "$ false\n$ true\n")], tmp_path)
    with pytest.raises(AssertionError, match="begins with a command"):
        run_shell([Block("page", 7, "sh", "make\n")], tmp_path)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [("a … c", "a b c\n", True), ("a …", "b", False), ("a …", "a \nb", False), ("1\n2", "1\n2\n", True)],
)
def test_an_ellipsis_stands_for_anything_within_a_line(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) == same
