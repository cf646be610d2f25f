"""What it costs to encode and decode a tensor, against pickle and Arrow's own IPC, without a mesh.

The small tensor has 1 KB, and its dtype and shape were seen before; the large one has 64 MB, and must not be
copied.
"""

from __future__ import annotations

import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.common import Result, absolute, interleave, run_one
from omnibus import payload

__all__ = ["measure"]

KB, MB = 1024, 1024 * 1024


class Way(NamedTuple):
    """One way to turn a tensor into frames and back."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def omnibus_encode(value: Any) -> Any:
    return payload.encode(value, code=False)


def omnibus_decode(frames: Any) -> Any:
    return payload.decode(*frames, code=False)


def pickle_encode(value: Any) -> Any:
    return pickle.dumps(value, protocol=5)


def beside_encode(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers


def beside_decode(frames: Any) -> Any:
    return pickle.loads(frames[0], buffers=frames[1])


def tensor_message_encode(value: Any) -> Any:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(value), sink)
    return sink.getvalue()


def tensor_message_decode(frame: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.read_tensor(pa.BufferReader(frame)).to_numpy()


def record_batch_encode(value: Any) -> Any:
    import pyarrow as pa

    column = pa.FixedShapeTensorArray.from_numpy_ndarray(value.reshape(1, *value.shape))
    batch = pa.record_batch({"tensor": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def record_batch_decode(frame: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(frame).read_next_batch().column(0).to_numpy_ndarray()[0]


OMNIBUS = Way("omnibus", omnibus_encode, omnibus_decode)
PICKLE = Way("pickle, protocol 5", pickle_encode, pickle.loads)
OTHERS = [
    PICKLE,
    Way("pickle, protocol 5, buffers beside", beside_encode, beside_decode),
    Way("Arrow tensor message", tensor_message_encode, tensor_message_decode),
    Way("Arrow record batch", record_batch_encode, record_batch_decode),
]


def microseconds(way: Way, value: Any, times: int) -> float:
    """Return the mean time of one encode and one decode."""
    way.decode(way.encode(value))
    began = time.perf_counter_ns()
    for _ in range(times):
        way.decode(way.encode(value))
    return (time.perf_counter_ns() - began) / times / 1_000


def allocated(way: Way, value: Any) -> float:
    """Return the bytes that Python, numpy and Arrow allocate from a value to its copy at the receiver."""
    import pyarrow as pa

    way.decode(way.encode(value))
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        frames = way.encode(value)
        received = way.decode(frames)
        peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow
    finally:
        tracemalloc.stop()
    if received.shape != value.shape:
        raise AssertionError("a tensor came back in another shape")
    return float(peak)


def measure(quick: bool) -> list[Result]:
    """Return times for small and large tensors, and how many bytes of a large one are copied."""
    import numpy as np

    rounds, times = (9, 100) if quick else (51, 400)
    small, large = np.random.default_rng(0).random((16, 16), "f4"), np.ones((4_096, 4_096), "f4")
    # a bound is stated once, where it is set against pickle
    seen, bulk = "1 KB numpy array, shape seen before", "64 MB numpy array"
    results = [
        *(_compare(seen, small, way, rounds, times, (15.0, 5.0) if way is PICKLE else None) for way in OTHERS),
        *(_compare(bulk, large, way, 3, 2, (100.0, 50.0) if way is PICKLE else None) for way in OTHERS),
    ]
    results.append(
        absolute(
            "tensor_codec",
            "64 MB numpy array, bytes allocated on the way",
            [allocated(OMNIBUS, large)],
            unit="bytes",
            against=PICKLE.name,
            references=[allocated(PICKLE, large)],
            floor=64 * KB,
            **{other.name: allocated(other, large) for other in OTHERS},
        )
    )
    return results + _torch(small, rounds, times)


def _torch(small: Any, rounds: int, times: int) -> list[Result]:
    try:
        import torch
    except ImportError:
        return []
    return [_compare("1 KB torch tensor, shape seen before", torch.from_numpy(small), PICKLE, rounds, times, None)]


def _compare(claim: str, value: Any, other: Way, rounds: int, times: int, bound: tuple[float, float] | None) -> Result:
    taken = interleave(rounds, lambda: microseconds(OMNIBUS, value, times), lambda: microseconds(other, value, times))
    ours, theirs = zip(*taken, strict=True)
    return absolute(
        "tensor_codec",
        f"{claim}, encode and decode",
        ours,
        unit="µs",
        against=other.name,
        references=theirs,
        floor=bound and bound[0],
        aim=bound and bound[1],
    )


if __name__ == "__main__":
    sys.exit(run_one("tensor_codec", measure))
