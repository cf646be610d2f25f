"""Run functions on a mesh: one at a time, many in order, urgent ones first, and what a failure looks like."""

from __future__ import annotations

import omnibus


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def divide(a: int, b: int) -> float:
    return a / b


def main() -> None:
    with omnibus.connect(workers=2) as bus:
        print("one:", bus.submit(collatz, 27).result())
        print("many:", list(bus.map(collatz, range(1, 9))))

        slow = [bus.submit(collatz, n) for n in range(1, 2000)]
        urgent = bus.options(priority=10, name="urgent").submit(collatz, 97)  # passes all that still waits
        print("urgent:", urgent.result())
        print("longest below 2000:", max(future.result() for future in slow))

        try:
            bus.submit(divide, 1, 0).result()
        except omnibus.RemoteError as error:
            print("failed:", error.type_name, "| cause:", repr(error.__cause__))


if __name__ == "__main__":
    main()
