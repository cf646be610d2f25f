"""The run directory, and how a program finds its mesh: what bus, command line and launchers need of both.

The run file ``mesh.json`` holds the addresses and the key of the mesh that ``omnibus up`` started. It and its
directory belong to one user, 0600 in 0700; who may read it may do everything that the mesh may do (see
:mod:`omnibus.address`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from omnibus.address import (
    ADDRESS_VARIABLE,
    INSECURE_VARIABLE,
    KEY_VARIABLE,
    Address,
    MeshKey,
    Target,
    parse_address,
)
from omnibus.errors import NotFound, Unauthorized, Unreachable, UsageError
from omnibus.hostid import ProcessMark, boot_id, host_key, host_name, pid_space, same_host
from omnibus.private import (
    RUN_DIR_VARIABLE,
    check_private_dir,
    make_private_dir,
    private_dir,
    read_private,
    remove_private_dir,
    runtime_bases,
)
from omnibus.runfile import RUN_FILE, RunFile

__all__ = [
    "ADDRESS_VARIABLE",
    "INSECURE_VARIABLE",
    "KEY_FILE_VARIABLE",
    "KEY_VARIABLE",
    "READY_VARIABLE",
    "RUN_DIR_VARIABLE",
    "RUN_FILE",
    "Address",
    "MeshKey",
    "ProcessMark",
    "RunFile",
    "Target",
    "announce_ready",
    "boot_id",
    "check_private_dir",
    "host_key",
    "host_name",
    "parse_address",
    "pid_space",
    "private_dir",
    "read_key",
    "remove_private_dir",
    "resolve",
    "run_dir",
    "run_file_path",
    "same_host",
]

KEY_FILE_VARIABLE: Final = "OMNIBUS_KEY_FILE"
READY_VARIABLE: Final = "OMNIBUS_READY_FD"
"""Names the inherited descriptor on which a process that was started says ``ready ADDRESS``."""

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})


def run_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the run directory, made where it was not there.

    It is ``$OMNIBUS_RUN_DIR``, else ``$XDG_RUNTIME_DIR/omnibus``, else ``omnibus-<uid>`` in the temporary
    directory. Raises :class:`Unauthorized` where another user could reach into it, :class:`UsageError` where
    it cannot be made.
    """
    return make_private_dir(_run_dir_path(os.environ if environ is None else environ))


def run_file_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the run file is or would be; nothing is made or checked."""
    return _run_dir_path(os.environ if environ is None else environ) / RUN_FILE


def read_key(path: Path) -> MeshKey:
    """Return the mesh key in a file: a run file, any JSON object with both halves, or their plain text.

    Raises :class:`NotFound`, or :class:`Unauthorized` where others can read the file or it holds no key.
    """
    text = read_private(path).decode(errors="replace")
    try:
        fields = json.loads(text)
        text = f"{fields['public_key']} {fields['secret_key']}"
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # no JSON, thus the text itself; where it is neither, parsing says so
    return MeshKey.parse(text, f"key file {path}")


def resolve(
    address: str | None = None, environ: Mapping[str, str] | None = None, *, insecure: bool = False
) -> Target | None:
    """Return the mesh that is meant: ``address``, else ``$OMNIBUS_ADDRESS``, else the run file's, else none.

    Over tcp the key comes from ``$OMNIBUS_KEY`` (what a mesh hands to its own processes), else from the file
    that ``$OMNIBUS_KEY_FILE`` names, else from the run file. ``insecure``, or ``$OMNIBUS_INSECURE``, does
    without. A run file of a mesh that is gone counts as none, with a :class:`RuntimeWarning`.

    Raises :class:`UsageError` for a malformed address, :class:`Unauthorized` where a key is missing or lies
    open, :class:`Unreachable` where the run file's mesh cannot be reached from this host, and what
    :meth:`RunFile.read` raises.
    """
    environ = os.environ if environ is None else environ
    named, source = (
        (address, "address=") if address is not None else (environ.get(ADDRESS_VARIABLE), f"${ADDRESS_VARIABLE}")
    )
    if not named and address is None:
        return _from_run_file(environ)
    parsed = parse_address(named or "")
    if not parsed.is_tcp:
        return Target(str(parsed), source=source)
    if insecure or _is_set(environ, INSECURE_VARIABLE):
        return Target(str(parsed), insecure=True, source=source)
    key, key_source = _find_key(parsed, environ)
    return Target(str(parsed), key=key, source=source, key_source=key_source)


def announce_ready(address: str, environ: MutableMapping[str, str] | None = None) -> bool:
    """Tell whoever started this process that it serves at ``address``; return whether anybody waited for it.

    A second call does nothing, and this process's own children do not inherit the request.
    """
    descriptor = (os.environ if environ is None else environ).pop(READY_VARIABLE, "")
    if not descriptor:
        return False
    try:
        with open(int(descriptor), "wb", buffering=0) as pipe:
            pipe.write(f"ready {address}\n".encode())
    except BrokenPipeError:
        return False  # it gave up waiting
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{READY_VARIABLE}={descriptor!r} is no open descriptor ({error}): only a launcher sets it"
        ) from None
    return True


def _run_dir_path(environ: Mapping[str, str]) -> Path:
    if named := environ.get(RUN_DIR_VARIABLE, ""):
        return Path(named).expanduser().absolute()
    bases = runtime_bases(environ)
    return bases[0] / ("omnibus" if len(bases) > 1 else f"omnibus-{os.geteuid()}")


def _from_run_file(environ: Mapping[str, str]) -> Target | None:
    path = run_file_path(environ)
    try:
        run = RunFile.read(path)
    except NotFound:
        return None
    if why := run.stale():
        warnings.warn(
            f"the mesh of run file {path} is gone ({why}), so the file is ignored: remove it, or run `omnibus up`",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    for text in run.addresses:
        parsed = parse_address(text)
        if parsed.is_tcp:
            source = f"run file {path}"
            return Target(
                text,
                run.key,
                insecure=run.key is None,
                source=source,
                key_source=source,
                epoch=run.epoch,
            )
        if same_host(run.process.boot) and os.path.exists(parsed.path):
            return Target(text, source=f"run file {path}", epoch=run.epoch)
    raise Unreachable(
        f"run file {path} names a mesh on {run.process.host} at {', '.join(run.addresses)}, none of which "
        f"can be reached from {host_name()}: start the broker with a tcp address too, or connect on that "
        "host"
    )


def _find_key(address: Address, environ: Mapping[str, str]) -> tuple[MeshKey, str]:
    if text := environ.get(KEY_VARIABLE, ""):
        return MeshKey.parse(text, f"${KEY_VARIABLE}"), f"${KEY_VARIABLE}"
    if name := environ.get(KEY_FILE_VARIABLE, ""):
        try:
            return read_key(Path(name).expanduser()), f"key file {name}"
        except NotFound:
            raise Unauthorized(f"key file {name} is not there: ${KEY_FILE_VARIABLE} names it") from None
    path = run_file_path(environ)
    try:
        if key := RunFile.read(path).key:
            return key, f"run file {path}"
    except NotFound:
        pass
    raise Unauthorized(
        f"{address} needs the mesh's key, and none is known here: set {KEY_FILE_VARIABLE} to a copy (mode "
        f"0600) of the {RUN_FILE} of the host where the mesh was started ({path} is not one), or pass "
        "insecure=True to a mesh that was started so"
    )


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in _YES | _NO:
        return value in _YES
    raise UsageError(f"{name}={value!r} is neither yes nor no: set it to 1, or unset it")
