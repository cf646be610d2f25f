"""A stream: a generator method of an actor, read as it yields, on a plain bus and with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import omnibus


class Writer(omnibus.Actor):
    def words(self, text: str) -> Iterator[str]:
        yield from text.split()

    def count(self) -> Iterator[int]:
        n = 0
        while True:  # without end: at most 32 parts ahead of its reader, and ended when that one leaves
            yield n
            n += 1


async def read_with_asyncio(address: str) -> list[str]:
    async with omnibus.aconnect(address) as bus:
        return [word async for word in bus.actor("writer").stream("words", "and once more")]


def main() -> None:
    with omnibus.connect(workers=0) as bus:
        writer = bus.spawn(Writer, name="writer")
        for word in writer.stream("words", "the quick brown fox"):
            print(word)
        with writer.stream("count") as numbers:
            print("first three:", [next(numbers) for _ in range(3)])
        print("asyncio:", asyncio.run(read_with_asyncio(bus.address)))


if __name__ == "__main__":
    main()
