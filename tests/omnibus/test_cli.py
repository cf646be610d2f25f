"""The command line without a mesh: what it offers, how it teaches, and how it says what is wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

import omnibus as package
from omnibus.cli import app, main
from omnibus.commands import extras
from omnibus.hostid import ProcessMark
from omnibus.runfile import RunFile
from tests.support.cli import OMNIBUS, environment, omnibus

COMMANDS = {
    "up", "broker", "node", "submit", "call", "fetch", "status", "top", "logs", "audit", "doctor", "bench", "demo",
}  # fmt: skip
# A valid command line of each that needs a mesh.
ON_A_MESH = {
    "node": ["node"],
    "submit": ["submit", "builtins:pow", "2", "3"],
    "call": ["call", "counter", "add", "1"],
    "fetch": ["fetch", f"{'0' * 32}-1"],
    "status": ["status"],
    "top": ["top"],
    "logs": ["logs"],
    "audit": ["audit"],
}
ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def _private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a run directory without a mesh, and a terminal's width."""
    monkeypatch.setenv("OMNIBUS_RUN_DIR", str(tmp_path / "run"))
    for name in ("OMNIBUS_ADDRESS", "OMNIBUS_KEY", "OMNIBUS_KEY_FILE", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def one_line(text: str) -> str:
    """Return the one line that there must be."""
    lines = text.splitlines()
    assert len(lines) == 1, f"expected one line: {text!r}"
    return lines[0]


# ---------------------------------------------------------------------- help


def test_these_are_the_commands() -> None:
    assert set(commands()) == COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"omnibus {name}" in out.split("Example", 1)[1]
    assert "Exit codes" in out
    assert not err
    assert ESCAPE not in out
    for option in commands()[name].params:
        assert option.hidden or option.help, f"{name}: {option.name} is not explained"


def examples() -> Iterator[tuple[str, list[str]]]:
    """Yield each command line that a help shows."""
    for command in commands().values():
        for line in re.findall(r"^\s*((?:[A-Z_]+=\S+ )*omnibus .*)$", command.help or "", re.MULTILINE):
            words = shlex.split(line.replace("$(", "'$(").replace(")", ")'") if "$(" in line else line, comments=True)
            words = words[words.index("omnibus") + 1 :]
            yield line, words[: words.index("|")] if "|" in words else words


def test_each_example_of_the_help_is_a_valid_command_line() -> None:
    shown = list(examples())
    assert len(shown) > 2 * len(COMMANDS)
    for line, words in shown:
        context = commands()[words[0]].make_context(words[0], words[1:])  # raises where it is none
        assert context.info_name == words[0], line


def test_the_top_help_is_reached_by_a_process_without_escape_codes(tmp_path: Path) -> None:
    ran = omnibus(tmp_path, "--help")
    assert ran.returncode == 0
    assert all(name in ran.stdout for name in COMMANDS)
    assert ESCAPE not in ran.stdout + ran.stderr


def test_without_arguments_it_prints_the_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Run a mesh" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"omnibus {package.__version__}\n"


def test_the_console_script_is_this_command_line() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="omnibus")
    assert entry.load() is main


def test_the_shell_can_complete_commands(tmp_path: Path) -> None:
    asked = {"_OMNIBUS_COMPLETE": "complete_bash", "COMP_WORDS": "omnibus sta", "COMP_CWORD": "1"}
    script = "import sys; sys.argv[0] = 'omnibus'; from omnibus.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path, **asked), capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["status"], ran.stderr


def test_a_short_command_loads_little() -> None:
    script = (
        "import sys; from omnibus.cli import main; main(['--version'])\n"
        "print(*{'zmq', 'numpy', 'pyarrow', 'cloudpickle', 'asyncio', 'torch'}.intersection(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[1].split() == []


# ---------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stat"], "No such command 'stat'"),
        (["status", "--jsno"], "--jsno"),
        (["submit"], "Missing argument 'MODULE:FUNCTION'"),
        (["submit", "pow", "2"], "is no name of a function; expected 'package.module:function'"),
        (["submit", "math.sqrt", "2"], "did you mean 'math:sqrt'?"),
        (["submit", "builtins:pow", "two"], "argument 1 is not JSON: 'two'; if it is a text, write '\"two\"'"),
        (["submit", "builtins:pow", "--prio", "2"], "no such option: --prio"),
        (["submit", "builtins:pow", "-k", "x"], "keyword 'x' is not of the form NAME=JSON"),
        (["submit", "builtins:pow", "-k", "x=y"], "keyword x is not JSON: 'y'"),
        (["submit", "builtins:pow", "--memory", "lots"], "memory 'lots' is no size"),
        (["submit", "builtins:pow", "--label", "fast"], "of the form NAME=VALUE"),
        (["call", "counter"], "Missing argument 'METHOD'"),
        (["logs", "--since", "0"], "--since"),
        (["status", "--address", "localhost:7890"], "did you mean 'tcp://localhost:7890'?"),
        (["up", "--state", "/tmp/state"], "--state is not implemented"),
        (["up", "--log-level", "loud"], "--log-level 'loud' is unknown"),
        (["up", "--workers", "-1"], "--workers"),
        (["broker", "--guard", "1"], "--guard"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    line = one_line(err)
    assert line.startswith(f"omnibus {words[0]}: " if words[0] in COMMANDS else "omnibus: ")
    assert said in line
    assert not out


# ---------------------------------------------------------------------- no mesh


@pytest.mark.parametrize("name", sorted(ON_A_MESH))
def test_without_a_mesh_a_command_says_how_to_start_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ON_A_MESH[name]) == 3
    out, err = capsys.readouterr()
    said = rf"omnibus {name}: no mesh is up here \(.*mesh\.json names none\): start one with `omnibus up`, or .*"
    assert re.fullmatch(said, one_line(err))
    assert not out


def test_nobody_at_the_address_is_exit_code_3_with_the_address(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/nobody"
    ran = omnibus(tmp_path, "status", "--address", address, "--within", "0.2")
    assert ran.returncode == 3
    assert address in one_line(ran.stderr)


def test_a_tcp_address_without_the_key_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "tcp://127.0.0.1:9"]) == 3
    line = one_line(capsys.readouterr().err)
    assert "OMNIBUS_KEY_FILE" in line
    assert "--insecure" in line
    assert "insecure=True" not in line


def test_a_key_file_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIBUS_KEY_FILE", "/nowhere/mesh.json")
    assert main(["status", "--address", "tcp://127.0.0.1:9"]) == 3
    assert "/nowhere/mesh.json" in one_line(capsys.readouterr().err)


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """Leave the run file of a mesh whose process is gone."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = ProcessMark.of(process.pid)
    process.communicate(b"\n")
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "mesh.json"
    RunFile((f"ipc://{tmp_path}/gone",), "00" * 8, mark, 0.0).write(path)
    return path


def test_the_run_file_of_a_dead_mesh_is_a_warning(stale: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 3
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"omnibus status: warning: the mesh of run file {stale} is gone")
    assert "no mesh is up here" in error


def test_the_doctor_finds_the_run_file_of_a_dead_mesh(stale: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["run file"]["state"] == "warn"
    assert found["run file"]["advice"].startswith(f"rm {stale}")


def test_the_doctor_fails_a_directory_that_others_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    os.chmod(tmp_path / "run", 0o755)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"run directory +fail", out)
    assert "chmod 700" in out


# ---------------------------------------------------------------------- bench and demo


def test_benchmarks_need_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "omnibus" / "__init__.py"))
    assert main(["bench"]) == 2
    assert "clone the repository" in one_line(capsys.readouterr().err)


def test_an_unknown_benchmark_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    assert "throughput" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["bench", "latency", "--quick", "--json"], ["latency", "--quick", "--json"]),
        (["demo", "--seed", "3", "--quick"], ["--seed", "3", "--quick"]),
    ],
)
def test_options_are_passed_on(words: list[str], passed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    class Module:
        @staticmethod
        def main(argv: list[str]) -> int:
            calls.append(argv)
            return 4

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=lambda name: Module))
    assert main(words) == 4
    assert calls == [passed]


def test_the_demo_names_the_extra_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    assert main(["demo"]) == 1
    assert one_line(capsys.readouterr().err) == "omnibus demo: sklearn is not installed: pip install 'omnibus[demo]'"


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    assert OMNIBUS[1:] == ["-m", "omnibus.cli"]
    assert omnibus(tmp_path, "-V").stdout == f"omnibus {package.__version__}\n"
