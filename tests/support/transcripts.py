"""Reads the transcripts under ``tests/vectors/transcripts``; their form is described in ``tests/vectors/README.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from omnibus.protocol import Record, Verb, encode

__all__ = ["TRANSCRIPTS", "VECTORS", "Bindings", "Happening", "Message", "Transcript", "Turn", "mark", "plain"]

VECTORS = Path(__file__).parent.parent / "vectors"
_LINE = re.compile(r"(?P<peer>\w+) (?P<what>>>|<<|>|<|\+|!) (?P<rest>.*)")


@dataclass
class Message:
    """One message to the broker (``>``), or records from it (``<``); ``lockstep`` where it has an empty first frame."""

    peer: str
    sent: bool
    lockstep: bool
    line: int
    records: list[Any] = field(default_factory=list)
    frames: list[Any] | None = None


@dataclass
class Happening:
    """What is no message: a peer ``joins``, is ``lost``, is ``back`` over a new link, or ``died``."""

    peer: str
    what: str
    detail: Any
    line: int


@dataclass
class Turn:
    """What comes to the broker at one moment, and all that it answers."""

    line: int
    at: float | None = None
    inputs: list[Message | Happening] = field(default_factory=list)
    outputs: list[Message] = field(default_factory=list)


class Transcript:
    """One file: its settings and its turns."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.settings: dict[str, Any] = {}
        self.turns: list[Turn] = []
        turn: Turn | None = None
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if not text.strip():
                turn = None
            elif text.startswith("settings "):
                self.settings = json.loads(text.removeprefix("settings "))
            elif not text.startswith("#"):
                if turn is None:
                    turn = Turn(number)
                    self.turns.append(turn)
                try:
                    _add(turn, text.strip(), number)
                except ValueError as error:
                    raise ValueError(f"{path.name}:{number}: {error}") from None

    def __repr__(self) -> str:
        return self.name


def _add(turn: Turn, text: str, number: int) -> None:
    if text.startswith("@ "):
        turn.at = float(text[2:])
        return
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no line of a transcript")
    peer, what, rest = found.groups()
    if what == "!":
        word, _, detail = rest.partition(" ")
        turn.inputs.append(Happening(peer, word, json.loads(detail) if detail else None, number))
        return
    value = json.loads(rest)
    if what == "+":
        last: Any = (turn.outputs or turn.inputs)[-1]
        if last.peer != peer:
            raise ValueError(f"goes on with a message of {last.peer}'s")
    else:
        last = Message(peer, what[0] == ">", len(what) == 2, number)
        (turn.inputs if last.sent else turn.outputs).append(last)
    if isinstance(value, dict):
        last.frames = value["frames"]
    elif value:
        last.records.append([*value, *[None, None, None, []][len(value) - 1 :]])


def plain(value: Any) -> Any:
    """Return a JSON value as what it stands for: ``0x…`` is bytes, a map with a key ``$…`` what that says."""
    if isinstance(value, str) and value.startswith("0x"):
        return bytes.fromhex(value[2:])
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        if "$pack" in value:
            return msgpack.packb(plain(value["$pack"]))
        if "$times" in value:
            count, item = value["$times"]
            piece = plain(item)
            return (piece if isinstance(piece, bytes) else [piece]) * count
        if "$ext" in value:
            return msgpack.ExtType(value["$ext"][0], plain(value["$ext"][1]))
        return {key: plain(item) for key, item in value.items()}
    return value


def mark(name: str) -> bytes:
    """Return the session of the peer of that name: its letters, and zeros up to sixteen bytes."""
    return name.encode().ljust(16, b"\0")


class Bindings:
    """What the names in a transcript stand for in this run."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def fill(self, value: Any) -> Any:
        """Return a value to send, with its names replaced."""
        if isinstance(value, str) and value.startswith("$"):
            return self.values[value]
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict) and not any(key.startswith("$") for key in value):
            return {key: self.fill(item) for key, item in value.items()}
        return plain(value)

    def frames(self, message: Message) -> list[Any]:
        """Return the frames of a message to send, without a delimiter."""
        if message.frames is not None:
            return [plain(frame) for frame in message.frames]
        records: list[Record] = []
        blobs: list[bytes] = []
        for verb, about, head, body, owned in message.records:
            number = int(Verb[verb]) if isinstance(verb, str) else verb
            records.append([number, self.fill(about), self.fill(head), self.fill(body), len(owned)])
            blobs += plain(owned)
        return encode(records, blobs)

    def invent(self, message: Message) -> Iterator[tuple[Record, list[bytes]]]:
        """Yield the records of a message from the broker, as one that chooses numbers and texts by itself might say."""
        for verb, about, head, body, owned in message.records:
            number = int(Verb[verb]) if isinstance(verb, str) else verb
            filled = [self._invent(part) for part in (about, head, body)]
            if filled[2] == "any":
                filled[2] = b"\xc0"
            yield [number, *filled, len(owned)], plain(owned)

    def _invent(self, value: Any) -> Any:
        if value == "*":
            return "any"
        if isinstance(value, str) and value.startswith("$"):
            return self.values.setdefault(value, len(self.values) + 1_000)
        if isinstance(value, list):
            return [self._invent(item) for item in value]
        if isinstance(value, dict) and not any(key.startswith("$") for key in value):
            return {
                key: "any" if key == "message" and item.startswith("$") else self._invent(item)
                for key, item in value.items()
                if key != "..."
            }
        return plain(value)

    def check(self, expected: list[Any], record: Record, blobs: list[bytes], where: str) -> None:
        """Check that a record is the one that is expected; new names are bound to what stands in their place."""
        verb, about, head, body, owned = expected
        shown = f"{where}: expected {verb} {about}, got {show(record)}"
        assert record[0] == (Verb[verb] if isinstance(verb, str) else verb), shown
        for part, wanted, found in (("id", about, record[1]), ("head", head, record[2]), ("body", body, record[3])):
            assert self.match(wanted, found), f"{shown}: {part} is {found!r:.300}, expected {wanted!r:.300}"
        assert [bytes(blob) for blob in blobs] == plain(owned), f"{shown}: the blobs differ"

    def match(self, expected: Any, found: Any) -> bool:
        """Tell whether ``found`` is what is expected."""
        if expected == "*":
            return True
        if isinstance(expected, str) and expected.startswith("$"):
            return self._match_name(expected, found)
        if isinstance(expected, list):
            return (
                isinstance(found, list) and len(found) == len(expected) and all(map(self.match, expected, found))
            )
        if isinstance(expected, dict) and not any(key.startswith("$") for key in expected):
            keys = expected.keys() - {"..."}
            if not isinstance(found, dict) or not keys <= found.keys():
                return False
            exact = "..." in expected or keys == found.keys()
            return exact and all(self.match(expected[key], found[key]) for key in keys)
        return type(plain(expected)) is type(found) and bool(plain(expected) == found)

    def _match_name(self, name: str, found: Any) -> bool:
        if name in self.values:
            return bool(self.values[name] == found)
        alike = [other for other in self.values if other.rstrip("0123456789") == name.rstrip("0123456789")]
        others = [self.values[other] for other in alike]
        self.values[name] = found
        return found not in others


def show(record: Record) -> str:
    """Return a record with its verb's name."""
    verb, *rest = record
    return f"{Verb(verb).name if verb in Verb.__members__.values() else verb} {rest!r:.300}"


def _all() -> Iterator[Transcript]:
    for path in sorted((VECTORS / "transcripts").glob("*.txt")):
        yield Transcript(path)


TRANSCRIPTS = list(_all())
