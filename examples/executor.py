"""A mesh where code expects a ``concurrent.futures`` executor: here beside a pool of threads, with the same helper."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed

import omnibus


def square(n: int) -> int:
    return n * n


def total(executor: Executor) -> int:
    return sum(future.result() for future in as_completed([executor.submit(square, n) for n in range(100)]))


async def in_a_loop(executor: Executor) -> int:
    return await asyncio.get_running_loop().run_in_executor(executor, square, 12)


def main() -> None:
    with ThreadPoolExecutor(2) as threads, omnibus.Executor(workers=2, options={"retries": 5}) as mesh:
        print("threads:", total(threads))
        print("mesh:", total(mesh))
        print("map:", list(mesh.map(square, range(5))))
        print("asyncio:", asyncio.run(in_a_loop(mesh)))


if __name__ == "__main__":
    main()
