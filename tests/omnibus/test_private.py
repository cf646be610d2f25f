"""Directories and files that nobody else may read."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from omnibus.errors import MeshError, NotFound, Unauthorized, UsageError
from omnibus.hostid import ProcessMark
from omnibus.private import (
    check_private_dir,
    locked,
    make_private_dir,
    open_private_dir,
    private_dir,
    read_private,
    remove_private_dir,
    runtime_bases,
    write_private,
)


@pytest.fixture
def place(run_dir: Path) -> Path:
    """Return a directory with a path short enough for sockets."""
    return Path(tempfile.mkdtemp(dir=run_dir))


@pytest.fixture
def as_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process believe that it is another user, to whom nothing here belongs."""
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# -- directories


def test_a_directory_is_made_private_whatever_the_umask(place: Path) -> None:
    with umask(0):
        made = make_private_dir(place / "above" / "run")
    assert mode(made) == 0o700
    assert make_private_dir(made) == made


def test_a_directory_that_others_may_enter_is_refused_with_the_remedy(place: Path) -> None:
    place.chmod(0o750)
    with pytest.raises(Unauthorized) as caught:
        make_private_dir(place)
    message = str(caught.value)
    assert str(place) in message
    assert "mode 0750" in message
    assert f"chmod 700 {place}" in message
    place.chmod(0o700)
    check_private_dir(place)


@pytest.mark.usefixtures("as_stranger")
def test_a_directory_of_another_user_is_refused(place: Path) -> None:
    with pytest.raises(Unauthorized, match=f"belongs to user {place.stat().st_uid}"):
        check_private_dir(place)


def test_a_link_is_refused_wherever_it_leads(place: Path) -> None:
    (place / "mine").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "mine")
    with pytest.raises(Unauthorized, match="no link"):
        make_private_dir(place / "link")


def test_a_file_in_its_place_is_refused(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(Unauthorized, match="expected a real directory"):
        make_private_dir(place / "file")


def test_a_directory_that_cannot_be_made_says_what_to_set(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be made .*set OMNIBUS_RUN_DIR"):
        make_private_dir(place / "file" / "run")


def test_nothing_is_not_a_private_directory(place: Path) -> None:
    with pytest.raises(NotFound):
        check_private_dir(place / "none")


# -- files


def test_a_file_is_written_and_read_back(place: Path) -> None:
    with open_private_dir(place) as directory:
        write_private(directory, "a", b"one")
        write_private(directory, "a", b"two", durable=False)
        assert read_private(place / "a", directory=directory) == b"two"
    assert mode(place / "a") == 0o600
    assert os.listdir(place) == ["a"]


def test_a_file_is_at_no_moment_open_to_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        modes.extend(mode(path) for path in place.iterdir())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    with umask(0), open_private_dir(place) as directory:
        write_private(directory, "a", b"secret")
    assert modes == [0o600, 0o600], "before the rename, and after"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_private_dir(place) as directory:
        write_private(directory, "a", b"old")

        def fail(*args: object, **more: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="No space"):
            write_private(directory, "a", b"new")
    assert (place / "a").read_bytes() == b"old"
    assert os.listdir(place) == ["a"]


def test_a_reader_sees_one_version_or_the_next_and_never_half(place: Path) -> None:
    versions = [bytes([65 + number]) * 50_000 for number in range(20)]
    seen = []
    done = threading.Event()
    with open_private_dir(place) as directory:
        write_private(directory, "a", versions[0], durable=False)

        def write() -> None:
            for version in versions:
                write_private(directory, "a", version, durable=False)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set():
            seen.append(read_private(place / "a", directory=directory))
        writer.join()
    assert seen
    assert set(seen) <= set(versions)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620])
def test_an_open_file_is_refused_with_the_remedy(place: Path, bits: int) -> None:
    path = place / "a"
    path.touch(mode=0o600)
    path.chmod(bits)
    for within in (True, False):
        with (
            open_private_dir(place) as directory,
            pytest.raises(Unauthorized, match=f"{bits:04o}.*chmod 600"),
        ):
            read_private(path, directory=directory if within else None)


def test_another_users_file_is_refused_and_roots_only_where_it_was_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "a"
    path.touch(mode=0o600)
    uid = path.stat().st_uid
    with open_private_dir(place) as directory:
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        with pytest.raises(Unauthorized, match=f"belongs to user {uid}"):
            read_private(path, directory=directory)
    if uid == 0:
        assert read_private(path) == b""
    else:
        with pytest.raises(Unauthorized):
            read_private(path)


def test_a_link_is_followed_only_where_the_user_named_it(place: Path) -> None:
    (place / "real").touch(mode=0o600)
    (place / "a").symlink_to("real")
    assert read_private(place / "a") == b""
    with (
        open_private_dir(place) as directory,
        pytest.raises(Unauthorized, match="cannot be opened"),
    ):
        read_private(place / "a", directory=directory)


def test_what_is_no_small_file_is_refused_without_waiting_for_it(place: Path) -> None:
    os.mkfifo(place / "pipe", 0o600)
    with pytest.raises(MeshError, match="no regular file"):
        read_private(place / "pipe")
    (place / "big").touch(mode=0o600)
    (place / "big").write_bytes(b"12345")
    with pytest.raises(MeshError, match="at most 4 bytes"):
        read_private(place / "big", limit=4)
    assert read_private(place / "big", limit=5) == b"12345"
    with pytest.raises(NotFound):
        read_private(place / "none")


def test_the_lock_keeps_another_holder_out(place: Path) -> None:
    order = []
    with open_private_dir(place) as first, open_private_dir(place) as second:

        def take() -> None:
            with locked(second):
                order.append("second")

        with locked(first):
            other = threading.Thread(target=take)
            other.start()
            other.join(0.05)
            order.append("first")
        other.join(5)
    assert order == ["first", "second"]


# -- private directories for sockets


def test_a_private_directory_is_new_short_and_goes_away_with_its_sockets(place: Path) -> None:
    path = private_dir(base=place)
    assert path.parent == place
    assert mode(path) == 0o700
    assert private_dir(base=place) != path
    listen(path / "broker.sock")
    assert remove_private_dir(path) is True
    assert not path.exists()
    assert remove_private_dir(path) is True, "a second time is no error"


def test_only_what_is_ours_is_removed(place: Path) -> None:
    path = private_dir(base=place)
    listen(path / "broker.sock")
    (path / "notes.txt").touch()
    (path / "link.sock").symlink_to(path / "notes.txt")
    assert remove_private_dir(path) is False
    assert sorted(os.listdir(path)) == [".omnibus-owner", "link.sock", "notes.txt"]
    (path / "notes.txt").unlink()
    (path / "link.sock").unlink()
    assert remove_private_dir(path) is True


def test_a_directory_without_our_marker_is_left_alone(place: Path) -> None:
    path = place / "theirs"
    path.mkdir(mode=0o700)
    listen(path / "theirs.sock")
    assert remove_private_dir(path) is False
    (path / "theirs.sock").unlink()  # which is still there
    path.chmod(0o755)
    assert remove_private_dir(path) is False, "nor one that others may enter"


def test_what_a_dead_owner_left_is_swept_and_a_live_ones_stays(place: Path) -> None:
    script = (
        "from pathlib import Path; from omnibus.private import private_dir; "
        f"print(private_dir(base=Path({str(place)!r})))"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    dead = Path(output.strip())
    listen(dead / "broker.sock")
    (place / "omnibus-unfinished").mkdir(mode=0o700)
    (place / "omnibus-garbage").mkdir(mode=0o700)
    (place / "omnibus-garbage" / ".omnibus-owner").touch(mode=0o600)
    live = private_dir(base=place)
    assert not dead.exists()
    again = private_dir(base=place)
    assert live.exists()
    assert {path.name for path in place.iterdir()} == {
        "omnibus-unfinished",
        "omnibus-garbage",
        live.name,
        again.name,
    }
    for path in (live, again):
        assert remove_private_dir(path)


def test_the_marker_names_the_owner(place: Path) -> None:
    path = private_dir(base=place)
    assert json.loads((path / ".omnibus-owner").read_text()) == asdict(ProcessMark.of(os.getpid()))
    assert remove_private_dir(path)


def test_a_base_that_is_too_long_is_passed_over_and_alone_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = place / ("x" * 60)
    long.mkdir(mode=0o700)
    with pytest.raises(UsageError, match=r"at most 107 are allowed.*shorter directory"):
        private_dir(base=long)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    path = private_dir(environ={"XDG_RUNTIME_DIR": str(long)})
    assert path.parent == place
    assert remove_private_dir(path)
    path = private_dir(environ={"OMNIBUS_RUN_DIR": str(place / "run"), "XDG_RUNTIME_DIR": str(long)})
    assert path.parent == place / "run"
    assert remove_private_dir(path)


def test_a_base_that_is_not_there_is_an_error_that_names_it(place: Path) -> None:
    with pytest.raises(UsageError, match=f"can be made in {place}/none"):
        private_dir(base=place / "none")


def test_another_users_runtime_directory_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = Path(tempfile.gettempdir())
    environ = {"XDG_RUNTIME_DIR": str(place)}
    assert runtime_bases(environ) == [place, temporary]
    assert runtime_bases({}) == runtime_bases({"XDG_RUNTIME_DIR": str(place / "none")}) == [temporary]
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert runtime_bases(environ) == [temporary]
