"""What holds for every test: a run directory of its own, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.events import eventually
from tests.support.leftovers import Traces, clear, new_traces

# The machine's load decides how long an example takes, so no example has a deadline.
hypothesis.settings.register_profile("omnibus", deadline=None, print_blob=True)
hypothesis.settings.load_profile("omnibus")

RUN_DIR = pytest.StashKey[Path]()
GRACE = 5.0     # seconds after a crash until nothing may be left


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a private run directory, before any test module is imported."""
    # Below /tmp and not below $TMPDIR: the path of a unix socket has at most 107 bytes.
    run_dir = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    config.stash[RUN_DIR] = run_dir
    os.environ["OMNIBUS_RUN_DIR"] = str(run_dir)
    os.environ.pop("OMNIBUS_ADDRESS", None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run directory."""
    shutil.rmtree(config.stash[RUN_DIR], ignore_errors=True)


@pytest.fixture(scope="session")
def run_dir(request: pytest.FixtureRequest) -> Path:
    """Return the session's run directory, short enough for unix sockets below it."""
    return request.config.stash[RUN_DIR]


@pytest.fixture(scope="module", autouse=True)
def no_leftovers(run_dir: Path) -> Iterator[None]:
    """Fail the module that leaves processes, shared memory or sockets behind."""
    before = Traces.take(run_dir)
    yield
    with contextlib.suppress(AssertionError):       # what is left is said below
        eventually(lambda: not new_traces(before, run_dir), GRACE)
    if left := new_traces(before, run_dir):
        clear(left)
        pytest.fail(f"left behind {GRACE:g} s after the module's last test:\n{left}", pytrace=False)
