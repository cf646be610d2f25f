"""Topics: publish to whoever listens; a late reader asks for what it missed by its number."""

from __future__ import annotations

import omnibus


def train(steps: int) -> float:
    """Publish the loss of each step from inside a worker, by a bus of its own to the same mesh."""
    loss = 1.0
    with omnibus.connect() as bus:
        for step in range(steps):
            loss *= 0.5
            bus.publish("loss", {"step": step, "loss": loss}).result()
    return loss


def main() -> None:
    with omnibus.connect(workers=1) as bus:
        with bus.subscribe("loss") as losses:
            training = bus.submit(train, 4)
            for _ in range(4):
                event = losses.get(timeout=10)
                print(f"number {losses.number}: step {event['step']} loss {event['loss']}")
        print("result:", training.result())

        with bus.subscribe("loss", since=1) as losses:
            print("again from number 1:", [losses.get(timeout=10)["step"] for _ in range(4)])


if __name__ == "__main__":
    main()
