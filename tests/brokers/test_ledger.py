"""The ledger: every accepted task is somewhere, or has ended in one way."""

from __future__ import annotations

import pytest

from omnibus.brokers.ledger import ENDS, Ledger


def test_a_fresh_ledger_balances() -> None:
    assert Ledger().balance() == 0
    assert set(Ledger().as_dict().values()) == {0}


def test_every_end_counts() -> None:
    ledger = Ledger(submitted=7, queued=1, running=1)
    for end in ENDS:
        ledger.close(end)
    assert ledger.balance() == 0
    assert [getattr(ledger, end) for end in ENDS] == [1] * len(ENDS)
    ledger.close("done")
    assert ledger.balance() == -1, "one ended twice"


def test_every_count_is_reported_by_its_name() -> None:
    names = {"submitted", "queued", "running", "late", "redelivered", "dropped", "refused", *ENDS}
    assert set(Ledger().as_dict()) == names


def test_there_is_no_other_way_to_end() -> None:
    with pytest.raises(ValueError, match="'lost' is no way to end"):
        Ledger().close("lost")
