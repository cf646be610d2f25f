"""From a fork to a child's ``main``: whatever must change before its own code may run.

The child of a fork inherits its zygote's signals, descriptors, streams and random state, none of which is its own.
:func:`after_fork` and :func:`settle` see to that, one after the other; for a fresh interpreter there is
:func:`exec_fresh` in between.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import IO, Any, Final, NoReturn

from omnibus.errors import UsageError

from . import bonds
from .config import ChildConfig

__all__ = [
    "ONE_THREAD",
    "SYS_PATH_VARIABLE",
    "adopt_sys_path",
    "after_fork",
    "child_environment",
    "exec_fresh",
    "run",
    "run_fresh",
    "settle",
]

SYS_PATH_VARIABLE: Final = "OMNIBUS_SYS_PATH"
"""The owner's ``sys.path`` as JSON: what the program that made the mesh can import, its children can."""

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_BLAS_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
ONE_THREAD: Final = dict.fromkeys(_THREAD_VARIABLES, "1")
"""For the zygote: a library that made its threads there would lose them in each fork."""


def adopt_sys_path() -> None:
    """Import from where the mesh's owner imports, where it said so in the environment."""
    told = os.environ.get(SYS_PATH_VARIABLE, "")
    if told:
        sys.path[:] = [str(entry) for entry in json.loads(told)]


def child_environment(config: ChildConfig) -> dict[str, str]:
    """Return what is added to a child's environment: its mesh, its threads, its GPUs, and what its START asked for."""
    threads = str(max(1, int(config.cpus)))
    return {
        **config.target.environment(),
        **dict.fromkeys(_THREAD_VARIABLES, threads),
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(config.devices),
        **config.env,
    }


def after_fork(parent: int, death: int, streams: tuple[int, int], drop: Iterable[int]) -> int:
    """Cut the fresh fork loose from its parent: group, bonds, signals, descriptors. Return its death pipe's descriptor.

    It gets a process group of its own: a Ctrl-C at the terminal is the supervisor's to answer, and what the child
    leaves behind can be ended as one. ``streams`` become its output and error, ``drop`` is closed.
    """
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    bonds.die_with_parent(parent)
    own = bonds.die_with_pipe(death)
    _reset_signals()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, place in zip((null, *streams), range(3), strict=True):
        os.dup2(source, place)
    for fd in {null, death, *streams, *drop}:
        os.close(fd)
    bonds.prefer_for_oom()
    return own


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def exec_fresh(config: ChildConfig, page: int, death: int) -> NoReturn:
    """Become a new interpreter that runs the child; the bonds to parent and death pipe last through that.

    What the child must know goes by an inherited memfd: it holds the mesh's key, and a command line is public.
    """
    from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

    told = os.memfd_create("omnibus-config", 0)
    os.write(told, replace(config, page_fd=page).pack())
    os.lseek(told, 0, os.SEEK_SET)
    for fd in (page, death):
        os.set_inheritable(fd, True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, *_args_from_interpreter_flags(), "-m", "omnibus.actors", "child", str(told), str(death)]
    os.execve(command[0], command, {**os.environ, **child_environment(config)})


def run_fresh(told: int, death: int) -> NoReturn:
    """Be the child that :func:`exec_fresh` described, to its end."""
    status = 1
    try:
        with open(told, "rb") as file:
            config = ChildConfig.unpack(file.read())
        for fd in (config.page_fd, death):
            os.set_inheritable(fd, False)
        adopt_sys_path()
        status = run(settle(config, config.page_fd))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def settle(config: ChildConfig, page: int) -> ChildConfig:
    """Give the process its streams, environment, threads and random state; return ``config`` with its page in it."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it lives as long as the process
    sys.stdout, sys.stderr = _stream(1), _stream(2)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    faulthandler.enable(2)
    os.environ.update(child_environment(config))
    sys.argv = [f"omnibus-{config.role}", config.name]
    bonds.name_process(config.name)
    _set_loaded_libraries(config)
    gc.enable()
    return replace(config, page_fd=page)


def _stream(fd: int) -> IO[str]:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _set_loaded_libraries(config: ChildConfig) -> None:
    """Set the threads, and seed the generators, of libraries that were loaded before the fork.

    They read the environment when they were loaded. Python's own ``random`` seeds itself anew after a fork.
    """
    threads = max(1, int(config.cpus))
    torch, numpy_random = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if threads > 1 and "numpy" in sys.modules:
        _set_blas_threads(threads)
    if torch is not None:
        torch.set_num_threads(threads)
        torch.default_generator.seed()  # CUDA seeds its own when it begins
    if numpy_random is not None:
        numpy_random.seed()


def _set_blas_threads(threads: int) -> None:
    """Tell every OpenBLAS that is loaded how many threads to use."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line.rpartition("/")[2]}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in _BLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(threads))
                break


def run(config: ChildConfig) -> int:
    """Call the child's entry; return the exit status that its end means."""
    try:
        return _status(_entry(config.entry)(config))
    except SystemExit as leaving:
        return _status(leaving.code)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        _last_words()


def _entry(path: str) -> Callable[[ChildConfig], Any]:
    module, separator, name = path.partition(":")
    if not separator:
        raise UsageError(f"entry {path!r} of a child is not of the form 'module:function'")
    entry: Callable[[ChildConfig], Any] = getattr(importlib.import_module(module), name)
    return entry


def _status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _last_words() -> None:
    """Run the exit handlers and flush. The process then ends by ``os._exit``: no thread that was left can hold it."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
