"""The source tree as data: its modules, and what each of them imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOMS", "ROOT", "Import", "imports", "modules", "parse"]

ROOT = Path(__file__).parents[2]
ROOMS = {
    "omnibus": "omnibus",
    "actors": "omnibus.actors",
    "brokers": "omnibus.brokers",
    "launch": "omnibus.launch",
}
"""Top-level folder → import name."""


@dataclass(frozen=True)
class Import:
    """One imported module; ``eager`` where it is loaded together with the module that names it."""

    target: str
    line: int
    eager: bool

    @property
    def top(self) -> str:
        """The first part of the name: the library."""
        return self.target.partition(".")[0]


@functools.cache
def modules() -> dict[str, Path]:
    """Return import name → file of each module, found in the real folders and not through the links."""
    found: dict[str, Path] = {}
    for folder, package in ROOMS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


@functools.cache
def parse(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def imports(name: str) -> tuple[Import, ...]:
    """Return what the module imports, in functions too, but not what only the type checker needs."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = (
        Import(target, line, eager)
        for node, eager in _statements(parse(path), eager=True)
        for target, line in _targets(node, package)
    )
    return tuple(dict.fromkeys(found))


def _statements(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, eager
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _statements(ast.Module([other], []), eager=eager)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, eager=eager and not inside)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parent = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parent, *filter(None, [base])])
    for alias in node.names:
        if (base, alias.name) == ("omnibus", "__version__"):
            continue        # the one name that the package itself holds; it imports nothing to give it
        inner = f"{base}.{alias.name}"
        yield (inner if inner in modules() else base), node.lineno
