"""The wheel holds each module and data file of the tree, from a clone with links or without."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import omnibus
from tests.repo.tree import ROOMS, ROOT

DATA = ("*.py", "py.typed", "*.sbatch", "*.sh")


def expected() -> set[str]:
    """Return the paths in the wheel of all that the four folders hold."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder)}"
        for folder, package in ROOMS.items()
        for pattern in DATA
        for path in (ROOT / folder).rglob(pattern)
    }


def copy_tree(target: Path, *, links: bool) -> None:
    """Copy what a build reads: one in the tree would leave a folder whose stale modules get into wheels."""
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, target)
    for folder in ROOMS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=ignore)
    if not links:
        for link in [path for path in (target / "omnibus").iterdir() if path.is_symlink()]:
            text = str(link.readlink())
            link.unlink()
            link.write_text(text)       # what git makes of a link where the file system has none


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
def test_the_wheel_holds_the_tree(tmp_path: Path, links: bool) -> None:
    source, target = tmp_path / "source", tmp_path / "wheel"
    source.mkdir()
    copy_tree(source, links=links)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    built = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source)],
        capture_output=True, text=True, check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = target.iterdir()
    assert wheel.name == f"omnibus-{omnibus.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "installed")
    assert held == expected()
    assert {name.partition("/")[0] for name in held} == {"omnibus"}
    check_import(tmp_path / "installed")


def check_import(installed: Path) -> None:
    """Import the packages from the unpacked wheel, without this environment's own installation of them."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import {0}; print({0}.__file__)"
    for package in ROOMS.values():
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script.format(package), str(installed)],
            capture_output=True, text=True, check=True,
        )
        assert Path(ran.stdout.strip()).is_relative_to(installed)
