"""The same verbs with asyncio: nothing blocks the loop."""

from __future__ import annotations

import asyncio

import omnibus


def cube(n: int) -> int:
    return n**3


class Counter(omnibus.Actor):
    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int) -> int:
        self.value += n
        return self.value


async def main() -> None:
    async with omnibus.aconnect(workers=1) as bus:
        print("gather:", await asyncio.gather(*(bus.submit(cube, n) for n in range(5))))
        print("map:", [value async for value in bus.map(cube, range(5))])
        counter = await bus.spawn(Counter)
        await asyncio.gather(*(counter.ask("add", 1) for _ in range(100)))
        print("counter:", await counter.ask("add", 0))
        print("tasks done:", (await bus.status())["tasks"]["done"])


if __name__ == "__main__":
    asyncio.run(main())
