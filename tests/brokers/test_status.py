"""The status page: the shape that ``bus.status()`` promises, as msgpack can carry it."""

from __future__ import annotations

from typing import Any

import msgpack

from omnibus.brokers.status import report
from omnibus.protocol import Verb
from tests.brokers.support import Recorder, done, submit


def look(broker: Recorder) -> dict[str, Any]:
    page: dict[str, Any] = msgpack.unpackb(msgpack.packb(report(broker.mesh)), strict_map_key=False)
    return page


def test_an_empty_mesh(broker: Recorder) -> None:
    broker.mesh.about = {"address": "ipc://x"}
    broker.step(5)
    page = look(broker)
    assert page["broker"] == {"epoch": broker.mesh.epoch.hex(), "uptime": 5.0, "address": "ipc://x"}
    assert [page[key] for key in ("nodes", "workers", "actors", "clients")] == [[], [], [], []]
    assert (page["lanes"], page["waited"]) == ({}, {})
    assert set(page["tasks"].values()) == set(page["messages"].values()) == {0}


def test_everything_that_there_is(broker: Recorder) -> None:
    node = broker.node("n1", cpus=2, gpus=["g0"], memory=100, labels={"a": "b"}, host="h", pid=7)
    worker = broker.worker(node, name="w", pid=8, host="h", incarnation=2, devices=["g0"])
    idle = broker.worker(node, name="idle")
    client = broker.client({}, {"priority": 5}, {"gpus": 8}, name="me")
    client.send([Verb.SPAWN, 9, {"cls": "a:B", "name": "actor"}, None, 0])
    actor = broker.started(node, role="actor", pid=9, host="h")
    actor.claim_all(Verb.DEFINE, Verb.SPAWN)
    client.send(submit(1), submit(2, 3), submit(3, 3))
    worker.runs()
    page = look(broker)
    assert page["nodes"] == [
        {
            "name": "n1", "host": "h", "pid": 7, "cpus": 2, "free_cpus": 1, "gpus": {"g0": 1.0}, "memory": 100,
            "labels": {"a": "b"}, "state": "up",
        }
    ]  # fmt: skip
    assert page["workers"] == [
        {"name": "w", "pid": 8, "host": "h", "state": "busy", "running": 1, "devices": ["g0"], "restarts": 2},
        {"name": "idle", "pid": 0, "host": None, "state": "idle", "running": 0, "devices": [], "restarts": 0},
    ]
    assert page["actors"] == [
        {"name": "actor", "pid": 9, "host": "h", "state": "setup", "running": 0, "queued": 0, "restarts": 0}
    ]
    assert page["clients"] == [{"name": "me", "unfinished": 3}]
    assert page["lanes"] == {0: 2}
    assert page["waited"][0]["dispatched"] == 1
    assert (page["tasks"]["submitted"], page["tasks"]["running"], page["tasks"]["balance"]) == (3, 1, 0)
    idle.nothing()


def test_the_states_of_nodes_and_workers(broker: Recorder) -> None:
    node = broker.node("n1", cpus=1)
    worker = broker.worker(node)
    client = broker.client({})
    client.send(submit(1))
    run = worker.run()
    inside = broker.client(within=worker.session)
    inside.send([Verb.LEND, 0, 1, None, 0])
    assert look(broker)["workers"][0]["state"] == "lent"
    worker.send(done(run.id))
    client.claim(Verb.RESULT)
    assert look(broker)["workers"][0]["state"] == "idle"
    worker.send([Verb.BYE, 0, None, None, 0])
    assert look(broker)["workers"][0]["state"] == "closing"
    worker.break_link()
    node.break_link()
    page = look(broker)
    assert (page["workers"][0]["state"], page["nodes"][0]["state"]) == ("lost", "lost")


def test_an_actor_without_a_process(broker: Recorder) -> None:
    client = broker.client()
    broker.node().send()
    client.send([Verb.SPAWN, 9, {"cls": "a:B", "name": "actor"}, None, 0])
    (actor,) = look(broker)["actors"]
    assert (actor["state"], actor["pid"], actor["host"]) == ("starting", None, None)
    broker.abandon()
