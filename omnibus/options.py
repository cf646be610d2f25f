"""The options of a task, a message or an actor: one checked value, and what the wire says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from omnibus.errors import UsageError

__all__ = ["LATER", "Options"]

LATER = frozenset({"checkpoint_every", "recovery", "preemptible", "keep", "monitor"})
"""Names that the architecture reserves and this version refuses."""


@dataclass(frozen=True, slots=True)
class Options:
    """How work is to be run. Every field has a default, which is not sent.

    ``priority``: any integer, higher first. ``retries``: lost attempts that are made good (default 3 for tasks, 0 for
    messages). ``timeout``: seconds that an attempt may run. ``ttl``: seconds that it may wait. ``cpus``, ``gpus`` (a
    fraction below 1 shares one), ``memory`` (bytes), ``labels``: what it needs of a node. ``name``: for logs and
    status. ``detached``: the result is kept for an hour, for whoever fetches it.
    """

    priority: int = 0
    retries: int | None = None
    timeout: float | None = None
    ttl: float | None = None
    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    detached: bool = False

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Options:
        """Return the options that ``given`` names.

        Raises :class:`UsageError` for a name that is not an option, one that this version does not have yet, or a
        value that is out of range.
        """
        known = {field.name for field in fields(cls)}
        for name in given:
            if name in LATER:
                raise UsageError(f"option {name!r} is not implemented in this version; leave it out")
            if name not in known:
                raise UsageError(f"{name!r} is not an option; the options are {', '.join(sorted(known))}")
        values = dict(given)
        if isinstance(values.get("labels"), Mapping):
            values["labels"] = tuple(sorted(values["labels"].items()))
        options = cls(**values)
        options._check()
        return options

    def _check(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise UsageError(f"priority must be an integer, not {self.priority!r}")
        for name in ("timeout", "ttl"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be a positive number of seconds or None, not {value!r}")
        if self.retries is not None and (not isinstance(self.retries, int) or self.retries < 0):
            raise UsageError(f"retries must be a whole number from 0 on, not {self.retries!r}")
        if not self.cpus >= 0 or not self.gpus >= 0 or self.memory < 0:
            asked = f"cpus={self.cpus} gpus={self.gpus} memory={self.memory}"
            raise UsageError(f"cpus, gpus and memory cannot be negative: {asked}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UsageError(f"gpus is a whole number, or a share of one below 1, not {self.gpus}")

    def wire(self) -> dict[str, Any]:
        """Return what differs from the defaults, as a kind's head carries it."""
        told: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                told[field.name] = dict(value) if field.name == "labels" else value
        return told
