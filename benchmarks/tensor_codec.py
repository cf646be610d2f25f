"""What it costs to encode and decode a tensor: Omnibus beside pickle and Arrow's own IPC, in one run.

    python benchmarks/tensor_codec.py [--json] [--rounds N]

For each way: the median time in µs of one encode and one decode of a 1 KB tensor whose dtype and shape were
seen before, the same for 64 MB, and how many bytes are allocated on the way with 64 MB, which are the bytes
copied. It prints a table, then the same as one line of JSON; with ``--json`` the JSON alone.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from omnibus import payload

KB, MB = 1024, 1024 * 1024
Way = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def omnibus_encode(value: Any) -> Any:
    return payload.encode(value, code=False)


def omnibus_decode(frames: Any) -> Any:
    return payload.decode(*frames, code=False)


def beside_encode(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers


def beside_decode(frames: Any) -> Any:
    return pickle.loads(frames[0], buffers=frames[1])


def arrow_encode(value: Any) -> Any:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(value), sink)
    return sink.getvalue()


def arrow_decode(frame: Any) -> Any:
    return pa.ipc.read_tensor(pa.BufferReader(frame)).to_numpy()


def batch_encode(value: Any) -> Any:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(value.reshape(1, *value.shape))
    batch = pa.record_batch({"tensor": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def batch_decode(frame: Any) -> Any:
    return pa.ipc.open_stream(frame).read_next_batch().column(0).to_numpy_ndarray()[0]


WAYS: dict[str, Way] = {
    "omnibus": (omnibus_encode, omnibus_decode),
    "pickle 5": (lambda value: pickle.dumps(value, protocol=5), pickle.loads),
    "pickle 5, buffers beside": (beside_encode, beside_decode),
    "arrow tensor message": (arrow_encode, arrow_decode),
    "arrow record batch": (batch_encode, batch_decode),
}
OF_TORCH = ("omnibus", "pickle 5")


def median_us(way: Way, value: Any, rounds: int, inner: int) -> float:
    """Return the median over ``rounds`` of the mean time in µs of ``inner`` encodes and decodes."""
    encode, decode = way
    decode(encode(value))
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(inner):
            decode(encode(value))
        samples.append((time.perf_counter_ns() - start) / inner / 1000)
    return statistics.median(samples)


def bytes_copied(way: Way, value: Any) -> int:
    """Return the bytes that Python, numpy and Arrow allocate from a value to its copy at the receiver."""
    encode, decode = way
    decode(encode(value))
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        frames = encode(value)
        received = decode(frames)
        allocated = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow
        assert received.shape == value.shape
    finally:
        tracemalloc.stop()
    return allocated


def tensors() -> dict[str, tuple[Any, Any]]:
    """Return a small and a large tensor of each library that is here."""
    small, large = np.random.default_rng(0).random((16, 16), "f4"), np.ones((4096, 4096), "f4")
    found: dict[str, tuple[Any, Any]] = {"numpy": (small, large)}
    try:
        import torch
    except ImportError:
        return found
    return found | {"torch": (torch.from_numpy(small).clone(), torch.from_numpy(large).clone())}


def measure(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for library, (small, large) in tensors().items():
        assert small.nbytes == KB
        assert large.nbytes == 64 * MB
        for name in WAYS if library == "numpy" else OF_TORCH:
            copied = bytes_copied(WAYS[name], large) if library == "numpy" else None
            rows.append(
                {
                    "tensor": library,
                    "way": name,
                    "us_1kb": round(median_us(WAYS[name], small, rounds, 1000), 2),
                    "us_64mb": round(median_us(WAYS[name], large, max(3, rounds // 5), 3), 1),
                    "copied_64mb": copied,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'tensor':8}{'way':28}{'1 KB, µs':>10}{'64 MB, µs':>12}{'bytes copied of 64 MB':>24}"]
    for row in rows:
        copied = "" if row["copied_64mb"] is None else f"{row['copied_64mb']:,}"
        lines.append(
            f"{row['tensor']:8}{row['way']:28}{row['us_1kb']:10.2f}{row['us_64mb']:12.1f}{copied:>24}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the JSON alone")
    parser.add_argument(
        "--rounds", type=int, default=15, help="samples of which the median is taken (default: 15)"
    )
    options = parser.parse_args()
    rows = measure(options.rounds)
    if not options.json:
        sys.stdout.write(table(rows) + "\n")
    sys.stdout.write(json.dumps({"benchmark": "tensor_codec", "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
