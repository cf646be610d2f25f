"""``omnibus broker`` and ``omnibus node``: one process of a mesh each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from omnibus.commands.base import AddressOption, InsecureOption, find_target, worker_environment
from omnibus.commands.meshoptions import (
    AllowOption,
    BindOption,
    BrokerGraceOption,
    ChildGraceOption,
    CpusOption,
    GpusOption,
    GuardOption,
    InsecureBindOption,
    LabelOption,
    LogJsonOption,
    LogLevelOption,
    MemoryOption,
    NameOption,
    PreloadOption,
    RunFileOption,
    SessionGraceOption,
    WindowBytesOption,
    WindowTasksOption,
    WorkersOption,
)
from omnibus.errors import UsageError

__all__ = ["broker", "logging_environment", "mesh_socket", "node", "node_options"]

_SOCKET: Final = "broker.sock"


def mesh_socket(run_dir: Path) -> str:
    """Return the address, in the run directory, where a mesh always listens."""
    return f"ipc://{run_dir}/{_SOCKET}"


def broker(
    bind: BindOption = None,
    insecure: InsecureBindOption = False,
    run_file: RunFileOption = True,
    grace: SessionGraceOption = 30.0,
    guard: GuardOption = None,
    window_tasks: WindowTasksOption = None,
    window_bytes: WindowBytesOption = None,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
) -> NoReturn:
    """Run a broker alone; nodes join it from this host or others.

    Prints `ready ADDRESS` once it serves. It always listens on a socket in the run directory, for programs of
    this user. Tcp addresses are sealed with the mesh's key, which is made by itself and stands in the run file,
    mesh.json: give another host a copy of that file, mode 0600, and name it there in $OMNIBUS_KEY_FILE. A key in
    $OMNIBUS_KEY is used instead of a new one.

    TERM or Ctrl-C ends it at once, with what it holds; `omnibus up` drains first.

    **Examples**

    ```sh
    omnibus broker                                # for this host
    omnibus broker --bind 'tcp://10.0.0.1:7890'   # for a cluster too
    ```
    """
    from omnibus.rundir import RUN_FILE, run_dir

    folder = run_dir()
    options = ["--bind", mesh_socket(folder), "--grace", str(grace), "--log-level", log_level]
    for address in bind or ():
        options += ["--bind", address]
    for flag, value in (
        ("--guard", guard),
        ("--window-tasks", window_tasks),
        ("--window-bytes", window_bytes),
    ):
        if value is not None:
            options += [flag, str(value)]
    options += ["--insecure"] * insecure
    options += ["--run-file", str(folder / RUN_FILE)] * run_file
    _become("omnibus.brokers", options, logging_environment(log_level, log_json))


def node(
    workers: WorkersOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = "auto",
    memory: MemoryOption = None,
    label: LabelOption = None,
    preload: PreloadOption = None,
    allow: AllowOption = None,
    name: NameOption = "",
    grace: ChildGraceOption = 5.0,
    broker_grace: BrokerGraceOption = 30.0,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
) -> NoReturn:
    """Add this host to a mesh: start workers and actors here, watch, restart and stop them.

    Prints `ready ADDRESS` once the broker has taken it in. Workers import modules from the working directory too.

    **Examples**

    ```sh
    omnibus node                                  # for this host's mesh
    OMNIBUS_KEY_FILE=mesh.json omnibus node --address tcp://10.0.0.1:7890
    omnibus node --workers 0 --label disk=fast    # workers as they are asked for
    ```
    """
    target = find_target(address, insecure)
    options = ["node", "--grace", str(grace), "--broker-grace", str(broker_grace), "--log-level", log_level]
    options += node_options(workers, cpus, gpus, memory, label, preload, allow, name)
    # The key goes by the environment: a command line shows in everybody's ps.
    _become("omnibus.actors", options, {**logging_environment(log_level, log_json), **target.environment()})


def node_options(
    workers: int | None,
    cpus: float | None,
    gpus: str,
    memory: str | None,
    labels: Sequence[str] | None,
    preload: Sequence[str] | None,
    allow: Sequence[str] | None,
    name: str,
) -> list[str]:
    """Return the options of ``python -m omnibus.actors node`` that these are."""
    options = ["--gpus", gpus]
    for flag, value in (
        ("--workers", workers),
        ("--cpus", cpus),
        ("--memory", memory),
        ("--name", name or None),
    ):
        if value is not None:
            options += [flag, str(value)]
    for flag, values in (("--label", labels), ("--preload", preload), ("--allow", allow)):
        for each in values or ():
            options += [flag, each]
    return options


def logging_environment(level: str, json: bool) -> dict[str, str]:
    """Return what has the mesh's processes log so; raises :class:`omnibus.UsageError` for a level that there is not."""
    from omnibus.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LEVELS

    if level.lower() not in LEVELS:
        raise UsageError(f"--log-level {level!r} is unknown: expected one of {', '.join(LEVELS)}")
    return {LEVEL_VARIABLE: level.lower(), **({FORMAT_VARIABLE: "json"} if json else {})}


def _become(module: str, options: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by one of the mesh, which says ``ready ADDRESS`` on its standard output."""
    from omnibus.embedded import interpreter
    from omnibus.rundir import READY_VARIABLE

    sys.stdout.flush()
    answer = os.dup(sys.stdout.fileno())
    os.set_inheritable(answer, True)
    command = [*interpreter(), module, *options]
    os.execve(
        command[0],
        command,
        {**os.environ, **worker_environment(), **environment, READY_VARIABLE: str(answer)},
    )
