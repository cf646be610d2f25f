"""A 64 MB tensor through the bus over tcp to a worker, against raw pyzmq without a copy over the same hops.

A mesh's tcp binds are under CURVE unless it was started ``--insecure``; each is measured beside the raw chain with
the same protection. Encryption, by libzmq in both, is what then takes the time.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import omnibus
from benchmarks.common import Result, interleave, run_one, versus
from benchmarks.processes import alone, tcp_mesh
from benchmarks.rawtensor import RawTensor
from benchmarks.work import size
from omnibus.errors import SetupFailed

__all__ = ["measure"]

HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def _send(bus: omnibus.Bus, array: Any) -> float:
    """Return the seconds until the worker has answered."""
    began = time.perf_counter()
    answer = bus.submit(size, array).result(60)
    took = time.perf_counter() - began
    if answer != array.nbytes:
        raise AssertionError(f"{array.nbytes} bytes were sent, and the worker answers {answer}")
    return took


def measure(quick: bool) -> list[Result]:
    """Return the bandwidth through the bus as a multiple of the raw chain's, without and with CURVE."""
    import numpy as np
    import zmq

    array = np.arange((8 << 20) // (4 if quick else 1), dtype=np.float64)
    array[-1] = array[0]
    public, secret = zmq.curve_keypair()
    results = _measure(array, f"{public.decode()} {secret.decode()}", 2 if quick else 9)
    try:
        return results + _measure(array, "", 3 if quick else 21)
    except SetupFailed as error:
        print(f"tensor_tcp: --insecure is skipped: no such mesh can be made to work ({error})", file=sys.stderr)
        return results


def _measure(array: Any, keys: str, rounds: int) -> list[Result]:
    """Measure a mesh, under CURVE where there are ``keys``, and two raw chains, one with the environment of a mesh."""
    with alone(), tcp_mesh(insecure=not keys) as bus, RawTensor(keys) as raw, RawTensor(keys, HUGE) as huge:
        measures = (lambda: _send(bus, array), lambda: raw.send(array), lambda: huge.send(array))
        interleave(2, *measures)
        taken = interleave(rounds, *measures)
    megabytes = array.nbytes / 1e6
    results = []
    for column, env in ((1, ""), (2, " and huge pages")):
        claim = (
            f"{megabytes:.0f} MB tensor to a worker over tcp, {'under CURVE, as it ships' if keys else '--insecure'}"
        )
        pairs = [(megabytes / row[0], megabytes / row[column]) for row in taken]
        against = f"raw pyzmq, copy=False{', under CURVE' if keys else ''}{env}"
        bounds = {"floor": 0.8, "aim": 0.95} if column == 1 else {}
        results.append(versus("tensor_tcp", claim, pairs, against=against, measured_in="MB/s", **bounds))
    return results


if __name__ == "__main__":
    sys.exit(run_one("tensor_tcp", measure))
