"""What tests of the broker's core share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers.support import Recorder


@pytest.fixture
def broker() -> Iterator[Recorder]:
    """Return a recorder with default settings, which at the end has no unclaimed output."""
    recorder = Recorder()
    yield recorder
    recorder.finish()
