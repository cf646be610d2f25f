"""What workers and actors print, as the topic ``log`` carries it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from omnibus.protocol import Verb

if TYPE_CHECKING:
    from omnibus.bus import Bus

__all__ = ["TOPIC", "next_number", "show_line"]

TOPIC: Final = "log"


def next_number(bus: Bus, within: float = 10.0) -> int:
    """Return the number of the next line that comes; numbers begin at 1."""
    # A subscription without credit is sent nothing; the answer to it has the number.
    asked = bus.options().ask_broker(Verb.SUBSCRIBE, {"topic": TOPIC, "since": None, "credit": 0})
    return int(asked.result(within))


def show_line(line: dict[str, Any]) -> bool:
    """Print a line on the stream that it was printed on, marked with its source; return whether somebody reads it."""
    stream = sys.stderr if line.get("stream") == "err" else sys.stdout
    with contextlib.suppress(OSError, ValueError):
        print(f"({line.get('source')} pid={line.get('pid')}) {line.get('text')}", file=stream, flush=True)
        return True
    return False
