"""An actor: state in a process of its own, one message at a time, known by its name."""

from __future__ import annotations

import omnibus


class Account(omnibus.Actor):
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.balance = 0

    def deposit(self, amount: int) -> int:
        if amount <= 0:
            raise ValueError("a deposit is positive")
        self.balance += amount
        return self.balance

    def total(self) -> int:
        return self.balance


def main() -> None:
    with omnibus.connect(workers=0) as bus:
        account = bus.spawn(Account, "Ada", name="account")
        print("ask:", account.ask("deposit", 100).result())

        for _ in range(10):
            account.tell("deposit", 5)  # sent and forgotten; it arrives before what this thread asks next
        print("after ten tells:", account.ask("total").result())

        same = bus.actor("account")  # any bus on this mesh finds it by its name
        try:
            same.ask("deposit", -1).result()
        except omnibus.RemoteError as error:
            print("refused:", error.__cause__)
        print("still:", same.ask("total").result())
        account.stop()


if __name__ == "__main__":
    main()
