"""The run file: written whole, read with suspicion, removed only where it is still ours."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnibus.address import MeshKey
from omnibus.errors import AlreadyExists, MeshError, NotFound, ProtocolError, Unauthorized
from omnibus.hostid import ProcessMark
from omnibus.runfile import RunFile

KEY = MeshKey("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


@pytest.fixture
def path(run_dir: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=run_dir)) / "mesh.json"


@pytest.fixture
def dead() -> ProcessMark:
    """Return the mark of a process that has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        mark = ProcessMark.of(process.pid)
        process.communicate(b"\n")
    return mark


def make(**changes: Any) -> RunFile:
    run = RunFile(
        addresses=("ipc:///run/a.sock", "tcp://node7:5555"),
        epoch="epoch-1",
        process=ProcessMark.of(os.getpid()),
        started=1234.5,
        key=KEY,
    )
    return replace(run, **changes)


def another_mesh(**changes: Any) -> RunFile:
    """Return the run file of a live mesh of another process of this host."""
    mine = ProcessMark.of(os.getpid())
    return make(epoch="epoch-2", process=replace(ProcessMark.of(os.getppid()), boot=mine.boot), **changes)


@pytest.mark.parametrize("key", [KEY, None])
def test_it_survives_being_written(path: Path, key: MeshKey | None) -> None:
    run = make(key=key)
    run.write(path)
    assert RunFile.read(path) == run
    assert run.address == "ipc:///run/a.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["mesh.json"]


def test_other_languages_find_address_and_key_at_the_top(path: Path) -> None:
    make().write(path)
    fields = json.loads(path.read_text())
    assert fields["address"] == "ipc:///run/a.sock"
    assert (fields["public_key"], fields["secret_key"]) == (KEY.public, KEY.secret)


def test_the_secret_does_not_show(path: Path) -> None:
    assert KEY.secret not in repr(make())


def test_fields_of_a_newer_writer_of_the_same_format_are_ignored(path: Path) -> None:
    make().write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "green"}))
    assert RunFile.read(path) == make()


def test_a_newer_format_is_told_as_such(path: Path) -> None:
    make().write(path)
    path.write_text(json.dumps({"format": 2, "where": "?"}))
    with pytest.raises(ProtocolError, match="format 2, this Omnibus reads 1"):
        RunFile.read(path)


def damage(**changes: Any) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    "changes",
    [
        damage(addresses=[]),
        damage(addresses=7),
        damage(addresses=["node7"]),
        damage(epoch=1),
        damage(started="noon"),
        damage(started=None),
        damage(process=None),
        damage(process={}),
        damage(process={"pid": "1", "started": 1, "boot": "", "space": "", "host": ""}),
        damage(secret_key="short"),
        damage(secret_key=17),
        damage(format="1"),
    ],
    ids=str,
)
def test_a_damaged_file_says_so_and_what_to_do(path: Path, changes: dict[str, Any]) -> None:
    make().write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(MeshError, match=f"run file {path} is damaged .*remove it and start the mesh again") as caught:
        RunFile.read(path)
    assert KEY.secret not in str(caught.value)


def test_every_half_of_a_file_is_damaged(path: Path) -> None:
    make().write(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(MeshError, match="is damaged"):
            RunFile.read(path)


@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'"x"', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_run_file_is_damaged(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(MeshError, match="is damaged"):
        RunFile.read(path)


def test_a_missing_file_and_a_missing_directory_are_not_found(path: Path) -> None:
    with pytest.raises(NotFound):
        RunFile.read(path)
    with pytest.raises(NotFound):
        RunFile.read(path.parent / "none" / "mesh.json")


def test_an_open_file_is_refused_and_an_open_directory_too(path: Path) -> None:
    make().write(path)
    path.chmod(0o644)
    with pytest.raises(Unauthorized, match="mode 0644"):
        RunFile.read(path)
    path.chmod(0o600)
    path.parent.chmod(0o755)
    for use in (
        lambda: RunFile.read(path),
        lambda: make().write(path),
        lambda: RunFile.remove(path, "epoch-1"),
    ):
        with pytest.raises(Unauthorized, match="mode 0755"):
            use()


def test_a_mesh_may_write_its_file_anew(path: Path) -> None:
    make().write(path)
    make(addresses=("tcp://node7:1",)).write(path)
    assert RunFile.read(path).address == "tcp://node7:1"


def test_a_live_mesh_is_not_overwritten_unless_asked(path: Path) -> None:
    other = another_mesh()
    other.write(path)
    with pytest.raises(AlreadyExists, match=r"live mesh at ipc:///run/a.sock .*OMNIBUS_RUN_DIR"):
        make().write(path)
    assert RunFile.read(path) == other
    make().write(path, replace=True)
    assert RunFile.read(path) == make()


def test_a_dead_mesh_is_overwritten(path: Path, dead: ProcessMark) -> None:
    run = make(process=dead, epoch="old")
    run.write(path)
    assert run.stale() == f"its process {dead.pid} has ended"
    make().write(path)
    assert RunFile.read(path) == make()


def test_an_unreadable_file_is_overwritten(path: Path) -> None:
    path.touch()
    path.chmod(0o666)
    make().write(path)
    assert RunFile.read(path) == make()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_staleness_is_only_said_where_it_is_certain(dead: ProcessMark) -> None:
    assert make().stale() is None
    assert make(process=replace(dead, space="pid:[1]")).stale() is None
    assert make(process=replace(dead, boot="x", host="elsewhere")).stale() is None
    assert "booted since" in str(make(process=replace(dead, boot="x")).stale())


def test_only_the_file_of_the_same_epoch_is_removed(path: Path) -> None:
    assert RunFile.remove(path, "epoch-1") is False
    assert RunFile.remove(path.parent / "none" / "mesh.json", "epoch-1") is False
    another_mesh().write(path)
    assert RunFile.remove(path, "epoch-1") is False
    assert RunFile.remove(path, "epoch-2") is True
    assert not path.exists()
    path.touch(mode=0o600)
    assert RunFile.remove(path, "epoch-1") is False, "nobody knows whose it is"
    assert path.exists()
