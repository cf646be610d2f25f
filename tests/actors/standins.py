"""Stand-ins for a child's main, named by ``ChildConfig.entry``."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from omnibus.actors.config import ChildConfig
from omnibus.sharedmem import StatusPage

__all__: list[str] = []


WAITER = [sys.executable, "-c", "import signal; signal.pause()"]


def own(file: str) -> str:
    """Return what the kernel says of this process."""
    return Path(f"/proc/self/{file}").read_text()


def describe(config: ChildConfig) -> int:
    """Say what this process is like."""
    page = StatusPage.attach(config.page_fd)
    page.step = 41
    told: dict[str, Any] = {
        "name": config.name,
        "argv": sys.argv,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "group": os.getpgid(0),
        "sid": os.getsid(0),
        "env": dict(os.environ),
        "random": random.random(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigchld": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "comm": own("comm").strip(),
        "oom": int(own("oom_score_adj")),
        "threads": threading.active_count(),
        "path": sys.path,
        "cmdline": own("cmdline").split("\0")[:-1],
        "address": config.target.address,
        "secret": config.target.key.secret if config.target.key else "",
    }
    print(json.dumps(told))
    print("to the error output", file=sys.stderr)
    return 7


def wait(config: ChildConfig) -> int:
    """Say that it is there, then wait for ever."""
    print("up")
    while True:
        signal.pause()


def hold_gil(config: ChildConfig) -> int:
    """Say that it is there, then hold the GIL for ever, in C."""
    print("up")
    ctypes.PyDLL(None).pause()
    return 0


def stubborn(config: ChildConfig) -> int:
    """Ignore every signal that can be ignored."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    return wait(config)


def polite(config: ChildConfig) -> int:
    """End in order when asked to."""

    def leave(signum: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    return wait(config)


def leave_grandchild(config: ChildConfig) -> int:
    """Start a process of its own, say its pid, and wait."""
    with subprocess.Popen(WAITER, stdout=subprocess.DEVNULL) as process:
        print(process.pid)
        return wait(config)


def leave_grandchild_and_exit(config: ChildConfig) -> int:
    """Start a process of its own, say its pid, and end."""
    process = subprocess.Popen(WAITER, stdout=subprocess.DEVNULL)
    print(process.pid)
    process.returncode = 0  # not waited for, on purpose
    return 0


def raise_error(config: ChildConfig) -> int:
    """Fail as user code does."""
    raise ValueError("it went wrong")


def exit_with_text(config: ChildConfig) -> int:
    """Exit as ``sys.exit("…")`` does."""
    raise SystemExit("no data directory")


def run_out_of_memory(config: ChildConfig) -> int:
    """Want more memory than there is."""
    used = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, used))
    return len(bytearray(1 << 40))


def crash(config: ChildConfig) -> int:
    """Read address 0."""
    ctypes.string_at(0)
    return 0


def unflushed(config: ChildConfig) -> int:
    """Leave a line without its end, and an exit handler."""
    import atexit

    atexit.register(lambda: print(" and the exit handler ran", end=""))
    print("no newline", end="")
    return 0


def flood(config: ChildConfig) -> int:
    """Print without end."""
    line = "x" * 999 + "\n"
    while True:
        sys.stdout.write(line)


def serve(config: ChildConfig) -> int:
    """Begin and end attempts as standard commands on a file say; the tests drive the page through it."""
    page = StatusPage.attach(config.page_fd)
    print("up")

    def leave(signum: int, frame: object) -> None:
        print("term", page.reason)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    with open(os.environ["STANDIN_FIFO"]) as commands:
        for line in commands:
            what, _, number = line.strip().partition(" ")
            if what == "begin":
                print("begun" if page.begin(int(number)) else "refused", number)
            elif what == "end":
                page.end()
                print("ended")
            elif what == "exit":
                return int(number)
    return 0
