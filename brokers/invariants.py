"""What holds in a broker's state between any two steps: the indexes agree, and the books add up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .peers import Client, Node, Worker
from .pools import Pool

if TYPE_CHECKING:
    from .state import Mesh
    from .tasks import Task

__all__ = ["check_invariants"]


def check_invariants(mesh: Mesh) -> None:
    """Raise ``AssertionError``, naming what is off."""
    _check_sessions(mesh)
    pools = [*mesh.pools.values(), *(actor.pool for actor in mesh.actors.values())]
    for pool in pools:
        _check_pool(mesh, pool)
    for worker in mesh.every(Worker):
        _check_worker(worker)
    for node in mesh.nodes.values():
        _check_node(node)
    _check_kinds(mesh)
    _check_tasks(mesh, pools)
    _check_actors(mesh)
    mesh.topics.check_invariants()
    mesh.shelf.check_invariants()


def _check_sessions(mesh: Mesh) -> None:
    for route, peer in mesh.routes.items():
        assert peer.route == route and mesh.sessions.get(peer.session) is peer, f"{peer}: stale route"
    for session, peer in mesh.sessions.items():
        assert peer.session == session and not peer.gone, f"{peer}: misfiled, or gone and kept"
        assert peer.route is None or mesh.routes.get(peer.route) is peer, f"{peer}: its route is another's"
        assert (peer.route is None) == (peer.lost is not None), f"{peer}: lost {peer.lost}, route {peer.route!r}"
        assert len(peer.blobs) == sum(record[4] for record in peer.records), f"{peer}: blobs and records do not match"
    for ghost in mesh.ghosts:
        assert ghost.gone and ghost.tasks, f"{ghost}: not a ghost"
    assert mesh.nodes == {session: peer for session, peer in mesh.sessions.items() if isinstance(peer, Node)}


def _check_pool(mesh: Mesh, pool: Pool) -> None:
    pool.queue.check_invariants()
    assert pool.stirred == (pool in mesh.stirred), f"{pool}: stirred {pool.stirred}"
    assert len(set(pool.free)) == len(pool.free), f"{pool}: a worker is listed twice"
    assert set(pool.free) <= pool.workers, f"{pool}: a stranger is listed"
    for worker in pool.workers:
        assert worker.pool is pool and not worker.gone, f"{pool}: {worker} does not know it"
        assert worker.listed == (worker in pool.free), f"{pool}: {worker} listed {worker.listed}"
    starting = [holding for node in mesh.nodes.values() for holding in node.holdings.values() if holding.pool is pool]
    if not pool.for_actor:
        assert pool.starting == sum(not holding.joined for holding in starting), f"{pool}: starting {pool.starting}"
    lines = [(line, session) for session, mine in pool.lines.items() for line in mine.values()]
    assert all(line.users > 0 for line, _ in lines), f"{pool}: a line without users"
    assert pool.users == sum(line.users for line, _ in lines), f"{pool}: users {pool.users}"
    assert all(session in mesh.sessions for _, session in lines), f"{pool}: a line whose client is gone"


def _check_worker(worker: Worker) -> None:
    for aid, task in worker.attempts.items():
        assert task.aid == aid and task.worker is worker, f"{worker}: attempt {aid} is misfiled"
    assert list(worker.attempts) == sorted(worker.attempts), f"{worker}: attempts are out of order"
    assert worker.backlog == sum(task.cost for task in worker.attempts.values()), f"{worker}: backlog is off"
    able = worker.route is not None and not worker.closing and not worker.stalled
    assert able or not worker.listed, f"{worker} is listed and cannot be given work"
    assert worker.busy or not worker.attempts or worker.dead, f"{worker} works without its CPUs"
    assert worker.pool is None or worker in worker.pool.workers, f"{worker}: its pool does not know it"
    node = worker.node
    assert node is None or node.workers.get(worker.session) is worker, f"{worker}: its node does not know it"


def _check_node(node: Node) -> None:
    holders = [worker for worker in node.workers.values() if worker.busy and not worker.lent]
    held = [worker.pool.shape.cpus for worker in holders if worker.pool is not None]
    assert abs(node.free_cpus - (node.cpus - sum(held))) < 1e-6, f"{node}: free cpus {node.free_cpus}, held {held}"
    memory = sum(holding.shape.memory for holding in node.holdings.values())
    assert node.free_memory == node.memory - memory, f"{node}: free memory is off"
    shares: Counter[str] = Counter()
    for command, holding in node.holdings.items():
        assert holding.command == command, f"{node}: holding {command} is misfiled"
        for device in holding.devices:
            shares[device] += min(holding.shape.gpus, 1.0)  # type: ignore[assignment]
    for device, free in node.free_gpus.items():
        assert abs(free - (1 - shares[device])) < 1e-6, f"{node}: {device} has {free} free, {shares[device]} held"
    for worker in node.workers.values():
        assert worker.node is node and not worker.gone, f"{node}: {worker} does not know it"


def _check_kinds(mesh: Mesh) -> None:
    for client in mesh.every(Client):
        for kind in (*client.kinds.values(), *client.adhoc.values()):
            assert not kind.gone and kind.client is client, f"{client}: kind {kind.number} is gone and kept"
            assert kind.window is client.windows.get(kind.priority), f"{client}: kind {kind.number} has a stale window"
            for worker in kind.told:
                assert worker.known.get(kind.number) is kind, f"{worker} does not know kind {kind.number}"
    for worker in mesh.every(Worker):
        for number, kind in worker.known.items():
            assert kind.number == number and worker in kind.told, f"kind {number} does not know of {worker}"
            assert kind.digest is None or kind.digest in worker.codes, f"{worker} knows kind {number} and not its code"


def _check_tasks(mesh: Mesh, pools: list[Pool]) -> None:
    queued: dict[bool, list[Task]] = {False: [], True: []}
    running: dict[bool, list[Task]] = {False: [], True: []}
    for client in (*mesh.every(Client), *mesh.ghosts):
        for seq, task in client.tasks.items():
            assert task.seq == seq and task.kind.client is client, f"{client}: task {seq} is misfiled"
            assert task.waiting != (task.worker is not None), f"{client}: task {seq} is in two states or in none"
            (queued if task.waiting else running)[task.kind.message].append(task)
            if task.worker is not None:
                assert task.worker.attempts.get(task.aid) is task, f"{client}: task {seq} is not at its worker"
            elif task.kind.ttl is not None:
                assert task.kind.expiring.get(seq, (0, None))[1] is task, f"{client}: nobody sees task {seq} expire"
        for priority, window in client.windows.items():
            held = [task for task in client.tasks.values() if task.kind.priority == priority]
            assert window.tasks == len(held), f"{client}: window of lane {priority} is off"
            assert window.size == sum(task.size for task in held), f"{client}: bytes of lane {priority} are off"
    for message, ledger in ((False, mesh.ledger), (True, mesh.messages)):
        counts = len(queued[message]), len(running[message])
        assert (ledger.queued, ledger.running) == counts, f"{counts} are queued and running; {ledger.as_dict()}"
        assert ledger.balance() == 0, f"the books do not add up: {ledger.as_dict()}"
    waiting = [task for tasks in queued.values() for task in tasks]
    assert all(task.kind.pool in pools for task in waiting), "a task waits in a pool that nobody looks at"
    assert sum(pool.queue.depth for pool in pools) == len(waiting), "what waits is not in the pools"


def _check_actors(mesh: Mesh) -> None:
    for name, actor in mesh.actors.items():
        assert actor.name == name and actor.state != "ended", f"actor {name} is misfiled, or ended and kept"
        assert (actor.state == "placing") == (actor in mesh.queued_actors), f"actor {name}: {actor.state}"
        assert actor.worker or actor.state not in ("setup", "ready"), f"actor {name}: {actor.state}, no process"
        assert actor.worker is None or actor.worker.actor is actor, f"actor {name}: its process does not know it"
