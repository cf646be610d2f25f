"""What a host has for its node: CPUs, memory, GPUs; and whether memory was why a process died."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from omnibus.errors import UsageError

__all__ = ["OomWatch", "find_cpus", "find_gpus", "find_memory", "parse_bytes"]

_CGROUPS: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """Return the bytes that ``8G``, ``512M`` or a plain number mean; raises :class:`UsageError` for anything else."""
    cleaned = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = cleaned[-1:] if cleaned[-1:].isalpha() else ""
    try:
        size = float(cleaned.removesuffix(unit)) * _UNITS[unit]
        if not 0 <= size < 1 << 62:
            raise ValueError
    except (ValueError, KeyError):
        raise UsageError(f"memory {text!r} is no size: expected bytes, or a number with K, M, G or T") from None
    return int(size)


def find_cpus() -> float:
    """Return how many CPUs this process may use: its affinity, and its control group's quota where that is less."""
    affine = float(len(os.sched_getaffinity(0)))
    quotas = [quota for quota in map(_quota, _cgroup_folders("cpu")) if quota]
    return max(min([affine, *map(math.ceil, quotas)]), 1.0)


def _quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    try:
        quota, period = float(words[0]), float(words[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def find_memory() -> int:
    """Return the bytes of memory that this process may use: the host's, or its control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [total]
    for folder in _cgroup_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits)


def find_gpus(environ: Mapping[str, str] | None = None, proc: Path = _PROC) -> tuple[str, ...]:
    """Return the GPUs of this host by the names that ``CUDA_VISIBLE_DEVICES`` takes, without loading CUDA.

    A ``CUDA_VISIBLE_DEVICES`` that is set already is respected: a scheduler gave us those and no others.
    """
    environ = os.environ if environ is None else environ
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(_until_invalid(given))
    try:
        count = len(os.listdir(proc / "driver/nvidia/gpus"))
    except OSError:
        count = _count_by_tool()
    return tuple(str(index) for index in range(count))


def _until_invalid(given: str) -> Iterator[str]:
    """Give the devices of a list up to the first that is none, as CUDA reads it (``-1`` hides the rest)."""
    for word in given.split(","):
        word = word.strip()
        if not word or word.startswith("-"):
            return
        yield word


def _count_by_tool() -> int:
    if not any(map(os.path.exists, _DRIVERS)):
        return 0
    import subprocess  # by a host with GPUs alone, of which the kernel told nothing

    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if not listed.returncode else 0


class OomWatch:
    """Tells whether the kernel has killed for memory since the last time one asked.

    It counts in this process's control group where that is limited, else on the whole host.
    """

    def __init__(self) -> None:
        files = [
            folder / name
            for folder in _cgroup_folders("memory")
            for name in ("memory.events", "memory.oom_control")
            if (folder / name).exists()
        ]
        self._file = files[0] if files else _PROC / "vmstat"
        self._seen = self._count()

    def struck(self) -> bool:
        """Return whether there is a kill that no earlier call has taken, and take it."""
        if self._count() <= self._seen:
            return False
        self._seen += 1
        return True

    def _count(self) -> int:
        for line in _read(self._file).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0


def _cgroup_folders(controller: str) -> list[Path]:
    """Return the folders of this process's control groups, versions 1 and 2, that can govern ``controller``."""
    folders = []
    for line in _read(_PROC / "self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots = [_CGROUPS, _CGROUPS / "unified"]
        elif controller in controllers.split(","):
            roots = [_CGROUPS / controllers, _CGROUPS / controller]
        else:
            continue
        # In a container the path may be the host's, while the container sees its own group as the root.
        folders += [folder for root in roots for folder in (root / path.lstrip("/"), root) if folder.is_dir()]
    return list(dict.fromkeys(folders))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
