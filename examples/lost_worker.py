"""A worker that dies takes nothing with it: its task runs elsewhere. One that kills each of its workers ends dead."""

from __future__ import annotations

import os
import signal

import omnibus


def work(n: int) -> int:
    if n == 7 and omnibus.current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does when memory runs out
    return n


def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with omnibus.connect(workers=2) as bus:
        print("sum:", sum(bus.map(work, range(20))))
        print("redelivered:", bus.status()["tasks"]["redelivered"])
        try:
            bus.options(retries=1).submit(poison).result()
        except omnibus.DeadLetter as error:
            print("dead after two attempts:", "SIGKILL" in str(error))


if __name__ == "__main__":
    main()
