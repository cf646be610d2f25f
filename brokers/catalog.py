"""The catalog: which kinds each client has declared, and which of them each worker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from omnibus.errors import CapacityExceeded, OmnibusError, ProtocolError, Unauthorized
from omnibus.protocol import Verb, fit

from .kinds import Kind, parse_kind
from .peers import Window
from .placement import disband

if TYPE_CHECKING:
    from .peers import Client, Worker
    from .state import Mesh

__all__ = ["adhoc", "declare", "drop_kind", "forget", "forget_all", "forget_leftover", "forget_worker", "teach"]

_ADHOC = 256
_ADHOC_BYTES = 16 * 1024
_CODE_BYTES = 256 << 20
_LANES = 256


def declare(mesh: Mesh, client: Client, k: int, head: Any, code: bytes | None) -> None:
    """Learn a kind under the client's number ``k``; the one that had it is forgotten.

    Raises :class:`ProtocolError` for a wrong declaration, :class:`CapacityExceeded` where a limit is reached; then
    nothing has changed, but that whoever names the number is told why.
    """
    try:
        if len(client.kinds) >= mesh.limits.kinds and k not in client.kinds:
            raise CapacityExceeded(f"{client} has {len(client.kinds)} kinds defined, the limit: FORGET some first")
        kind = _make(mesh, client, head, code)
    except OmnibusError as error:
        if len(client.refused) < mesh.limits.kinds:
            client.refused[k] = str(error)
        raise
    client.refused.pop(k, None)
    old = client.kinds.get(k)
    client.kinds[k] = kind
    if old is not None:
        _forget(mesh, client, old)


def adhoc(mesh: Mesh, client: Client, head: Any) -> Kind | None:
    """Return the kind of a record that carries its map along, as simple clients do.

    The last few hundred are remembered. Raises as :func:`declare` does; returns ``None`` where the head is no map.
    """
    if not isinstance(head, dict):
        return None
    key: bytes = msgpack.packb(head)
    kind = client.adhoc.get(key)
    if kind is None:
        if len(key) > _ADHOC_BYTES:
            raise CapacityExceeded(f"a head of {len(key)} bytes; at most {_ADHOC_BYTES} may come along with a record")
        kind = _make(mesh, client, head, None)
        client.adhoc[key] = kind
        if len(client.adhoc) > _ADHOC:
            _forget(mesh, client, client.adhoc.pop(next(iter(client.adhoc))))
    return kind


def _make(mesh: Mesh, client: Client, head: Any, code: bytes | None) -> Kind:
    """Return a kind that has its place; all that may raise comes first."""
    kind = parse_kind(mesh.last_kind + 1, client, head, mesh.limits)
    if kind.stream and client.requests is not None:
        raise ProtocolError(f"{client} gets one answer for each request, and no stream: use a DEALER")
    if kind.digest is not None and not mesh.settings.code:
        raise Unauthorized("no code travels in this mesh, for strangers may connect to it: name a function instead")
    if kind.digest is not None:
        kind.code = _code(client, kind.digest, code)
    window = _window(client, kind.priority)
    pool = mesh.limbo if kind.message else mesh.pool(kind.shape)
    mesh.last_kind += 1
    if kind.digest is not None and kind.code is not None:
        client.codes[kind.digest] = kind.code
    kind.window = client.windows[kind.priority] = window
    kind.books = mesh.books(kind)
    kind.stats = mesh.stats(kind.priority)
    pool.lodge(kind)
    return kind


def _code(client: Client, digest: bytes, code: bytes | None) -> bytes:
    """Return the code of a digest: what came before, or what comes now."""
    known = client.codes.get(digest)
    if known is not None:
        return known
    if not code:
        raise ProtocolError(f"a kind names code {digest.hex()}, which {client} has not sent")
    if sum(map(len, client.codes.values())) + len(code) > _CODE_BYTES:
        raise CapacityExceeded(f"{client} has sent {_CODE_BYTES} bytes of code, the limit: FORGET some kinds first")
    return code


def _window(client: Client, priority: int) -> Window:
    """Return the client's window of a lane, made on first use; those of lanes that it has left are dropped then."""
    window = client.windows.get(priority)
    if window is not None:
        return window
    if len(client.windows) >= _LANES:
        used = {id(kind.window) for kind in (*client.kinds.values(), *client.adhoc.values())}
        for lane, old in list(client.windows.items()):
            if not old.tasks and id(old) not in used:
                del client.windows[lane]
        if len(client.windows) >= _LANES:
            raise CapacityExceeded(f"{client} uses {len(client.windows)} priorities, the limit: FORGET kinds first")
    return Window()


def forget(mesh: Mesh, client: Client, k: int) -> None:
    """Forget the client's kind ``k``: no later record names it. Tasks of it that are under way go on."""
    kind = client.kinds.pop(k, None)
    if kind is not None:
        _forget(mesh, client, kind)


def forget_all(mesh: Mesh, client: Client) -> None:
    """Forget all kinds of a client whose session has ended."""
    kinds = [*client.kinds.values(), *client.adhoc.values()]
    client.kinds.clear()
    client.adhoc.clear()
    client.codes.clear()
    client.refused.clear()
    for kind in kinds:
        drop_kind(mesh, kind)


def _forget(mesh: Mesh, client: Client, kind: Kind) -> None:
    drop_kind(mesh, kind)
    if kind.digest is not None:
        others = (*client.kinds.values(), *client.adhoc.values())
        if all(other.digest != kind.digest for other in others):
            client.codes.pop(kind.digest, None)


def drop_kind(mesh: Mesh, kind: Kind) -> None:
    """Have the workers that know ``kind`` forget it; its pool may have no use any more."""
    kind.gone = True
    pool = kind.pool
    pool.dislodge(kind)
    for worker in list(kind.told):
        _unteach(worker, kind)
    if not pool.users and not pool.for_actor:
        disband(mesh, pool)


def teach(worker: Worker, kind: Kind) -> None:
    """Tell ``worker`` of a kind before its first task: what it runs, and the code if it has not got that yet."""
    worker.known[kind.number] = kind
    kind.told.add(worker)
    if kind.gone:
        worker.leftover.append(kind)
    code = None
    if kind.digest is not None and kind.digest not in worker.codes:
        worker.codes.add(kind.digest)
        code = kind.code
    body, blobs = fit(code, ())
    worker.put([Verb.DEFINE, kind.number, kind.wire, body, len(blobs)], blobs)


def _unteach(worker: Worker, kind: Kind) -> None:
    """Have a worker forget a kind, and the code with the last kind that is made of it: so does the worker."""
    del worker.known[kind.number]
    kind.told.discard(worker)
    if kind.digest is not None and all(other.digest != kind.digest for other in worker.known.values()):
        worker.codes.discard(kind.digest)
    worker.put([Verb.FORGET, kind.number, None, None, 0])


def forget_leftover(worker: Worker) -> None:
    """Have a worker that has nothing left forget the kinds that were gone when it was told of them."""
    kinds, worker.leftover = worker.leftover, []
    for kind in kinds:
        _unteach(worker, kind)


def forget_worker(worker: Worker) -> None:
    """Expect nothing to be known to ``worker`` any more: it has ended, or lost what it was told."""
    for kind in worker.known.values():
        kind.told.discard(worker)
    worker.known.clear()
    worker.codes.clear()
    worker.leftover.clear()
