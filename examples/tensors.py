"""Arrays and tensors anywhere in arguments and results: they travel as Arrow frames, not as pickles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

import omnibus


def normalise(batch: dict[str, Any]) -> dict[str, Any]:
    pixels = batch["pixels"].astype(np.float32) / 255
    return {"pixels": pixels, "mean": pixels.mean(axis=0), "labels": batch["labels"]}


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def longest(words: pa.Array) -> pa.Array:
    return words.filter(pc.greater(pc.utf8_length(words), 4))


def main() -> None:
    with omnibus.connect(workers=1) as bus:
        batch = {"pixels": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": np.array([0, 1, 0])}
        done = bus.submit(normalise, batch).result()
        print("numpy:", done["pixels"].shape, done["pixels"].dtype, done["labels"].tolist())

        x = torch.ones(2, 3, dtype=torch.bfloat16)  # bit for bit, also bfloat16 and float8
        print("torch:", bus.submit(halve, x).result())

        words = pa.array(["arrow", "bus", "tensor"])
        print("pyarrow:", bus.submit(longest, words).result().to_pylist())

        big = np.zeros(4 << 20, dtype=np.float64)  # 32 MiB: sent from its own memory, so leave it alone until the end
        print("big:", bus.submit(np.count_nonzero, big).result())


if __name__ == "__main__":
    main()
