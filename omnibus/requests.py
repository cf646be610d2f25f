"""Turning calls into requests: what ``Bus`` and ``AsyncBus`` have in common.

A :class:`Requester` has one set of options. It knows the kinds that it has declared, and leaves one thing to the
faces: how a request that is ready begins (:meth:`Requester._start`), for one waits for room in its lane and the other
must not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from omnibus.functions import Shelf, is_stable, ship
from omnibus.options import Options
from omnibus.payload import encode, encode_call
from omnibus.peer import ClientPeer, Ending, Lane
from omnibus.protocol import Blob, Verb
from omnibus.streams import SUBSCRIPTION_CREDIT

__all__ = ["Discard", "Kinds", "Requester"]

Make = Callable[[int], Ending]
_MOST_KINDS = 1024
_SPAWN_OPTIONS = ("cpus", "gpus", "memory", "labels", "mailbox", "concurrency", "env", "restart")
_SUBMIT = int(Verb.SUBMIT)
_ASK = int(Verb.ASK)
_TELL = int(Verb.TELL)


class Kinds:
    """The kinds that a session has declared, the oldest forgotten when there are too many.

    A forgotten one stays valid until as many again were declared, for a thread may be about to use it.
    """

    def __init__(self, peer: ClientPeer, *, code: bool) -> None:
        self.shelf = Shelf(code=code)
        self._peer = peer
        self._last = 0
        self._live: dict[Any, int] = {}
        self._retired: list[int] = []

    def get(self, key: Any) -> int | None:
        """Return the number of the kind of that key, if it is known."""
        return self._live.get(key)

    def declare(self, key: Any, head: dict[str, Any], code: bytes | None) -> int:
        """Return the number of the kind of that key, declared now if it is new."""
        known = self._live.get(key)
        if known is not None:
            return known
        self._last += 1
        number = self._last
        self._peer.request([Verb.DEFINE, number, head, code, 0], ())
        self._live[key] = number
        if len(self._live) > _MOST_KINDS:
            self._retire()
        return number

    def _retire(self) -> None:
        oldest = next(iter(self._live))
        self._retired.append(self._live.pop(oldest))
        if len(self._retired) > _MOST_KINDS:
            self._peer.request([Verb.FORGET, self._retired.pop(0), None, None, 0], ())


class Discard:
    """Stands for a future that nobody has: what ends there counts in its lane and is dropped."""

    __slots__ = ("lane", "size")

    def __init__(self, lane: Lane, size: int = 0) -> None:
        self.lane: Lane | None = lane
        self.size = size

    def set_result(self, result: Any, /) -> None:
        """Drop a value."""

    def set_exception(self, exception: BaseException | None, /) -> None:
        """Drop an error."""


class Requester:
    """Makes requests with one set of options."""

    def __init__(self, peer: ClientPeer, kinds: Kinds, options: Options, *, code: bool) -> None:
        self._peer = peer
        self._kinds = kinds
        self._options = options
        self._code = code
        self._lane = peer.lane(options.priority)
        self._known: dict[Any, int] = {}

    def _start(
        self,
        verb: int,
        head: Any,
        body: bytes | None,
        blobs: Sequence[Blob],
        make: Make | None = None,
        lane: Lane | None = None,
    ) -> Any:
        """Begin a request: give it a number, and queue it. Return its ending: a future, or what ``make`` makes."""
        raise NotImplementedError

    def _submit(self, fn: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            kind = self._known[fn]
        except (KeyError, TypeError):
            kind = self._declare(fn)
        body, blobs = encode_call(args, kwargs, code=self._code)
        return self._start(_SUBMIT, kind, body, blobs)

    def _declare(self, fn: Callable[..., Any] | str) -> int:
        """Return the kind of ``fn`` with these options. Only what cannot change is remembered by identity."""
        shipped = self._kinds.shelf.ship(fn)
        head = self._options.wire()
        head |= {"code": shipped.digest} if shipped.pickle is not None else {"fn": shipped.name}
        kind = self._kinds.declare((self._options, shipped.digest), head, shipped.pickle)
        if is_stable(fn):
            if len(self._known) >= _MOST_KINDS:
                self._known.clear()
            self._known[fn] = kind
        return kind

    def message(
        self,
        verb: int,
        actor: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make: Make | None = None,
    ) -> Any:
        """Send a message to an actor; return its ending. With ``make``, an ASK is one for a stream."""
        stream = make is not None
        key = (actor, method, stream)
        kind = self._known.get(key)
        if kind is None:
            head = self._options.wire() | {"actor": actor, "method": method}
            if stream:
                head["stream"] = True
            kind = self._known[key] = self._kinds.declare((self._options, *key), head, None)
        body, blobs = encode_call(args, kwargs, code=self._code)
        if verb == _TELL:
            return self._start(_TELL, kind, body, blobs, self._discard)
        return self._start(_ASK, kind, body, blobs, make)

    def _discard(self, seq: int) -> Ending:
        return Discard(self._lane)

    def spawn(self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> tuple[str, Any]:
        """Ask for an actor; return its name and the future of its being ready.

        Its options stand among the class's own keywords.
        """
        shipped = ship(cls, code=self._code)
        head = self._options.wire() | {key: kwargs.pop(key) for key in _SPAWN_OPTIONS if key in kwargs}
        if shipped.pickle is not None:
            self._kinds.declare(("class", shipped.digest), {"code": shipped.digest}, shipped.pickle)
            head["code"] = shipped.digest
        else:
            head["cls"] = shipped.name
        if name is None:
            label = cls.rpartition(":")[2] if isinstance(cls, str) else getattr(cls, "__name__", "actor")
            name = f"{label}-{self._peer.session.hex()[:6]}-{self._peer.next_seq()}"
            head["anonymous"] = True
        head["name"] = name
        body, blobs = encode_call(args, kwargs, code=self._code)
        return name, self._start(Verb.SPAWN, head, body, blobs, lane=self._peer.control)

    def follow(self, topic: str, since: int | None, make: Make) -> Any:
        """Subscribe to a topic; return the future of the broker's consent."""
        head = {"topic": topic, "since": since, "credit": SUBSCRIPTION_CREDIT}
        return self._start(Verb.SUBSCRIBE, head, None, (), make, self._peer.control)

    def ask_broker(self, verb: int, head: Any, value: Any = None, *, carries: bool = False) -> Any:
        """Send a request that the broker itself answers; return its future."""
        body, blobs = encode(value, code=self._code) if carries else (None, ())
        return self._start(verb, head, body, blobs, lane=self._peer.control)
