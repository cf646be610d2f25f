"""What the core tells its shell: things to act on or to log."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a peer.

    ``what`` is ``joined`` (a session began; ``pid`` is its process, unless that is its node's to watch), ``lost``
    (its link broke), ``returned`` (it came back over another), ``left`` (it ended), ``stray`` (a link without a
    session was told to begin one) or ``refused`` (something that was sent could not be taken). ``peer`` says who,
    ``detail`` what else there is to say.
    """

    what: str
    peer: str
    detail: str = ""
    pid: int = 0
    boot: str = ""
    session: bytes = b""
