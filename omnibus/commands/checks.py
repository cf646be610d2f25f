"""What ``omnibus doctor`` looks at on this host. Each check returns what it found, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from omnibus import __version__
from omnibus.actors.resources import find_cpus, find_gpus, find_memory
from omnibus.commands.tables import size
from omnibus.errors import MeshError, NotFound, OmnibusError
from omnibus.hostid import host_name
from omnibus.private import RUN_DIR_VARIABLE, check_private_dir
from omnibus.rundir import run_file_path
from omnibus.runfile import RunFile

__all__ = ["HOST_CHECKS", "Finding", "guarded"]

_LIBRARIES: Final = ("pyzmq", "msgpack", "numpy", "pyarrow", "tenacity", "cloudpickle", "typer", "rich")
_OPTIONAL: Final = ("torch", "scikit-learn", "ray")
_OLDEST_KERNEL: Final = (5, 9)
"""``pidfd_open`` came with 5.3, and non-blocking pidfds and their use in ``waitid`` were complete by 5.9."""
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome: ``state`` is ok, warn or fail; ``advice`` is what to do, where there is something to do."""

    name: str
    state: str
    found: str
    advice: str = ""


def guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what ``check`` finds; that it cannot look is a finding too."""
    try:
        yield from check()
    except (OSError, ValueError, OmnibusError) as error:
        yield Finding(name, "warn", f"could not be looked at: {error}")


def check_python() -> Iterator[Finding]:
    """Look at the interpreter and the system below it."""
    version = platform.python_version()
    found = f"{platform.python_implementation()} {version} at {sys.executable}"
    fine = sys.version_info >= (3, 11) and sys.implementation.name == "cpython"
    yield Finding("python", "ok" if fine else "fail", found, "" if fine else "use CPython 3.11 or later")
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if sys.platform != "linux":
        yield Finding("kernel", "fail", sys.platform, "Omnibus runs on Linux only")
    elif numbers < _OLDEST_KERNEL:
        yield Finding(
            "kernel", "fail", f"Linux {release}", "use Linux 5.9 or later: it watches processes by pidfd"
        )
    else:
        yield Finding("kernel", "ok", f"Linux {release}")


def check_packages() -> Iterator[Finding]:
    """Look at what is installed."""
    versions, missing = _versions(_LIBRARIES)
    yield Finding(
        "packages",
        "fail" if missing else "ok",
        ", ".join([f"omnibus {__version__}", *versions, *(f"{name} missing" for name in missing)]),
        f"pip install {' '.join(missing)}" if missing else "",
    )
    versions, missing = _versions(_OPTIONAL)
    yield Finding("extras", "ok", ", ".join([*versions, *(f"{name} not installed" for name in missing)]))


def _versions(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return those that are installed, with their versions, and those that are not."""
    versions, missing = [], []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return versions, missing


def check_libzmq() -> Iterator[Finding]:
    """Look at libzmq: tcp addresses need its CURVE."""
    found = f"libzmq {zmq.zmq_version()}"
    if zmq.has("curve"):
        yield Finding("libzmq", "ok", f"{found} with CURVE")
    else:
        advice = "install pyzmq's own wheel (pip install --force-reinstall --only-binary :all: pyzmq), or use ipc only"
        yield Finding("libzmq", "fail", f"{found} without CURVE: no tcp address can be sealed", advice)


def check_run_dir() -> Iterator[Finding]:
    """Look at the run directory and the run file: whose they are, and whether the mesh that they name is gone."""
    path = run_file_path()
    folder = path.parent
    try:
        check_private_dir(folder)
    except NotFound:
        yield Finding("run directory", "ok", f"{folder} is not there yet; `omnibus up` makes it")
        return
    except OmnibusError as error:
        yield Finding(
            "run directory",
            "fail",
            str(error),
            f"chmod 700 {folder} if it is yours, or set {RUN_DIR_VARIABLE}",
        )
        return
    yield Finding("run directory", "ok", f"{folder}, yours alone")
    yield from _check_run_file(path)


def _check_run_file(path: Path) -> Iterator[Finding]:
    try:
        run = RunFile.read(path)
    except NotFound:
        yield Finding("run file", "ok", "none: no mesh of `omnibus up` is up here")
    except MeshError as error:
        yield Finding("run file", "fail", str(error), f"rm {path}, if no mesh is up here")
    except OmnibusError as error:
        yield Finding(
            "run file", "fail", str(error), f"chmod 600 {path} if it is yours and nobody else has read it"
        )
    else:
        why = run.stale()
        about = (
            f"{path}: a mesh at {', '.join(run.addresses)}, process {run.process.pid} on {run.process.host}"
        )
        if why:
            yield Finding(
                "run file",
                "warn",
                f"{about}, which is gone: {why}",
                f"rm {path}; the next `omnibus up` replaces it",
            )
        else:
            yield Finding("run file", "ok", about)


def check_shared_memory() -> Iterator[Finding]:
    """Look at what shared memory there is, and whether memfds can be made."""
    try:
        free = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield Finding("/dev/shm", "warn", f"not there ({error.strerror})", "mount a tmpfs on /dev/shm")
    else:
        small = free.free < 256 * _MIB
        advice = "give the container more: docker run --shm-size=2g" if small else ""
        yield Finding(
            "/dev/shm", "warn" if small else "ok", f"{size(free.free)} free of {size(free.total)}", advice
        )
    try:
        os.close(os.memfd_create("omnibus-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        advice = "allow memfd_create in the container's seccomp profile"
        yield Finding("memfd", "fail", f"memfd_create: {error.strerror}", advice)
    else:
        yield Finding("memfd", "ok", "can be made")


def check_limits() -> Iterator[Finding]:
    """Look at the limits of open files and processes: each worker takes four descriptors of its node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = hard != resource.RLIM_INFINITY and hard < 4096
    advice = "raise it: ulimit -Hn 65536 (as root), or LimitNOFILE= of the service" if low else ""
    yield Finding("open files", "warn" if low else "ok", f"{_limit(soft)}, and up to {_limit(hard)}", advice)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    low = soft != resource.RLIM_INFINITY and soft < 1024
    advice = "raise it: ulimit -u 4096" if low else ""
    yield Finding("processes", "warn" if low else "ok", f"{_limit(soft)}, and up to {_limit(hard)}", advice)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def check_memory() -> Iterator[Finding]:
    """Look at CPUs and memory, as the mesh will give them out."""
    yield Finding("cpus", "ok", f"{find_cpus():g} of {os.cpu_count()} may be used here")
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    low = min(free, find_memory()) < _GIB
    advice = "end what else runs here, or give out less: omnibus up --workers 1" if low else ""
    yield Finding(
        "memory",
        "warn" if low else "ok",
        f"{size(free)} free; {size(find_memory())} may be used here",
        advice,
    )


def check_gpus() -> Iterator[Finding]:
    """Look at the GPUs: those that a node would give out, and what the driver's own tool says."""
    given = find_gpus()
    tool = shutil.which("nvidia-smi")
    if tool is None:
        if given:
            yield Finding(
                "gpus", "warn", f"a node would give out {', '.join(given)}; there is no nvidia-smi to ask", ""
            )
        else:
            yield Finding("gpus", "ok", "none")
        return
    query = [tool, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(query, capture_output=True, text=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(
            "gpus",
            "fail",
            "nvidia-smi has not answered for 15 s",
            "the driver hangs: see dmesg, reboot the host",
        )
        return
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip().partition("\n")[0]
        yield Finding("gpus", "warn", f"nvidia-smi: {said}", "mend the driver, or start nodes with --gpus 0")
        return
    cards = [" ".join(line.split(",")) for line in ran.stdout.splitlines() if line.strip()]
    about = f"a node would give out {', '.join(given) or 'none'}"
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        about += f" (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']})"
    yield Finding("gpus", "ok", "; ".join([*cards, about]))


def check_host_name() -> Iterator[Finding]:
    """Look at whether this host's name leads to an address: a broker that binds every interface tells it to others."""
    name = host_name()
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError as error:
        advice = "add it to /etc/hosts, or bind an address instead of `*`: --bind tcp://10.0.0.1:7890"
        yield Finding("host name", "warn", f"{name} does not resolve ({error.strerror})", advice)
    else:
        yield Finding("host name", "ok", f"{name} is {', '.join(addresses)}")


HOST_CHECKS: Final[dict[str, Callable[[], Iterator[Finding]]]] = {
    "python": check_python,
    "packages": check_packages,
    "libzmq": check_libzmq,
    "run directory": check_run_dir,
    "/dev/shm": check_shared_memory,
    "limits": check_limits,
    "memory": check_memory,
    "gpus": check_gpus,
    "host name": check_host_name,
}
"""The checks, by the name under which one that fails itself is shown."""
