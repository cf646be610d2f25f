"""Every error that Omnibus raises, in one tree.

::

    OmnibusError
    ├── UsageError            the caller's program: a wrong argument, option or moment (also a ValueError)
    │   ├── NotPicklable      a function or value that cannot be encoded for the wire
    │   └── ForkedError       a bus that was made before a fork is used after it
    ├── TaskError             the work itself: how a task or a message ended
    │   ├── RemoteError       the user's code raised; carries the remote traceback
    │   ├── SetupFailed       an actor's set-up, or the import of a function, failed
    │   ├── WorkerDied        the process that ran it is gone
    │   │   └── OutOfMemory   … because the kernel or a limit killed it for its memory
    │   ├── TaskTimeout       it ran longer than its timeout (also a TimeoutError)
    │   ├── Preempted         it gave way and could not be queued again
    │   ├── Cancelled         it was cancelled (also a concurrent.futures.CancelledError)
    │   ├── Expired           it waited longer than its time to live
    │   └── DeadLetter        it killed its workers until its budget was spent
    ├── MeshError             the mesh: the bus, the broker or the network
    │   ├── Unreachable       nobody answers at an address, or the link broke (also a ConnectionError)
    │   ├── ConnectTimeout    no answer in time (an Unreachable, also a TimeoutError)
    │   ├── BusClosed         the bus was closed under the work
    │   ├── NotFound          an actor, method, task or topic that is not there (also a LookupError)
    │   └── AlreadyExists     a name that is taken
    ├── ProtocolError         a peer broke OMB/1, or the versions do not match
    ├── Unauthorized          a key or a right is missing
    └── CapacityExceeded      a limit was reached: window, backlog, size, pool

A class says whose fault it is; the message names the thing, its state, what was expected and what to do next.
"""

from __future__ import annotations

import concurrent.futures

__all__ = [
    "AlreadyExists",
    "BusClosed",
    "Cancelled",
    "CapacityExceeded",
    "ConnectTimeout",
    "DeadLetter",
    "Expired",
    "ForkedError",
    "MeshError",
    "NotFound",
    "NotPicklable",
    "OmnibusError",
    "OutOfMemory",
    "Preempted",
    "ProtocolError",
    "RemoteError",
    "SetupFailed",
    "TaskError",
    "TaskTimeout",
    "Unauthorized",
    "Unreachable",
    "UsageError",
    "WorkerDied",
    "by_name",
]


class OmnibusError(Exception):
    """Root of every error that Omnibus raises by itself."""


class UsageError(OmnibusError, ValueError):
    """The caller's program asked for something that has no meaning here."""


class NotPicklable(UsageError):
    """A function or a value cannot be encoded for the wire; the message says which and why."""


class ForkedError(UsageError):
    """A bus made before ``os.fork()`` was used in the child; connect again there."""


class TaskError(OmnibusError):
    """A task or a message ended other than in a result."""


class RemoteError(TaskError):
    """The user's code raised in another process.

    ``type_name`` is the qualified name of the original class, ``traceback`` the remote traceback as text. Where the
    class is already imported here and its arguments are plain values, ``__cause__`` is the rebuilt exception.
    """

    def __init__(self, message: str, *, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback = traceback

    def __str__(self) -> str:
        """Return the message, and the remote traceback below it where there is one."""
        message = super().__str__()
        return f"{message}\n\nRemote traceback:\n{self.traceback}" if self.traceback else message


class SetupFailed(TaskError):
    """An actor's set-up raised, or a function could not be loaded where it was to run."""


class WorkerDied(TaskError):
    """The process that ran the work is gone; the message has its exit code or signal."""


class OutOfMemory(WorkerDied):
    """The process was killed for the memory it used."""


class TaskTimeout(TaskError, TimeoutError):
    """The attempt ran longer than its ``timeout``."""


class Preempted(TaskError):
    """The task gave way to more important work and may not be queued again."""


class Cancelled(TaskError, concurrent.futures.CancelledError):
    """The task was cancelled."""


class Expired(TaskError):
    """The task waited longer than its ``ttl`` for a place to run."""


class DeadLetter(TaskError):
    """The task lost more workers than its ``retries`` allow; see the dead-letter list."""


class MeshError(OmnibusError):
    """The mesh could not do it: the bus, the broker or the network."""


class Unreachable(MeshError, ConnectionError):
    """Nobody answers, or the link broke and could not be mended."""


class ConnectTimeout(Unreachable, TimeoutError):
    """Nobody answered at the address in time; the message has the address."""


class BusClosed(MeshError):
    """The bus was closed before the work ended."""


class NotFound(MeshError, LookupError):
    """No actor, method, task or topic of that name is known."""


class AlreadyExists(MeshError):
    """The name is taken by another live holder."""


class ProtocolError(OmnibusError):
    """A peer broke OMB/1, or the two sides' versions do not match."""


class Unauthorized(OmnibusError):
    """The key is wrong, or the peer may not do this."""


class CapacityExceeded(OmnibusError):
    """A limit was reached: a window, a backlog, a message size or a pool."""


def by_name(name: str) -> type[OmnibusError]:
    """Return the class of that name, :class:`TaskError` where the name is unknown (a newer peer's)."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, OmnibusError):
        return found
    return TaskError
