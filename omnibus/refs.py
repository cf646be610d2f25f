"""``ActorRef``: a handle on an actor, by name.."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnibus.protocol import Verb

if TYPE_CHECKING:
    from omnibus.face import Face
    from omnibus.futures import Future

__all__ = ["ActorRef"]

_ASK = int(Verb.ASK)
_TELL = int(Verb.TELL)


class ActorRef:
    """An actor, as one bus reaches it.

    ``ask`` sends a message and returns the future of its answer; ``tell`` sends one and forgets it; ``stream``
    iterates over what a generator method yields. Messages of one thread to one actor in one lane arrive in order. On
    an ``AsyncBus`` the same methods return what is awaited or iterated with ``async for``.
    """

    def __init__(self, bus: Face[Any], name: str, options: Any = None) -> None:
        self._bus = bus
        self._requester = bus._requester(options)
        self.name = name

    def ask(self, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a message and return the future of its answer.

        It ends in :class:`omnibus.NotFound` where the actor or its method is not there, :class:`omnibus.WorkerDied`
        where the actor died while it handled the message (unless ``options(retries=...)`` asks for its redelivery),
        :class:`omnibus.RemoteError` where the method raised.
        """
        return self._requester.message(_ASK, self.name, method, args, kwargs)  # type: ignore[no-any-return]

    def tell(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a message that nobody waits for: it is handled at most once, and its errors are the actor's alone."""
        self._requester.message(_TELL, self.name, method, args, kwargs)

    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Send a message to a generator method and return an iterator over what it yields.

        Dropping or closing it cancels. It is a :class:`omnibus.streams.Stream`, or an
        :class:`omnibus.aio.AsyncStream` on an ``AsyncBus``.
        """
        return self._bus._stream(lambda make: self._requester.message(_ASK, self.name, method, args, kwargs, make=make))

    def stop(self, grace: float = 5.0) -> Any:
        """Stop the actor for good, after the message that it handles, and wait until it is gone.

        On an ``AsyncBus``, await what this returns. After ``grace`` seconds it is killed.
        """
        return self._bus._finish(self._requester.ask_broker(Verb.STOP, {"actor": self.name, "grace": grace}))

    def options(self, **given: Any) -> ActorRef:
        """Return a handle whose messages have these options (``priority``, ``timeout``, ``ttl``, ``retries``)."""
        return ActorRef(self._bus, self.name, given)

    def __repr__(self) -> str:
        return f"<ActorRef {self.name!r}>"

    def __reduce__(self) -> Any:
        from omnibus.errors import NotPicklable

        raise NotPicklable(f"a handle cannot be sent: send the name, and call bus.actor({self.name!r}) there")
