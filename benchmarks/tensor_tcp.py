"""A 64 MB tensor through the bus over tcp to a worker, against raw pyzmq without a copy over the same hops.

A mesh's tcp binds are under CURVE unless it was started ``--insecure``; each is measured beside the raw chain with
the same protection. Encryption, by libzmq in both, is what then takes the time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import omnibus
from benchmarks.common import Result, interleave, run_one, versus
from benchmarks.processes import alone, tcp_mesh
from benchmarks.rawtensor import RawTensor
from benchmarks.work import size
from omnibus.embedded import mesh_environment

__all__ = ["measure"]

TRANSFERS = 3


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
    return [
        *_measure(array, f"{public.decode()} {secret.decode()}", 1 if quick else 5),
        *_measure(array, "", 2 if quick else 11),
    ]


def _measure(array: Any, keys: str, rounds: int) -> list[Result]:
    """Measure a mesh, under CURVE where there are ``keys``, beside raw chains: plain, and with a mesh's allocator.

    One after the other: memory that one chain gives back is what the next one gets, in small pages or huge ones.
    """
    how = "under CURVE, as it ships" if keys else "--insecure"
    claim = f"{array.nbytes / 1e6:.0f} MB tensor to a worker over tcp, {how}"
    tuned = {"GLIBC_TUNABLES": mesh_environment()["GLIBC_TUNABLES"]}
    results = []
    with alone(), tcp_mesh(insecure=not keys) as bus:
        for env in ({}, tuned):
            with RawTensor(keys, env) as raw:
                measures = (_rate(lambda: _send(bus, array), array), _rate(lambda: raw.send(array), array))
                interleave(1, *measures)
                pairs = interleave(rounds, *measures)
            bounds = {} if env else {"floor": 0.8, "aim": 0.95}
            against = (
                f"raw pyzmq, copy=False{', under CURVE' if keys else ''}{', allocating as a mesh does' if env else ''}"
            )
            results.append(versus("tensor_tcp", claim, pairs, against=against, measured_in="MB/s", **bounds))
    return results


def _rate(send: Callable[[], float], array: Any) -> Callable[[], float]:
    """Return what measures the MB a second of some transfers, one after the other."""
    return lambda: TRANSFERS * array.nbytes / 1e6 / sum(send() for _ in range(TRANSFERS))


if __name__ == "__main__":
    sys.exit(run_one("tensor_tcp", measure))
