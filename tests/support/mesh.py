"""Meshes of separate commands, as a user starts them: a broker, nodes, and a run file for others to find them by."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnibus.address import Target
from omnibus.embedded import interpreter, mesh_environment
from omnibus.launch.local import LocalLauncher
from omnibus.rundir import resolve, run_file_path

__all__ = ["started_mesh"]


@contextmanager
def started_mesh(
    folder: Path, *binds: str, workers: int = 1, insecure: bool = False, node: tuple[str, ...] = ()
) -> Iterator[Target]:
    """Start a broker with these binds and a node, in the run directory ``folder``; yield what its run file says."""
    folder.chmod(0o700)
    environment = {**mesh_environment(), "OMNIBUS_RUN_DIR": str(folder)}
    run_file = run_file_path({"OMNIBUS_RUN_DIR": str(folder)})
    broker = [*interpreter(), "omnibus.brokers", "--run-file", str(run_file), "--owner", str(os.getpid())]
    for bind in binds:
        broker += ["--bind", bind]
    if insecure:
        broker.append("--insecure")
    with LocalLauncher() as launcher:
        handle = launcher.submit(broker, name="broker", env=environment, ready=True)
        launcher.wait_ready(handle, 10)
        target = resolve(None, {"OMNIBUS_RUN_DIR": str(folder)})
        assert target is not None
        owner = ["--owner", str(os.getpid())]
        command = [*interpreter(), "omnibus.actors", "node", "--workers", str(workers), *owner, *node]
        handle = launcher.submit(command, name="node", env=environment | dict(target.environment()), ready=True)
        launcher.wait_ready(handle, 10)
        yield target
