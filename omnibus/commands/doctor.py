"""``omnibus doctor``: what may keep a mesh from working here, and what to do about it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from omnibus.commands.base import (
    FAILED,
    OK,
    AddressOption,
    InsecureOption,
    JsonOption,
    ask_status,
    one_line,
    print_json,
)
from omnibus.commands.base import WithinOption as Within
from omnibus.errors import OmnibusError

if TYPE_CHECKING:
    from omnibus.commands.checks import Finding

__all__ = ["doctor"]

_LOOKS = 20


def doctor(
    json: JsonOption = False,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    within: Within = 5.0,
) -> int:
    """Look for what may keep a mesh from working here: this host, the run directory, and the mesh that is found.

    Each check is ok, warn or fail, and says what it found and what to do. Exits 1 if one failed; a mesh that is named
    and does not answer is a failure, that none is up is not.

    **Examples**

    ```sh
    omnibus doctor
    omnibus doctor --address tcp://10.0.0.1:7890
    omnibus doctor --json | jq '.checks[] | select(.state != "ok")'
    ```
    """
    from omnibus.commands.checks import HOST_CHECKS, guarded

    findings = [finding for name, check in HOST_CHECKS.items() for finding in guarded(name, check)]
    findings += check_mesh(address, insecure, within)
    worst = FAILED if any(finding.state == "fail" for finding in findings) else OK
    if json:
        print_json({"ok": worst == OK, "checks": [asdict(finding) for finding in findings]})
        return worst
    from omnibus.commands.tables import make_console, table

    console = make_console()
    rows = [(finding.name, finding.state, finding.found) for finding in findings]
    console.print(table("Checks", ("check", "state", "found"), rows))
    for finding in findings:
        if finding.advice:
            console.print(f"{finding.name}: {finding.advice}", markup=False, soft_wrap=True)
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    console.print(f"{failed} failed, {warned} warnings, {len(findings) - failed - warned} ok")
    return worst


def check_mesh(address: str | None, insecure: bool, within: float) -> Iterator[Finding]:
    """Look at the mesh that a program would find: whether it answers, how fast, and who speaks which version."""
    from omnibus.bus import Bus
    from omnibus.commands.checks import Finding
    from omnibus.handshake import PACKAGE_VERSION
    from omnibus.rundir import resolve

    try:
        target = resolve(address, insecure=insecure)
        if target is None:
            yield Finding("mesh", "ok", "none is up here: a program's connect() starts one of its own", "")
            return
        began = time.monotonic()
        with Bus(target, timeout=within) as bus:
            connected = time.monotonic() - began
            welcome = bus._peer.welcome
            status = ask_status(bus, within)
            trips = []
            for _ in range(_LOOKS):
                began = time.perf_counter()
                ask_status(bus, within)
                trips.append(time.perf_counter() - began)
    except OmnibusError as error:
        yield Finding(
            "mesh",
            "fail",
            one_line(error),
            "start it with `omnibus up`, or see that address and key are right",
        )
        return
    link = (
        "sealed with the mesh's key"
        if target.key
        else "insecure"
        if target.parsed().is_tcp
        else "private socket"
    )
    seconds = f"connected in {connected * 1000:.0f} ms, status in {statistics.median(trips) * 1000:.2f} ms"
    yield Finding("mesh", "ok", f"{target.address} (from {target.source}; {link}): {seconds}")
    theirs = str(welcome.get("version"))
    found = f"broker omnibus {theirs}, this end {PACKAGE_VERSION}; OMB/{welcome.get('omb')} at both"
    alike = theirs == PACKAGE_VERSION
    yield Finding(
        "versions", "ok" if alike else "warn", found, "" if alike else "install one version at both ends"
    )
    yield from _check_parts(status)


def _check_parts(status: dict[str, object]) -> Iterator[Finding]:
    """Look at whether the mesh has anybody to do the work."""
    from omnibus.commands.checks import Finding

    nodes, workers = status["nodes"], status["workers"]
    assert isinstance(nodes, list) and isinstance(workers, list)
    found = f"nodes: {len(nodes)}, workers: {len(workers)}"
    lost = [each["name"] for each in (*nodes, *workers) if each["state"] == "lost"]
    if lost:
        yield Finding(
            "members",
            "warn",
            f"{found}; lost: {', '.join(lost)}",
            "their link broke: see the network, and their logs",
        )
    elif not nodes:
        yield Finding("members", "warn", f"{found}: what is submitted waits", "start a node: `omnibus node`")
    else:
        yield Finding("members", "ok", found)
