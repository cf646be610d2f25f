"""Channels: whatever a broken link swallows, each message arrives once and in order."""

from __future__ import annotations

import random
from collections import deque

import pytest

from omnibus.channel import ACK_BYTES, ACK_EVERY, Channel
from omnibus.errors import ProtocolError
from omnibus.protocol import Verb


class End:
    """One end of a session over links that may break: it numbers what it sends and notes what it gets."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.made = 0
        self.got: list[int] = []

    def message(self) -> list[object]:
        ack = self.channel.acknowledgement()
        self.made += 1
        frames: list[object] = [self.made, ack]
        self.channel.keep(frames)
        return frames

    def take(self, frames: list[object]) -> None:
        self.channel.received += 1
        number, ack = frames
        assert isinstance(number, int)
        self.got.append(number)
        if isinstance(ack, list):
            assert ack[0] == Verb.ACK
            self.channel.acknowledged(ack[1])


@pytest.mark.parametrize("seed", range(50))
def test_breaks_at_random_moments_lose_and_double_nothing(seed: int) -> None:
    dice = random.Random(seed)
    ends = (End(), End())
    wires: tuple[deque[list[object]], deque[list[object]]] = (deque(), deque())
    for _ in range(2_000):
        side = dice.randrange(2)
        match dice.randrange(20):
            case 0:
                for wire in wires:
                    wire.clear()
                counts = [end.channel.received for end in ends]
                for mine, wire in enumerate(wires):
                    wire.extend(ends[mine].channel.resume(counts[1 - mine]))
            case roll if roll < 10:
                wires[side].append(ends[side].message())
            case _ if wires[side]:
                ends[1 - side].take(wires[side].popleft())
            case _:
                pass
    for side in (0, 1):
        while wires[side]:
            ends[1 - side].take(wires[side].popleft())
    for side in (0, 1):
        assert ends[1 - side].got == list(range(1, ends[side].made + 1))


def test_what_is_kept_stays_bounded_while_acknowledgements_come() -> None:
    left, right = End(), End()
    most = 0
    for _ in range(1_000):
        right.take(left.message())
        left.take(right.message())
        most = max(most, left.channel.unacknowledged, right.channel.unacknowledged)
    assert most <= ACK_EVERY + 1


def test_an_acknowledgement_is_due_only_after_enough_messages() -> None:
    end = End()
    for number in range(1, ACK_EVERY):
        end.take([number, None])
        assert end.channel.acknowledgement() is None
    end.take([ACK_EVERY, None])
    assert end.channel.acknowledgement() == [Verb.ACK, ACK_EVERY, None, None, 0]
    assert end.channel.acknowledgement() is None


def test_large_blobs_are_acknowledged_by_the_next_message() -> None:
    channel = Channel()
    channel.arrived([b"OMB1", b"batch", b"blob"])
    assert channel.acknowledgement() is None
    channel.arrived([b"OMB1", b"batch", bytes(ACK_BYTES)])
    assert channel.acknowledgement() == [Verb.ACK, 2, None, None, 0]
    assert channel.acknowledgement() is None


def test_impossible_acknowledgements_are_refused_and_change_nothing() -> None:
    end = End()
    for _ in range(3):
        end.message()
    end.channel.acknowledged(2)
    for use in (end.channel.acknowledged, end.channel.resume):
        with pytest.raises(ProtocolError, match="ACK of 4 messages, but only 3 were sent"):
            use(4)
    assert end.channel.unacknowledged == 1


def test_an_old_acknowledgement_changes_nothing() -> None:
    end = End()
    for _ in range(3):
        end.message()
    end.channel.acknowledged(2)
    end.channel.acknowledged(1)
    assert end.channel.unacknowledged == 1
