"""The run file: which mesh is up here, how to reach it, with which key, and which process vouches for it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from omnibus.address import MeshKey, parse_address
from omnibus.errors import AlreadyExists, MeshError, NotFound, ProtocolError, Unauthorized
from omnibus.hostid import ProcessMark
from omnibus.private import locked, open_private_dir, read_private, write_private

__all__ = ["RUN_FILE", "RunFile"]

RUN_FILE: Final = "mesh.json"
_FORMAT: Final = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunFile:
    """What the run file says of a mesh: how to reach it, the key, and which process vouches for it.

    ``addresses`` has the best first. ``epoch`` is the broker's, ``started`` its start in seconds since 1970.
    Without a ``key`` its tcp addresses are insecure.
    """

    addresses: tuple[str, ...]
    epoch: str
    process: ProcessMark
    started: float
    key: MeshKey | None = None

    @property
    def address(self) -> str:
        """The first of the addresses."""
        return self.addresses[0]

    def stale(self) -> str | None:
        """Return why the mesh is gone for certain; ``None`` where it is not, or nobody here can tell."""
        return self.process.why_gone() if self.process.alive() is False else None

    def write(self, path: Path, *, replace: bool = False) -> None:
        """Write the file, 0600 from its first moment and all at once.

        One of a mesh that is gone, or that cannot be read, is replaced; one of another live mesh only with
        ``replace``: else :class:`AlreadyExists`. The directory is checked as
        :func:`omnibus.private.check_private_dir` does.
        """
        with open_private_dir(path.parent) as directory, locked(directory):
            other = None if replace else _read_if_good(path, directory)
            if other and other.epoch != self.epoch and other.process != self.process and not other.stale():
                raise AlreadyExists(
                    f"run file {path} names a live mesh at {other.address} (process {other.process.pid} on "
                    f"{other.process.host}): stop that one first, or give this one another directory with "
                    "OMNIBUS_RUN_DIR"
                )
            write_private(directory, path.name, json.dumps(self._as_json(), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> RunFile:
        """Return what the file says.

        Raises :class:`NotFound` (there is none), :class:`Unauthorized` (others could read or write it),
        :class:`ProtocolError` (a newer Omnibus wrote it) or :class:`MeshError` (it is damaged).
        """
        with open_private_dir(path.parent) as directory:
            return _parse(path, read_private(path, directory=directory))

    @classmethod
    def remove(cls, path: Path, epoch: str) -> bool:
        """Remove the file where it is still that of ``epoch``; return whether it was."""
        with (
            contextlib.suppress(NotFound),
            open_private_dir(path.parent) as directory,
            locked(directory),
        ):
            ours = _read_if_good(path, directory)
            if ours and ours.epoch == epoch:
                os.unlink(path.name, dir_fd=directory)
                return True
        return False

    def _as_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "address": self.address,
            "addresses": list(self.addresses),
            "epoch": self.epoch,
            "started": self.started,
            "process": asdict(self.process),
            "public_key": self.key.public if self.key else "",
            "secret_key": self.key.secret if self.key else "",
        }


def _read_if_good(path: Path, directory: int) -> RunFile | None:
    try:
        return _parse(path, read_private(path, directory=directory))
    except (MeshError, ProtocolError, Unauthorized):
        return None


def _parse(path: Path, content: bytes) -> RunFile:
    try:
        fields = json.loads(content)
        version = _of(int, fields["format"])
        if version != _FORMAT:
            raise ProtocolError(
                f"run file {path} has format {version}, this Omnibus reads {_FORMAT}: use one version at both ends"
            )
        return RunFile(
            addresses=_addresses(fields["addresses"]),
            epoch=_of(str, fields["epoch"]),
            process=_process(fields["process"]),
            started=float(fields["started"]),
            key=MeshKey(fields["public_key"], fields["secret_key"]) if fields["secret_key"] else None,
        )
    except (ValueError, LookupError, TypeError, RecursionError, Unauthorized) as error:
        raise MeshError(
            f"run file {path} is damaged ({type(error).__name__}: {error}): remove it and start the mesh "
            "again with `omnibus up`"
        ) from None


def _process(fields: Mapping[str, Any]) -> ProcessMark:
    return ProcessMark(
        pid=_of(int, fields["pid"]),
        started=_of(int, fields["started"]),
        boot=_of(str, fields["boot"]),
        space=_of(str, fields["space"]),
        host=_of(str, fields["host"]),
    )


def _addresses(fields: list[str]) -> tuple[str, ...]:
    if not fields:
        raise ValueError("it names no address")
    return tuple(str(parse_address(text)) for text in fields)


def _of(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
