"""The invariants: whatever is wrong in a broker's state is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnibus.brokers.invariants import check_invariants
from omnibus.brokers.peers import Client, Node, Worker
from omnibus.brokers.state import Mesh
from omnibus.protocol import Verb
from tests.brokers.support import Recorder, submit


class State:
    """A mesh with one of each."""

    def __init__(self) -> None:
        recorder = Recorder()
        node = recorder.node("n1", cpus=1, gpus=["g0"], memory=10, workers=1)
        worker = recorder.worker(node)
        client = recorder.client({"ttl": 9}, {"gpus": 1}, {"actor": "a", "method": "m"})
        recorder.peer("actor", "a")
        client.send(submit(1), submit(2), submit(3, 2), submit(4, 3, verb=Verb.ASK), submit(5, 3, verb=Verb.ASK))
        self.mesh: Mesh = recorder.mesh
        self.client: Client = client.as_client()
        self.worker: Worker = worker.as_worker()
        self.node: Node = node.as_node()
        self.pool = self.mesh.default
        self.task = self.client.tasks[2]


def grow(owner: Any, name: str) -> None:
    """Count one more of something."""
    setattr(owner, name, getattr(owner, name) + 1)


SPOILERS: dict[str, Callable[[State], object]] = {
    "stale route": lambda state: state.mesh.routes.update({b"other": state.client}),
    "is another's": lambda state: state.mesh.routes.pop(state.client.route),
    "gone and kept": lambda state: setattr(state.client, "gone", True),
    "lost 1.0": lambda state: setattr(state.client, "lost", 1.0),
    "do not match": lambda state: state.client.blobs.append(b"blob"),
    "not a ghost": lambda state: state.mesh.ghosts.add(state.client),
    "depth": lambda state: grow(state.pool.queue, "depth"),
    "stirred": lambda state: setattr(state.pool, "stirred", True),
    "a stranger": lambda state: state.pool.free.append(state.worker) or state.pool.workers.clear(),
    "does not know it": lambda state: setattr(state.worker, "pool", state.mesh.limbo),
    "listed True": lambda state: setattr(state.worker, "listed", True),
    "starting": lambda state: grow(state.pool, "starting"),
    "users": lambda state: grow(state.pool, "users"),
    "without users": lambda state: setattr(state.task.kind.line, "users", 0),
    "whose client is gone": lambda state: state.pool.lines.update({b"x": state.pool.lines.pop(state.client.session)}),
    "is misfiled": lambda state: state.worker.attempts.update({99: state.task}),
    "backlog is off": lambda state: grow(state.worker, "backlog"),
    "without its CPUs": lambda state: setattr(state.worker, "busy", False),
    "free cpus": lambda state: grow(state.node, "free_cpus"),
    "free memory": lambda state: grow(state.node, "free_memory"),
    "g0 has": lambda state: state.node.free_gpus.update(g0=0.5),
    "holding": lambda state: state.node.holdings.update({99: state.node.holdings.popitem()[1]}),
    "stale window": lambda state: state.client.windows.clear(),
    "does not know of": lambda state: state.client.kinds[1].told.clear(),
    "does not know kind": lambda state: state.worker.known.clear(),
    "in two states or in none": lambda state: setattr(state.client.tasks[1], "waiting", True),
    "is not at its worker": lambda state: (state.worker.attempts.clear(), setattr(state.worker, "backlog", 0)),
    "nobody sees task 2": lambda state: state.task.kind.expiring.clear(),
    "window of lane": lambda state: grow(state.client.windows[0], "tasks"),
    "bytes of lane": lambda state: grow(state.client.windows[0], "size"),
    "queued and running": lambda state: grow(state.mesh.ledger, "queued"),
    "do not add up": lambda state: grow(state.mesh.messages, "done"),
    "that nobody looks at": lambda state: setattr(state.task.kind, "pool", state.mesh.limbo),
    "actor a": lambda state: setattr(state.mesh.actors["a"], "name", "b"),
    "no process": lambda state: setattr(state.mesh.actors["a"], "worker", None),
    "topics": lambda state: grow(state.mesh.topics, "size"),
    "shelf": lambda state: grow(state.mesh.shelf, "size"),
}


def test_a_sound_state_passes() -> None:
    check_invariants(State().mesh)


@pytest.mark.parametrize("what", SPOILERS)
def test_what_is_wrong_is_found(what: str) -> None:
    state = State()
    SPOILERS[what](state)
    with pytest.raises(AssertionError, match=what):
        check_invariants(state.mesh)
