"""What ``Bus`` and ``AsyncBus`` share: a session's peer and kinds, its submitters, the verbs that are alike in both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from omnibus.address import Target
from omnibus.errors import UsageError
from omnibus.handshake import describe, new_session
from omnibus.options import Options
from omnibus.peer import ClientPeer
from omnibus.protocol import Verb
from omnibus.refs import ActorRef
from omnibus.requests import Kinds, Requester

__all__ = ["WITHIN_VARIABLE", "Face", "fetch_head", "not_embedded"]

WITHIN_VARIABLE = "OMNIBUS_WITHIN"
"""Set in a worker's process: the worker's session in hex, so that a bus made by its task can lend the worker's slot."""

S = TypeVar("S", bound=Requester)


class Face(Generic[S]):
    """One session with the mesh at ``target``. ``make`` returns a submitter for a set of options."""

    def __init__(self, target: Target, make: Callable[[Options], S]) -> None:
        self._target = target
        self._make = make
        self._code = not target.parsed().is_tcp or target.key is not None
        self.within = bytes.fromhex(os.environ.get(WITHIN_VARIABLE, ""))
        hello = describe("client", new_session(), code=self._code, **({"within": self.within} if self.within else {}))
        self._peer = ClientPeer(hello, code=self._code)
        self._kinds = Kinds(self._peer, code=self._code)
        self._submitters: dict[Options, S] = {}

    def _begin(self) -> None:
        """Take note of the rights that the broker's welcome gives; to be called before the first request."""
        if self._peer.welcome.get("code") is False:
            self._code = False
            self._peer.restrict()
            self._kinds = Kinds(self._peer, code=False)
        self._default = self._requester(None)

    @property
    def address(self) -> str:
        """Where the mesh is."""
        return self._target.address

    def options(self, **given: Any) -> S:
        """Return a submitter with these options; see :class:`omnibus.options.Options` for their names and meaning.

        Raises :class:`omnibus.UsageError` for an option that is unknown, not implemented, or out of range.
        """
        return self._requester(given)

    def _requester(self, given: Mapping[str, Any] | None) -> S:
        options = Options.make(given or {})
        found = self._submitters.get(options)
        if found is None:
            found = self._submitters[options] = self._make(options)
        return found

    def actor(self, name: str) -> ActorRef:
        """Return a handle on the actor of that name; whether it is there shows with the first message."""
        return ActorRef(self, name)

    def publish(self, topic: str, value: Any) -> Any:
        """Publish ``value`` under ``topic``, and return the future of its number there.

        Whoever subscribes later may still ask for it by ``since``, while the topic keeps it.
        """
        return self._requester(None).ask_broker(Verb.PUBLISH, {"topic": topic}, value, carries=True)

    def task_id(self, future: Any) -> str:
        """Return the id of a task in the whole mesh, by which anyone may ``fetch`` it if it is detached."""
        return f"{self._peer.session.hex()}-{future.seq}"

    def _stream(self, start: Callable[[Any], Any]) -> Any:
        raise NotImplementedError

    def _finish(self, future: Any) -> Any:
        raise NotImplementedError


def fetch_head(task: str) -> dict[str, Any]:
    """Return what FETCH says of a task id; raises :class:`omnibus.UsageError` for what is none."""
    session, _, number = task.rpartition("-")
    try:
        return {"session": bytes.fromhex(session), "seq": int(number)}
    except ValueError:
        text = f"{task!r} is no task id: one is 32 hex digits, a dash and a number, and bus.task_id(future) gives it"
        raise UsageError(text) from None


def not_embedded(given: Mapping[str, Any], target: Target) -> UsageError:
    """Return the error for sizing a mesh that runs already."""
    names = ", ".join(given)
    return UsageError(f"{names}: only an embedded mesh is sized by connecting, and {target.source} names one that runs")
