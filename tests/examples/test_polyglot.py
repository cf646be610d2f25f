"""The clients that know nothing of Omnibus: compiled, and run against a real mesh."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnibus
from tests.repo.tree import ROOT
from tests.support.events import eventually

POLYGLOT = ROOT / "examples/polyglot"
ANSWERS = {"3 6", "5 120", "10 3628800"}


@pytest.fixture(scope="module")
def bus() -> Iterator[omnibus.Bus]:
    with omnibus.connect(workers=1) as bus:
        yield bus


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the C client; every warning is an error."""
    if shutil.which("cc") is None or not Path("/usr/include/zmq.h").exists():
        pytest.skip("the C client needs a compiler, libzmq3-dev and libmsgpack-dev")
    made = tmp_path_factory.mktemp("polyglot") / "client"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L"]
    command = ["cc", *flags, str(POLYGLOT / "client.c"), "-o", str(made), "-lzmq", "-lmsgpackc"]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return made


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30, check=False)


def sessions(bus: omnibus.Bus) -> int:
    return len(bus.status()["clients"])


def test_the_c_client_prints_a_result(bus: omnibus.Bus, program: Path) -> None:
    before = sessions(bus)
    ran = run(program, bus.address, 10)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "3628800\n", "")
    eventually(lambda: sessions(bus) == before, what="its BYE has ended its session")


def test_the_c_client_prints_a_failure(bus: omnibus.Bus, program: Path) -> None:
    ran = run(program, bus.address, 10, "math:no_such_function")
    assert ran.returncode == 1
    assert "SetupFailed" in ran.stdout and "no_such_function" in ran.stdout


def test_the_c_client_needs_an_address(program: Path) -> None:
    assert run(program).returncode == 2


@pytest.mark.parametrize("name", ["minimal_dealer.py", "minimal_req.py"])
def test_a_minimal_client_prints_its_results(bus: omnibus.Bus, name: str) -> None:
    before = sessions(bus)
    ran = run(sys.executable, POLYGLOT / name, bus.address)
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.splitlines()) == ANSWERS
    eventually(lambda: sessions(bus) == before, what="its BYE has ended its session")


@pytest.mark.parametrize("name", ["minimal_dealer.py", "minimal_req.py"])
def test_a_minimal_client_is_minimal(name: str) -> None:
    text = (POLYGLOT / name).read_text()
    assert "omnibus" not in text.replace("Omnibus", "")
    assert len(text.splitlines()) < 40
