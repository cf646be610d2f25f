"""How a program finds its mesh."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnibus.address import MeshKey, Target
from omnibus.errors import MeshError, Unauthorized, Unreachable, UsageError
from omnibus.hostid import ProcessMark
from omnibus.rundir import announce_ready, read_key, resolve, run_dir, run_file_path
from omnibus.runfile import RunFile

KEY = MeshKey("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")
OTHER = MeshKey("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Path:
    """Return a directory with a path short enough for sockets."""
    return Path(tempfile.mkdtemp(dir=request.getfixturevalue("run_dir")))


@pytest.fixture
def environ(place: Path) -> dict[str, str]:
    """Return an environment in which there is no mesh."""
    return {"OMNIBUS_RUN_DIR": str(place)}


@pytest.fixture
def broker_socket(place: Path) -> Iterator[str]:
    """Give the ipc address of a socket that is there."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "broker.sock"))
        yield f"ipc://{place}/broker.sock"
    (place / "broker.sock").unlink()


@pytest.fixture
def up(place: Path) -> Callable[..., RunFile]:
    """Return a function that writes a run file into the environment's run directory."""

    def write(*addresses: str, **changes: Any) -> RunFile:
        mark = ProcessMark.of(os.getpid())
        run = replace(RunFile(addresses=addresses, epoch="e1", process=mark, started=0.0, key=KEY), **changes)
        run.write(place / "mesh.json", replace=True)
        return run

    return write


# -- the run directory


def test_the_variable_names_it(place: Path) -> None:
    path = place / "run"
    assert run_file_path({"OMNIBUS_RUN_DIR": str(path)}) == path / "mesh.json"
    assert not path.exists(), "asking makes nothing"
    assert run_dir({"OMNIBUS_RUN_DIR": str(path)}) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_relative_name_and_a_home_are_made_absolute(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    assert run_file_path({"OMNIBUS_RUN_DIR": "run"}) == place / "run" / "mesh.json"
    assert run_file_path({"OMNIBUS_RUN_DIR": "~/run"}) == place / "run" / "mesh.json"


def test_without_it_the_session_s_runtime_directory_is_used_then_the_temporary_one(
    place: Path,
) -> None:
    assert run_dir({"XDG_RUNTIME_DIR": str(place)}) == place / "omnibus"
    assert run_file_path({}) == Path(tempfile.gettempdir()) / f"omnibus-{os.geteuid()}" / "mesh.json"


def test_the_process_s_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("OMNIBUS_RUN_DIR", str(place))
    monkeypatch.setenv("OMNIBUS_ADDRESS", "ipc:///run/a.sock")
    assert run_dir() == place
    assert run_file_path() == place / "mesh.json"
    assert resolve() == Target("ipc:///run/a.sock", source="$OMNIBUS_ADDRESS")


def test_a_squatted_temporary_directory_is_refused(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (place / f"omnibus-{os.geteuid()}").mkdir()
    (place / f"omnibus-{os.geteuid()}").chmod(0o777)
    with pytest.raises(Unauthorized, match="mode 0777"):
        run_dir({})


# -- which mesh


def test_without_any_hint_there_is_no_mesh(environ: dict[str, str], place: Path) -> None:
    assert resolve(None, environ) is None
    assert resolve(None, {"OMNIBUS_RUN_DIR": str(place / "none"), "OMNIBUS_ADDRESS": ""}) is None


def test_the_argument_outranks_the_variable_and_that_the_run_file(
    environ: dict[str, str], up: Callable[..., RunFile], broker_socket: str
) -> None:
    up(broker_socket)
    found = resolve(None, environ)
    assert found is not None
    assert found.address == broker_socket
    assert found.source == f"run file {environ['OMNIBUS_RUN_DIR']}/mesh.json"
    assert (found.key, found.epoch) == (None, "e1"), "the private directory is the key"
    environ["OMNIBUS_ADDRESS"] = "ipc:///run/b.sock"
    assert resolve(None, environ) == Target("ipc:///run/b.sock", source="$OMNIBUS_ADDRESS")
    assert resolve("ipc:///run/c.sock", environ) == Target("ipc:///run/c.sock")


def test_a_malformed_address_is_no_reason_to_look_further(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is empty"):
        resolve("", environ)
    with pytest.raises(UsageError, match="did you mean"):
        resolve(None, {**environ, "OMNIBUS_ADDRESS": "node7:1"})


def test_the_run_file_s_first_reachable_address_is_taken(
    environ: dict[str, str], up: Callable[..., RunFile], broker_socket: str
) -> None:
    up("ipc:///none/broker.sock", "tcp://node7:1", broker_socket)
    found = resolve(None, environ)
    assert found is not None
    assert (found.address, found.key, found.insecure) == ("tcp://node7:1", KEY, False)


def test_the_run_file_of_a_mesh_without_a_key_means_insecure_tcp(
    environ: dict[str, str], up: Callable[..., RunFile]
) -> None:
    up("tcp://node7:1", key=None)
    found = resolve(None, environ)
    assert found is not None
    assert (found.key, found.insecure) == (None, True)


def test_another_host_s_ipc_address_is_unreachable_even_if_a_path_of_that_name_is_here(
    environ: dict[str, str], up: Callable[..., RunFile], broker_socket: str
) -> None:
    elsewhere = replace(ProcessMark.of(os.getpid()), boot="x", host="elsewhere")
    up(broker_socket, process=elsewhere)
    with pytest.raises(Unreachable, match=r"names a mesh on elsewhere .*start the broker with a tcp address"):
        resolve(None, environ)


def test_a_dead_mesh_is_none_with_a_warning(
    environ: dict[str, str], up: Callable[..., RunFile], broker_socket: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        mark = ProcessMark.of(process.pid)
        process.communicate(b"\n")
    up(broker_socket, process=mark)
    with pytest.warns(RuntimeWarning, match=f"is gone .its process {mark.pid} has ended.*omnibus up"):
        assert resolve(None, environ) is None


def test_a_damaged_run_file_is_an_error_and_not_another_mesh(environ: dict[str, str], place: Path) -> None:
    (place / "mesh.json").touch(mode=0o600)
    with pytest.raises(MeshError, match="is damaged"):
        resolve(None, environ)
    (place / "mesh.json").chmod(0o644)
    with pytest.raises(Unauthorized):
        resolve(None, environ)


# -- which key


def test_a_tcp_address_without_a_key_says_where_one_could_come_from(
    environ: dict[str, str], up: Callable[..., RunFile]
) -> None:
    for prepare in (lambda: None, lambda: up("tcp://node7:1", key=None)):
        prepare()
        with pytest.raises(Unauthorized, match=r"needs the mesh's key.*OMNIBUS_KEY_FILE.*insecure=True"):
            resolve("tcp://node8:1", environ)


def test_the_key_comes_from_the_environment_then_the_named_file_then_the_run_file(
    environ: dict[str, str], up: Callable[..., RunFile], place: Path
) -> None:
    up("tcp://node7:1")
    found = resolve("tcp://node8:1", environ)
    assert found == Target("tcp://node8:1", KEY, key_source=f"run file {place}/mesh.json")

    key_file = place / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(OTHER.text())
    environ["OMNIBUS_KEY_FILE"] = str(key_file)
    found = resolve("tcp://node8:1", environ)
    assert found == Target("tcp://node8:1", OTHER, key_source=f"key file {key_file}")

    environ["OMNIBUS_KEY"] = KEY.text()
    found = resolve("tcp://node8:1", environ)
    assert found == Target("tcp://node8:1", KEY, key_source="$OMNIBUS_KEY")


def test_a_named_key_file_that_is_missing_is_not_passed_over(
    environ: dict[str, str], up: Callable[..., RunFile], place: Path
) -> None:
    up("tcp://node7:1")
    with pytest.raises(Unauthorized, match=r"is not there: \$OMNIBUS_KEY_FILE names it"):
        resolve("tcp://node8:1", {**environ, "OMNIBUS_KEY_FILE": str(place / "none")})


@pytest.mark.parametrize("value", ["1", "true", " Yes ", "on"])
def test_insecure_is_said_by_argument_or_variable(environ: dict[str, str], value: str) -> None:
    expected = Target("tcp://node8:1", insecure=True)
    assert resolve("tcp://node8:1", environ, insecure=True) == expected
    assert resolve("tcp://node8:1", {**environ, "OMNIBUS_INSECURE": value}) == expected


@pytest.mark.parametrize("value", ["0", "", "no", "False", "off"])
def test_insecure_is_not_said_by_saying_no(environ: dict[str, str], value: str) -> None:
    with pytest.raises(Unauthorized):
        resolve("tcp://node8:1", {**environ, "OMNIBUS_INSECURE": value})


def test_an_unclear_insecure_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="OMNIBUS_INSECURE='maybe' is neither yes nor no"):
        resolve("tcp://node8:1", {**environ, "OMNIBUS_INSECURE": "maybe"})


def test_a_child_s_environment_leads_to_the_same_mesh(environ: dict[str, str]) -> None:
    for target in (
        Target("ipc:///run/a.sock"),
        Target("tcp://node7:1", KEY),
        Target("tcp://node7:1", insecure=True),
    ):
        found = resolve(None, {**environ, **target.environment()})
        assert found is not None
        assert (found.address, found.key, found.insecure) == (
            target.address,
            target.key,
            target.insecure,
        )


@pytest.mark.parametrize(
    "text",
    [
        KEY.text(),
        f"{KEY.public}\n{KEY.secret}\n",
        json.dumps({"public_key": KEY.public, "secret_key": KEY.secret, "more": 1}),
    ],
)
def test_a_key_file_is_text_or_json(place: Path, text: str) -> None:
    path = place / "key"
    path.touch(mode=0o600)
    path.write_text(text)
    assert read_key(path) == KEY


@pytest.mark.parametrize("text", ["", "{}", "[1]", "hello", '{"public_key": 1, "secret_key": 2}', "\x00"])
def test_a_key_file_without_a_key_is_refused(place: Path, text: str) -> None:
    path = place / "key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(Unauthorized, match=f"key file {path} holds no mesh key"):
        read_key(path)


def test_an_open_key_file_is_refused(place: Path) -> None:
    path = place / "key"
    path.touch()
    path.chmod(0o644)
    with pytest.raises(Unauthorized, match=f"chmod 600 {path}"):
        read_key(path)


# -- readiness


def test_readiness_is_said_once_and_the_request_is_not_inherited() -> None:
    read, write = os.pipe()
    environ = {"OMNIBUS_READY_FD": str(write)}
    with open(read, "rb") as pipe:
        assert announce_ready("ipc:///run/a.sock", environ) is True
        assert environ == {}
        assert announce_ready("ipc:///run/a.sock", environ) is False
        assert pipe.read() == b"ready ipc:///run/a.sock\n"


def test_nobody_waiting_any_more_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    assert announce_ready("ipc:///run/a.sock", {"OMNIBUS_READY_FD": str(write)}) is False


@pytest.mark.parametrize("value", ["-7", "x", "1000000"])
def test_a_request_that_no_launcher_made_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="only a launcher sets it"):
        announce_ready("ipc:///run/a.sock", {"OMNIBUS_READY_FD": value})
