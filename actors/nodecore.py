"""The node supervisor as a state machine: what happened and ``now`` go in, records and commands come out. No I/O.

``now`` is the monotonic clock in seconds, the same that status pages count in nanoseconds. The shell gives every event
to an ``on_…`` method, calls :meth:`NodeCore.on_time` when :meth:`NodeCore.next_deadline` has come, then takes what
is to be sent and done.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from omnibus.errors import AlreadyExists, OmnibusError, ProtocolError
from omnibus.protocol import Record, Verb

from . import orders
from .attempts import Attempts, Key
from .children import Child, Children, Exit, Page, State, Want, birth_of, death_of, explain
from .commands import Command, Finish, Fork, NodeSpec, Signal
from .config import ChildConfig
from .restart import Restarts
from .timers import Timers

__all__ = ["NodeCore"]

_NODE: Final = b""
_RECENT: Final = 256
_UNHEARD: Final = 1.0
"""Seconds: a death that was reported so long before the broker was last heard may not have reached it."""
_HELLO_PAUSE: Final = 1.0
"""Seconds between two HELLOs, where the broker goes on asking for one."""


class NodeCore:
    """One node.

    ``new_session`` makes ids and ``new_page`` status pages; ``jitter`` gives numbers between 0 and 1.
    """

    def __init__(
        self,
        spec: NodeSpec,
        *,
        new_session: Callable[[], bytes],
        new_page: Callable[[], Page],
        jitter: Callable[[], float],
    ) -> None:
        self.spec = spec
        self.children = Children()
        self.wants: dict[str, Want] = {}
        self.welcomed = False
        self.stopping = ""
        """Why the node stops; empty while it does not."""
        self._new_session = new_session
        self._new_page = new_page
        self._jitter = jitter
        self._timers: Timers[Key] = Timers()
        self._attempts = Attempts(self._timers, self._say, self._kick)
        self._records: list[Record] = []
        self._commands: list[Command] = []
        self._deaths: deque[tuple[float, Record]] = deque(maxlen=_RECENT)
        self._unsaid: list[Record] = []
        self._heard = self._greeted = self._patience = 0.0
        self._linked = True
        self._finished = False
        self._status = 0

    # ------------------------------------------------------------------ output

    def records(self) -> list[Record]:
        """Take what is to be sent to the broker, in order."""
        taken, self._records = self._records, []
        return taken

    def commands(self) -> list[Command]:
        """Take what is to be done, in order."""
        taken, self._commands = self._commands, []
        return taken

    def next_deadline(self) -> float | None:
        """Return when :meth:`on_time` must be called next; ``None`` where nothing is due ever."""
        return self._timers.next()

    def _say(self, record: Record) -> None:
        self._records.append(record)

    def _kick(self, child: Child, signum: int) -> None:
        if child.pid:
            self._commands.append(Signal(child.session, signum))

    # ------------------------------------------------------------------ the broker

    def start(self, now: float) -> None:
        """Say HELLO, and begin the base workers without waiting for the answer."""
        self._greet(now)
        self._await_broker(now + self.spec.connect_grace, now)
        for number in range(self.spec.workers):
            restarts = Restarts(self.spec.policy, self._jitter)
            want = Want(f"worker-{number}", "worker", credits=self.spec.credits, restarts=restarts)
            self.wants[want.name] = want
            self._begin(want)

    def _greet(self, now: float) -> None:
        self.welcomed = False
        self._greeted = now
        self._timers.clear(("hello", _NODE, 0))
        self._say([Verb.HELLO, 0, dict(self.spec.hello), None, 0])

    def _await_broker(self, until: float, now: float) -> None:
        self._patience = until - now
        self._timers.set(("broker", _NODE, 0), until)

    def on_link(self, up: bool, now: float) -> None:
        """Learn that the link to the broker broke, or is there again: then a new session begins on it."""
        if up and not self._linked and not self.stopping:
            self._greet(now)
        if not up and self._linked:
            self.welcomed = False
            self._await_broker(now + self.spec.broker_grace, now)
        self._linked = up

    def on_record(self, record: Record, now: float) -> None:
        """Take one record of the broker's. What is wrong with it is answered by an ERROR."""
        verb, about, head, _, _ = record
        handler = _HANDLERS.get(verb)
        try:
            if handler is None:
                raise ProtocolError(f"verb {verb} is not for a node")
            handler(self, about, head, now)
        except OmnibusError as error:
            answer = {"error": type(error).__name__, "message": str(error), "again": False}
            self._say([Verb.ERROR, about, answer, None, 0])
        self._heard = now

    def on_welcome(self, about: int, head: Any, now: float) -> None:
        """Tell the broker of every child that lives, and of those whose death it may not have heard of."""
        self.welcomed = True
        for what in ("broker", "hello"):
            self._timers.clear((what, _NODE, 0))
        unsaid, self._unsaid = self._unsaid, []
        if isinstance(head, Mapping) and head.get("resumed"):
            self._records += unsaid  # all else has arrived, or is sent again
            return
        for when, record in self._deaths:
            if when >= self._heard - _UNHEARD:
                self._say(record)
        for child in self.children:
            if child.pid:
                self._say_child(child, birth_of(child))

    def on_error(self, about: int, head: Any, now: float) -> None:
        """Say HELLO anew where the broker asks for it; end where it refuses this node."""
        fields = head if isinstance(head, Mapping) else {}
        if fields.get("again"):
            # It answers each message that came before our HELLO so; one HELLO is enough for all of them.
            self._timers.set(("hello", _NODE, 0), max(now, self._greeted + _HELLO_PAUSE))
        elif not about and not self.welcomed:
            self.stop(f"the broker refuses this node: {fields.get('message')}", now, status=1)

    def on_ping(self, about: int, head: Any, now: float) -> None:
        """Answer."""
        self._say([Verb.PONG, about, None, None, 0])

    def on_bye(self, about: int, head: Any, now: float) -> None:
        """End with a broker that ends in good order."""
        self.stop("its broker has ended", now)

    def on_nothing(self, about: int, head: Any, now: float) -> None:
        """Do nothing: that it came is all."""

    # ------------------------------------------------------------------ the broker's orders

    def on_start(self, about: int, head: Any, now: float) -> None:
        """Begin a child that the broker wants. The same START again does nothing."""
        order = orders.read_start(head)
        known = self.wants.get(order.name)
        if known is not None and known.command == about:
            return
        living = self.children.by_name(order.name)
        if known is not None or living is not None:
            state = living.state.value if living is not None else "waiting for its restart"
            raise AlreadyExists(f"child {order.name!r} of this node is {state}: stop it first, or pick another name")
        if self.stopping:
            raise OmnibusError(f"this node stops ({self.stopping}) and starts nothing more")
        want = Want(
            order.name, order.role, about, order.cpus, order.devices, order.env, order.fresh, order.credits,
            Restarts(order.restart, self._jitter) if order.restart is not None else None,
        )  # fmt: skip
        self.wants[want.name] = want
        self._begin(want)

    def on_halt(self, about: int, head: Any, now: float) -> None:
        """End a child for good. One that is not there has ended already."""
        order = orders.read_halt(head)
        child = self.children.by_session(order.session)
        name = order.name if order.name is not None else child.want.name if child is not None else None
        if name is None:
            return
        self.wants.pop(name, None)
        self._timers.clear(("restart", name.encode(), 0))
        child = self.children.by_name(name)
        if child is not None:
            self._end(child, order.grace, now)

    def on_watch(self, about: int, head: Any, now: float) -> None:
        """Let an attempt run for so long and no longer."""
        order = orders.read_watch(head)
        child = self.children.by_session(order.session)
        if child is not None:
            self._attempts.watch(child, about, order.timeout, order.grace, now)

    def on_abort(self, about: int, head: Any, now: float) -> None:
        """Bring an attempt to its end. A child that is gone has taken its attempts along, and its CHILD said so."""
        order = orders.read_abort(head)
        child = self.children.by_session(order.session)
        if child is not None:
            self._attempts.abort(child, about, order.reason, order.grace, now)

    def on_recall(self, about: int, head: Any, now: float) -> None:
        """Keep an attempt from beginning, if that is still possible."""
        child = self.children.by_session(orders.read_recall(head))
        if child is not None:
            self._attempts.recall(child, about)

    # ------------------------------------------------------------------ lives

    def _begin(self, want: Want) -> None:
        """Begin the next life of ``want``."""
        child = Child(want, self._new_session(), self._new_page())
        want.lives += 1
        self.children.add(child)
        spec = self.spec
        config = ChildConfig(
            want.name, want.role, child.session, spec.session, spec.target, credits=want.credits,
            incarnation=child.incarnation, command=want.command, cpus=want.cpus, devices=want.devices, env=want.env,
            entry=spec.entry, code=spec.code, fresh=want.fresh,
        )  # fmt: skip
        self._commands.append(Fork(config, child.page))

    def on_started(self, session: bytes, pid: int, now: float) -> None:
        """Learn that a child runs."""
        child = self.children.by_session(session)
        assert child is not None, f"no child of session {session.hex()} was asked for"
        child.pid = pid
        child.become("started")
        self._say_child(child, birth_of(child))
        if child.state is State.STOPPING:
            self._kick(child, signal.SIGTERM)

    def on_refused(self, session: bytes, error: str, now: float) -> None:
        """Learn that a child could not be started: a life that ended before it began."""
        self.on_exited(session, Exit(words=f"it could not be started: {error}"), now)

    def on_exited(self, session: bytes, how: Exit, now: float) -> None:
        """Learn that a child has ended; decide what follows, and say both."""
        child = self.children.by_session(session)
        assert child is not None, f"no child of session {session.hex()} lives"
        ladder = self._attempts.ended(child)
        self._timers.clear(("kill", session, 0))
        reason = explain(how, ladder, child.state is State.STOPPING)
        begun, want = child.inside(), child.want
        aborted = ladder if ladder is not None and ladder.rung >= 2 else None
        self.children.remove(child)
        delay = None
        if self.wants.get(want.name) is want:
            by_task = want.role == "worker" and begun != 0 and not how.oom
            delay = self._after(want, how, innocent=by_task or aborted is not None, now=now)
            if delay is None:
                del self.wants[want.name]
                if want.restarts is not None and how.code != 0:
                    reason += "; it is not restarted: that happened too often"
        record = self._say_child(child, death_of(child, how, reason, delay, aborted))
        self._deaths.append((now, record))
        self._maybe_finish()

    def _after(self, want: Want, how: Exit, *, innocent: bool, now: float) -> float | None:
        """Return in how many seconds what died lives again, ``None`` for never; and see to it.

        A worker that its task killed, or a child that was ended for one attempt, is innocent: it comes back at once,
        and the task's budget bounds how often. An actor that ends by itself has finished.
        """
        if want.restarts is None or (want.role == "actor" and how.code == 0 and not innocent):
            return None
        delay = 0.0 if innocent else want.restarts.after(now)
        if delay is not None:
            self._timers.set(("restart", want.name.encode(), 0), now + delay)
        return delay

    def _end(self, child: Child, grace: float, now: float) -> None:
        """Ask a child to stop, and have it killed when ``grace`` is over; asked twice, the shorter grace counts."""
        key: Key = ("kill", child.session, 0)
        if child.state is not State.STOPPING:
            child.become("stop")
            self._kick(child, signal.SIGTERM)
            self._timers.set(key, now + grace)
        elif now + grace < self._timers.when(key, now):
            self._timers.set(key, now + grace)

    def _say_child(self, child: Child, head: dict[str, Any]) -> Record:
        """Say what became of a child; while no broker listens, keep it for the next WELCOME."""
        record: Record = [Verb.CHILD, child.want.command, head, None, 0]
        (self._records if self.welcomed else self._unsaid).append(record)
        return record

    # ------------------------------------------------------------------ time and end

    def on_time(self, now: float) -> None:
        """Do what is due."""
        while (key := self._timers.pop(now)) is not None:
            what, whose, aid = key
            child = self.children.by_session(whose)
            if what == "restart":
                want = self.wants.get(whose.decode())
                if want is not None:
                    self._begin(want)
            elif what == "broker":
                self._give_up(now)
            elif what == "hello":
                self._greet(now)
            elif child is None:
                continue
            elif what == "kill":
                self._kick(child, signal.SIGKILL)
                if not child.pid:
                    self._timers.set(key, now + self.spec.grace)
            elif what == "watch":
                self._attempts.on_watch(child, now)
            else:
                self._attempts.on_ladder(child, aid, now)

    def _give_up(self, now: float) -> None:
        where, waited = self.spec.target.address, self._patience
        self.stop(f"no broker has answered at {where} for {waited:g} s: is it running there?", now, status=1)

    def stop(self, why: str, now: float, *, grace: float | None = None, status: int = 0) -> None:
        """End all children and then the node; again, with a shorter ``grace``, to be quicker about it."""
        if not self.stopping:
            self.stopping, self._status = why, status
            self._timers.clear(("broker", _NODE, 0))
        for name in self.wants:
            self._timers.clear(("restart", name.encode(), 0))
        self.wants.clear()
        for child in self.children:
            self._end(child, self.spec.grace if grace is None else grace, now)
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        if self.stopping and not self.children and not self._finished:
            self._finished = True
            if self.welcomed:
                self._say([Verb.BYE, 0, None, None, 0])
            self._commands.append(Finish(self._status, self.stopping))

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` where the state does not hold together; for tests."""
        self.children.check_invariants()
        for name, want in self.wants.items():
            assert want.name == name
            waits = ("restart", name.encode(), 0) in self._timers
            lives = self.children.by_name(name)
            assert waits != (lives is not None), f"{name} either lives or waits for its restart"
            assert lives is None or lives.want is want
        for what, whose, aid in self._timers:
            if what in ("kill", "watch", "ladder"):
                child = self.children.by_session(whose)
                assert child is not None, f"timer {what} of a child that has ended"
                assert what != "ladder" or aid in child.ladders
                assert what != "watch" or child.watches
                assert what != "kill" or child.state is State.STOPPING
            elif what == "restart":
                assert whose.decode() in self.wants
        assert not self.stopping or not self.wants
        assert not self._finished or not self.children


_Handler: TypeAlias = Callable[[NodeCore, int, Any, float], None]
_HANDLERS: Final[dict[int, _Handler]] = {
    Verb.WELCOME: NodeCore.on_welcome,
    Verb.ERROR: NodeCore.on_error,
    Verb.PING: NodeCore.on_ping,
    Verb.PONG: NodeCore.on_nothing,
    Verb.BYE: NodeCore.on_bye,
    Verb.START: NodeCore.on_start,
    Verb.HALT: NodeCore.on_halt,
    Verb.WATCH: NodeCore.on_watch,
    Verb.ABORT: NodeCore.on_abort,
    Verb.RECALL: NodeCore.on_recall,
}
