"""The core in a mesh that breaks all the time: every accepted task ends once, and the books balance."""

from __future__ import annotations

import pytest

from tests.brokers.network import Network


def check_ends(network: Network) -> None:
    """Compare what the clients were told with what ran."""
    for client in network.clients:
        for seq, end in client.ended.items():
            kind, begun = client.kinds[seq], network.begun[client.session, seq]
            retries = kind.get("retries", 3)
            blind = "its node" in end.get("message", "")  # nobody can tell what a dead node's children had begun
            match end["state"]:
                case "done":
                    assert end["body"] == b"%d" % seq
                    assert begun >= 1
                case "dead":
                    assert end["error"] == "DeadLetter"
                    assert begun >= 1 or blind
                    assert end["attempts"] == retries + 1
                case "expired":
                    assert "ttl" in kind
                case "failed":
                    assert begun >= 1 or blind
                    assert end["error"] == "RemoteError" or retries == 0, end
                case "cancelled":
                    pass
                case other:
                    pytest.fail(f"{client.name}: task {seq} ended as {other}")
            assert begun <= retries + 1, f"{client.name}: task {seq} began {begun} times with retries={retries}"
            if "attempts" in end and not network.dead_nodes:
                assert end["attempts"] == begun, f"{client.name}: {begun} attempts at task {seq} began, {end}"


@pytest.mark.parametrize("seed", range(200))
def test_every_task_ends_once_whatever_breaks(seed: int) -> None:
    network = Network(seed)
    for _ in range(250):
        network.step()
    assert network.settle(), f"unfinished: {[sorted(client.pending) for client in network.clients]}"
    ledger = network.broker.mesh.ledger
    assert ledger.balance() == 0
    assert (ledger.queued, ledger.running, ledger.late) == (0, 0, 0)
    if not network.gone:
        assert ledger.ended() == sum(len(client.ended) for client in network.clients)
        assert ledger.refused == sum(client.refused for client in network.clients)
    check_ends(network)
    assert not any(network.running.values())
