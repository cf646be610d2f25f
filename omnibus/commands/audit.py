"""``omnibus audit``: whether the books add up, and agree with what the mesh shows of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from omnibus.commands.base import (
    FAILED,
    OK,
    AddressOption,
    InsecureOption,
    JsonOption,
    WithinOption,
    ask_status,
    open_bus,
    print_json,
)

__all__ = ["audit", "faults"]

_ENDS = ("done", "failed", "cancelled", "expired", "dead")
_DUST = 1e-6
"""What sums of fractions may be off by."""


def audit(
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: WithinOption = 10.0,
) -> int:
    """Prove that no task was lost and none ended twice.

    Every accepted task, and every message to an actor, is queued or running, or has ended as done, failed, cancelled,
    expired or dead: the counts must add up, and agree with the queues, workers and actors. Exits 1 and says what is off
    where they do not.

    **Examples**

    ```sh
    omnibus audit
    omnibus audit --json      # ok, faults, tasks, messages
    ```
    """
    with open_bus(address, insecure, within) as bus:
        status = ask_status(bus, within)
    found = list(faults(status))
    if json:
        print_json(
            {"ok": not found, "faults": found, "tasks": status["tasks"], "messages": status["messages"]}
        )
        return FAILED if found else OK
    from omnibus.commands.tables import make_console, tasks

    console = make_console()
    console.print(tasks(status))
    for fault in found:
        console.print("wrong: ", fault, style="bold red", sep="", markup=False)
    if not found:
        console.print("The books add up: nothing was lost, and nothing ended twice.", style="green")
    return FAILED if found else OK


def faults(status: dict[str, Any]) -> Iterator[str]:
    """Yield what does not hold of a mesh's status, each as one line. The broker makes it in one piece, so all must."""
    for book in ("tasks", "messages"):
        yield from _book_faults(book, status[book])
    tasks, messages = status["tasks"], status["messages"]
    held = [*status["workers"], *status["actors"]]
    for name, told, seen in (
        ("queued tasks", tasks["queued"], sum(status["lanes"].values())),
        ("queued messages", messages["queued"], sum(actor["queued"] for actor in status["actors"])),
        ("running", tasks["running"] + messages["running"], sum(each["running"] for each in held)),
    ):
        if told != seen:
            yield f"{name}: the books say {told:,}, the mesh holds {seen:,}"
    for node in status["nodes"]:
        # It may be overbooked for a while, by tasks that waited for others and go on; but nothing is free twice.
        if node["free_cpus"] > node["cpus"] + _DUST:
            yield f"node {node['name']}: {node['free_cpus']:g} of its {node['cpus']:g} CPUs are free"
        for gpu, free in node["gpus"].items():
            if not -_DUST <= free <= 1 + _DUST:
                yield f"node {node['name']}: {free:g} of GPU {gpu} is free"
    pids = Counter((each["host"], each["pid"]) for each in status["workers"] if each["state"] != "lost")
    for (host, pid), count in pids.items():
        if count > 1:
            yield f"process {pid} on {host} stands for {count} workers"


def _book_faults(name: str, book: dict[str, int]) -> Iterator[str]:
    """Yield what does not hold within one ledger."""
    for count in (key for key, value in book.items() if value < 0 and key != "balance"):
        yield f"{name}: {book[count]:,} are {count}, which cannot be"
    ended = sum(book[end] for end in _ENDS)
    balance = book["submitted"] - book["queued"] - book["running"] - ended
    if balance:
        became = "were lost" if balance > 0 else "ended twice"
        yield (
            f"{name}: {book['submitted']:,} were accepted; {book['queued']:,} are queued, {book['running']:,} running, "
            f"{ended:,} ended: {abs(balance):,} {became}"
        )
    if book.get("balance", balance) != balance:
        yield f"{name}: the broker reckons a balance of {book['balance']:,}, these counts give {balance:,}"
