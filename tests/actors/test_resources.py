"""What a host has: found without loading CUDA, and never more than this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnibus.actors import resources
from omnibus.actors.resources import OomWatch, find_cpus, find_gpus, find_memory, parse_bytes
from omnibus.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1k", 1024), ("512M", 512 << 20), ("8G", 8 << 30), ("1.5g", 3 << 29), ("2TiB", 2 << 40),
     (" 64 GB ", 64 << 30)],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "8X", "-1", "G", "nan", "inf", "1e30"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0", ("0",)),
        ("2,3", ("2", "3")),
        ("GPU-8f3, GPU-9", ("GPU-8f3", "GPU-9")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
    ],
)
def test_gpus_that_a_scheduler_gave_are_respected(given: str, found: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert find_gpus({"CUDA_VISIBLE_DEVICES": given}, tmp_path) == found


def test_gpus_are_counted_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "driver/nvidia/gpus" / bus).mkdir(parents=True)
    assert find_gpus({}, tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("script", "count"), [("echo 'GPU 0: X (UUID: 1)'; echo 'GPU 1: X'; echo '  MIG 1g'", 2), ("exit 9", 0)]
)
def test_gpus_are_counted_by_the_tool_where_there_is_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(resources, "_DRIVERS", (str(tmp_path / "none"),))
    assert find_gpus({}, tmp_path) == ()
    monkeypatch.setattr(resources, "_DRIVERS", (str(tool),))
    assert len(find_gpus({}, tmp_path)) == count


def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Path:
    """Put control groups of the test's own in the place of the host's."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    (tmp_path / "proc/vmstat").write_text("pgfault 9\noom_kill 4\n")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(resources, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(resources, "_CGROUPS", tmp_path / "cgroup")
    return tmp_path / "cgroup"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_a_control_group_of_version_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cgroups(tmp_path, monkeypatch, "0::/job\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    write(root / "job/cpu.max", "250000 100000\n")
    write(root / "job/memory.max", "1073741824\n")
    assert find_cpus() == 3
    assert find_memory() == 1 << 30
    write(root / "job/cpu.max", "max 100000\n")
    write(root / "job/memory.max", "max\n")
    assert find_cpus() == 16
    assert find_memory() > 1 << 30


def test_limits_of_a_control_group_of_version_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cgroups(tmp_path, monkeypatch, "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    write(root / "cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    write(root / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    write(root / "memory/job/memory.limit_in_bytes", "1073741824\n")
    assert find_cpus() == 1
    assert find_memory() == 1 << 30


@pytest.mark.parametrize(
    ("lines", "file", "text"),
    [
        ("0::/job\n", "cgroup/job/memory.events", "low 0\noom 9\noom_kill {}\noom_group_kill 9\n"),
        ("4:memory:/job\n", "cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill {}\n"),
        ("", "proc/vmstat", "pgfault 9\noom_kill {}\n"),
    ],
)
def test_a_kill_for_memory_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, file: str, text: str
) -> None:
    cgroups(tmp_path, monkeypatch, lines)
    write(tmp_path / file, text.format(4))
    watch = OomWatch()
    assert not watch.struck()
    write(tmp_path / file, text.format(6))
    assert [watch.struck() for _ in range(3)] == [True, True, False]


def test_this_host_has_something() -> None:
    assert 1 <= find_cpus() <= len(os.sched_getaffinity(0))
    assert 1 << 20 < find_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert not OomWatch().struck()
