"""A node core under test: stepped time, fake pages, and everything that it says and does claimed by the test."""

from __future__ import annotations

import itertools
from typing import Any

from omnibus.actors.children import Exit
from omnibus.actors.commands import Command, Finish, Fork, NodeSpec, Signal
from omnibus.actors.nodecore import NodeCore
from omnibus.address import Target
from omnibus.protocol import Record, Verb, decode, encode
from omnibus.sharedmem import Reason

__all__ = ["FakePage", "House"]


class FakePage:
    """A status page whose child the test plays."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.since = 0.0
        self.revoked: set[int] = set()
        self.cancelled: tuple[int, Reason] | None = None
        self.full = False

    @property
    def last(self) -> int:
        return self.begun

    def running(self) -> tuple[int, int] | None:
        return (self.begun, int(self.since * 1e9)) if self.ended < self.begun else None

    def over(self, aid: int) -> bool:
        return self.ended >= aid or self.begun > aid

    def cancel(self, aid: int, reason: Reason) -> None:
        self.cancelled = (aid, reason)

    def revoke(self, aid: int) -> bool:
        if aid in self.revoked:
            return True
        if self.begun >= aid or self.full:
            return False
        self.revoked.add(aid)
        return True

    def begin(self, aid: int, now: float) -> None:
        assert aid not in self.revoked
        self.begun, self.since = aid, now

    def end(self) -> None:
        self.ended = self.begun


class House:
    """A node core, its clock, and what it has said and done that no test has claimed yet."""

    def __init__(self, workers: int = 0, **spec: Any) -> None:
        self.now = 100.0
        self._ids = itertools.count(1)
        self._pids = itertools.count(1000)
        self.pages: dict[bytes, FakePage] = {}
        self.records: list[Record] = []
        self.commands: list[Command] = []
        self.core = NodeCore(
            NodeSpec(b"node" * 4, Target("ipc:///run/b"), {"role": "node"}, workers=workers, **spec),
            new_session=lambda: next(self._ids).to_bytes(16, "big"),
            new_page=FakePage,
            jitter=lambda: 0.0,
        )
        self.core.start(self.now)
        self.settle()

    def settle(self) -> None:
        """Take what the core put out; every record passes through bytes."""
        self.core.check_invariants()
        records = self.core.records()
        if records:
            sent = decode(encode(records))
            assert [record[2] for record in sent] == [record[2] for record in records]
            self.records += sent
        self.commands += self.core.commands()

    def claim(self, verb: Verb) -> Record:
        """Return the next record, which must be of that verb."""
        assert self.records, f"nothing was said; {verb.name} was expected"
        record = self.records.pop(0)
        assert record[0] == verb, f"{verb.name} was expected, not {record}"
        return record

    def claim_command(self, kind: type[Any]) -> Any:
        """Return the next command, which must be of that kind."""
        assert self.commands, f"nothing is to be done; {kind.__name__} was expected"
        command = self.commands.pop(0)
        assert isinstance(command, kind), f"{kind.__name__} was expected, not {command}"
        return command

    def signal(self) -> tuple[bytes, int]:
        """Claim a signal: whose, and which."""
        command: Signal = self.claim_command(Signal)
        return command.session, command.signum

    def quiet(self) -> None:
        """Fail if something was not claimed."""
        assert not self.records
        assert not self.commands

    def receive(self, verb: Verb, about: int = 0, head: Any = None) -> None:
        self.core.on_record([int(verb), about, head, None, 0], self.now)
        self.settle()

    def welcome(self) -> None:
        """Play the broker that answers HELLO."""
        self.claim(Verb.HELLO)
        self.receive(Verb.WELCOME, 0, {"epoch": b"e" * 8})

    def forked(self) -> tuple[bytes, FakePage, Fork]:
        """Claim a Fork and play the zygote that carries it out; return the child's session, page and what was asked."""
        fork: Fork = self.claim_command(Fork)
        assert isinstance(fork.page, FakePage)
        session = fork.config.session
        self.core.on_started(session, next(self._pids), self.now)
        self.settle()
        return session, fork.page, fork

    def born(self) -> tuple[bytes, FakePage]:
        """Claim a Fork and the CHILD that follows it."""
        session, page, _ = self.forked()
        head = self.claim(Verb.CHILD)[2]
        assert (head["event"], head["session"]) == ("started", session)
        return session, page

    def exits(self, session: bytes, **how: Any) -> None:
        self.core.on_exited(session, Exit(**how), self.now)
        self.settle()

    def exited(self) -> dict[str, Any]:
        """Claim a CHILD that says that one has exited; return its head."""
        head: dict[str, Any] = self.claim(Verb.CHILD)[2]
        assert head["event"] == "exited"
        return head

    def finish(self) -> Finish:
        command: Finish = self.claim_command(Finish)
        return command

    def pass_time(self, seconds: float) -> None:
        """Let time go by, stopping at every deadline."""
        end = self.now + seconds
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.core.on_time(self.now)
            self.settle()
        self.now = end
