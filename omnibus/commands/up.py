"""``omnibus up``: a mesh in the foreground."""

from __future__ import annotations

import os
from typing import Any

from omnibus.commands.meshoptions import (
    AllowOption,
    BindOption,
    CpusOption,
    DrainOption,
    GpusOption,
    InsecureBindOption,
    LabelOption,
    LogJsonOption,
    LogLevelOption,
    MemoryOption,
    NameOption,
    PreloadOption,
    QuietOption,
    StartOption,
    StateOption,
    WorkersOption,
)
from omnibus.commands.processes import logging_environment, mesh_socket, node_options

__all__ = ["up"]


def up(
    workers: WorkersOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = "auto",
    memory: MemoryOption = None,
    label: LabelOption = None,
    preload: PreloadOption = None,
    allow: AllowOption = None,
    name: NameOption = "",
    bind: BindOption = None,
    insecure: InsecureBindOption = False,
    drain: DrainOption = 30.0,
    within: StartOption = 20.0,
    quiet: QuietOption = False,
    log_level: LogLevelOption = "warning",
    log_json: LogJsonOption = False,
    state: StateOption = "",
) -> int:
    """Run a mesh in the foreground: a broker, and a node with its workers.

    Prints `ready ADDRESS` once both serve, and `also ADDRESS` for each further one. Address and key stand in the
    run file, so that programs and commands on this host need neither: `omnibus.connect()` and `omnibus status`
    find the mesh. What workers print is shown, marked with its source.

    **To stop it**, press Ctrl-C or send it TERM: it removes the run file, waits until what is queued and running
    has ended, --drain seconds at most, and stops. A second Ctrl-C stops at once. Exits 0 if nothing was lost, else 1.

    **Examples**

    ```sh
    omnibus up                                # a worker for each CPU
    omnibus up --workers 4 --gpus 2           # four workers, two GPUs
    omnibus up --bind 'tcp://0.0.0.0:7890'    # for other hosts too
    OMNIBUS_RUN_DIR=/tmp/second omnibus up    # a second mesh beside it
    ```
    """
    options = ["--log-level", log_level]
    binds = [word for address in bind or () for word in ("--bind", address)]
    return _run(
        broker=[*options, *binds, *["--insecure"] * insecure],
        node=[*options, *node_options(workers, cpus, gpus, memory, label, preload, allow, name)],
        environment=logging_environment(log_level, log_json),
        drain=drain,
        within=within,
        quiet=quiet,
    )


def _run(**how: Any) -> int:
    """Run the mesh that ``how`` describes, as the fields of a plan, to its end; return the exit code."""
    from omnibus.commands.foreground import Foreground, Plan, refuse_second
    from omnibus.rundir import RUN_FILE, run_dir

    folder = run_dir()
    refuse_second(folder / RUN_FILE)
    mesh = Foreground(Plan(folder, mesh_socket(folder), **how))
    try:
        addresses = mesh.start()
        print(f"ready {addresses[0]}", flush=True)
        for address in addresses[1:]:
            print(f"also {address}", flush=True)
        _warn_of_another(addresses)
        return mesh.run()
    finally:
        mesh.close()


def _warn_of_another(addresses: tuple[str, ...]) -> None:
    """Say so where this shell's environment names another mesh."""
    from omnibus.address import ADDRESS_VARIABLE
    from omnibus.commands.base import say

    named = os.environ.get(ADDRESS_VARIABLE, "")
    if named and named not in addresses:
        say("up", f"note: ${ADDRESS_VARIABLE} is {named} here, and commands of this shell go there: unset it")
