"""Directories and files that nobody else may read: made so, checked so, and removed without harm to others.

A directory is judged through an open descriptor and its files are reached through that, so what was checked
is what is used, whatever someone does to the path in the meantime.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from omnibus.address import check_socket_path
from omnibus.errors import MeshError, NotFound, Unauthorized, UsageError
from omnibus.hostid import ProcessMark

__all__ = [
    "RUN_DIR_VARIABLE",
    "check_private_dir",
    "locked",
    "make_private_dir",
    "open_private_dir",
    "private_dir",
    "read_private",
    "remove_private_dir",
    "runtime_bases",
    "write_private",
]

RUN_DIR_VARIABLE: Final = "OMNIBUS_RUN_DIR"
_OTHERS: Final = 0o077
_MARKER: Final = ".omnibus-owner"
_SOCKET_ROOM: Final = "/0123456789.0123456789.sock"
"""The longest socket name that a private directory must have room for."""


def make_private_dir(path: Path) -> Path:
    """Return ``path``, made with mode 0700 where it was not there, and checked where it was.

    Raises :class:`Unauthorized` where another user could reach into it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"directory {path} cannot be made ({error.strerror}): set OMNIBUS_RUN_DIR to one that can"
        ) from None
    check_private_dir(path)
    return path


def check_private_dir(path: Path) -> None:
    """Raise :class:`Unauthorized` unless ``path`` is a real directory of this user's alone."""
    with open_private_dir(path):
        pass


@contextlib.contextmanager
def open_private_dir(path: Path) -> Iterator[int]:
    """Give a descriptor of the directory ``path``, checked as :func:`check_private_dir` does.

    Raises :class:`NotFound` where there is nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"directory {path} is not there") from None
    except OSError as error:
        raise Unauthorized(
            f"{path} is not a directory of yours that can be opened ({error.strerror}); expected a real "
            "directory with mode 0700, no link: remove it, or set OMNIBUS_RUN_DIR to another one"
        ) from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            raise Unauthorized(_too_open("directory", path, status, 0o700))
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(directory: int) -> Iterator[None]:
    """Hold the lock of an open directory against other processes; some network file systems have none."""
    with contextlib.suppress(OSError):
        fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_UN)


def read_private(path: Path, *, directory: int | None = None, limit: int = 65_536) -> bytes:
    """Return what a file holds that only this user may read.

    With ``directory`` (see :func:`open_private_dir`) it is opened in there, is no link and is this user's.
    Without, the path was named by the user: links are followed, and a file of root's is taken too, as
    container platforms mount them.

    Raises :class:`NotFound`, :class:`Unauthorized` (its owner or mode), or :class:`MeshError` (too large, not
    a file).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe under this name must not hang the reader
    try:
        name = path if directory is None else path.name
        descriptor = os.open(name, flags | (0 if directory is None else os.O_NOFOLLOW), dir_fd=directory)
    except FileNotFoundError:
        raise NotFound(f"file {path} is not there") from None
    except OSError as error:
        raise Unauthorized(
            f"file {path} cannot be opened ({error.strerror}): expected a file of yours with mode 0600"
        ) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        owners = {os.geteuid()} if directory is not None else {os.geteuid(), 0}
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise MeshError(f"{path} is no regular file of at most {limit} bytes: remove it, or name another one")
        if status.st_uid not in owners or status.st_mode & _OTHERS:
            raise Unauthorized(_too_open("file", path, status, 0o600))
        return file.read(limit)


def write_private(directory: int, name: str, content: bytes, *, durable: bool = True) -> None:
    """Put ``content`` under ``name``, mode 0600: a reader sees the old file or the whole new one.

    So does one after a power cut, where it is ``durable``, which costs a disk's write.
    """
    temporary = f".{name}.{os.getpid()}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
    if durable:
        os.fsync(directory)


def runtime_bases(environ: Mapping[str, str]) -> list[Path]:
    """Return the directories that may hold this user's runtime files, the best first.

    ``$XDG_RUNTIME_DIR`` counts only where it is this user's: after ``su`` or ``sudo`` it is often another's.
    """
    bases = [Path(tempfile.gettempdir())]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        with contextlib.suppress(OSError):
            status = os.stat(runtime)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                bases.insert(0, Path(runtime).absolute())
    return bases


def private_dir(
    prefix: str = "omnibus-", *, base: Path | None = None, environ: Mapping[str, str] | None = None
) -> Path:
    """Return a new directory, mode 0700, for unix sockets; what dead owners left behind is removed first.

    It lies in ``base``, else in ``$OMNIBUS_RUN_DIR`` where that is set, else in ``$XDG_RUNTIME_DIR`` or the
    temporary directory: the first whose path is short enough. It belongs to the calling process. Whoever ends
    last calls :func:`remove_private_dir`.

    Raises :class:`UsageError` where no such directory is short enough, or none can be written.
    """
    bases = [base] if base else _bases(os.environ if environ is None else environ)
    problem: UsageError | None = None
    for candidate in bases:
        try:
            check_socket_path(f"{candidate / prefix}01234567{_SOCKET_ROOM}")
            _sweep(candidate, prefix)
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=candidate))
        except UsageError as error:
            problem = problem or error
            continue
        except OSError as error:
            problem = problem or UsageError(f"no private directory can be made in {candidate} ({error.strerror})")
            continue
        with open_private_dir(made) as directory:
            mark = ProcessMark.of(os.getpid())
            write_private(directory, _MARKER, json.dumps(asdict(mark)).encode(), durable=False)
        return made
    assert problem is not None
    raise problem


def _bases(environ: Mapping[str, str]) -> list[Path]:
    bases = [*runtime_bases(environ), Path("/tmp")]
    if named := environ.get(RUN_DIR_VARIABLE, ""):
        bases.insert(0, make_private_dir(Path(named).expanduser().absolute()))
    return bases


def remove_private_dir(path: Path) -> bool:
    """Remove a directory that :func:`private_dir` made, with its sockets; return whether it is gone.

    Any process of this user may do it. What is not a socket stays, and then so does the directory; a
    directory without our marker is not touched. It may be called again, and by several at once.
    """
    try:
        with open_private_dir(path) as directory:
            names = set(os.listdir(directory))
            if _MARKER not in names:
                return not os.path.lexists(path)  # not ours, or someone else is just removing it
            for name in names - {_MARKER}:
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISSOCK(os.lstat(name, dir_fd=directory).st_mode):
                        os.unlink(name, dir_fd=directory)
            if set(os.listdir(directory)) - {_MARKER}:
                return False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_MARKER, dir_fd=directory)
        os.rmdir(path)
    except (NotFound, FileNotFoundError):
        return True
    except (Unauthorized, OSError):
        return False
    return True


def _sweep(base: Path, prefix: str) -> None:
    """Remove the private directories in ``base`` whose owners are shown to be dead."""
    for entry in os.scandir(base):
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False) and _owner_is_dead(Path(entry.path)):
            remove_private_dir(Path(entry.path))


def _owner_is_dead(path: Path) -> bool:
    try:
        with open_private_dir(path) as directory:
            mark = ProcessMark(**json.loads(read_private(path / _MARKER, directory=directory)))
    except (NotFound, Unauthorized, MeshError, ValueError, TypeError):
        return False  # not ours, or still being made
    return mark.alive() is False


def _too_open(what: str, path: Path, status: os.stat_result, mode: int) -> str:
    return (
        f"{what} {path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}; "
        f"expected user {os.geteuid()} with mode {mode:04o}: `chmod {mode:o} {path}` if it is yours and "
        "nobody else has used it, else use another one"
    )
