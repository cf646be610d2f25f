"""The node's command line: what its options make of a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.actors import __main__ as main_module
from omnibus.actors.__main__ import parse
from omnibus.errors import OmnibusError, Unreachable, UsageError

ADDRESS = ("--address", "ipc:///run/b")


def spec(*options: str) -> main_module.NodeSpec:  # type: ignore[name-defined]
    return main_module._spec(parse(["node", *options]))


def test_what_is_not_said_is_found() -> None:
    made = spec(*ADDRESS)
    cpus = made.hello["cpus"]
    assert 1 <= cpus <= len(os.sched_getaffinity(0))
    assert made.workers == made.hello["workers"] == int(cpus)
    assert made.hello["memory"] > 0
    assert made.hello["name"] == os.uname().nodename
    assert made.hello["session"] == made.session
    assert made.hello["role"] == "node"
    assert made.broker_grace == 30
    assert made.code


def test_what_is_said_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    made = spec(*ADDRESS, "--cpus", "2.5", "--workers", "0", "--gpus", "2", "--memory", "1G", "--label", "a=b=c",
                "--name", "n", "--grace", "1", "--owner", "1")  # fmt: skip
    said = {"cpus": 2.5, "workers": 0, "gpus": ["4", "5"], "memory": 1 << 30, "labels": {"a": "b=c"}, "name": "n"}
    assert {key: made.hello[key] for key in said} == said
    assert made.grace == 1
    assert made.broker_grace == 2, "an owned mesh's broker does not come back"
    assert spec(*ADDRESS).hello["gpus"] == ["4", "5", "6"]
    assert spec(*ADDRESS, "--gpus", "GPU-1, MIG-2").hello["gpus"] == ["GPU-1", "MIG-2"]
    assert spec(*ADDRESS, "--gpus", "0").hello["gpus"] == []


def test_code_is_shipped_only_where_the_mesh_has_a_key() -> None:
    assert not spec("--address", "tcp://h:1", "--insecure").code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cpus", "0"), "expected more than 0"),
        (("--workers", "-1"), "0 or more"),
        (("--label", "=x"), "must be of the form name=value"),
        (("--memory", "lots"), "no size"),
        (("--gpus", "99"), "--gpus 99: this host has"),
    ],
)
def test_what_makes_no_sense_is_refused(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec(*ADDRESS, *options)


def test_a_node_without_a_mesh_says_how_to_name_one() -> None:
    with pytest.raises(Unreachable, match="give --address, set"):
        spec()
    assert issubclass(Unreachable, OmnibusError)


def test_a_node_loads_nothing_large(tmp_path: Path) -> None:
    heavy = ("numpy", "torch", "pyarrow", "cloudpickle", "tenacity", "typer", "rich", "multiprocessing", "psutil")
    script = (
        "import sys, omnibus.actors.supervisor, omnibus.actors.__main__ as main\n"
        "main._spec(main.parse(['node', '--address', 'ipc:///x']))\n"
        f"sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"a node loads {done.stderr}"
