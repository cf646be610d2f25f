"""A mesh over tcp, with its key and without: what gets in, what may be shipped, and tensors both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import omnibus
from omnibus.address import Target
from omnibus.bus import Bus
from omnibus.payload import encode_call
from omnibus.protocol import Verb
from tests.support.mesh import started_mesh


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with started_mesh(tmp_path_factory.mktemp("keyed"), "tcp://127.0.0.1:*") as target:
        yield target


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    allow = ("--allow", "math", "--allow", "numpy")
    with started_mesh(tmp_path_factory.mktemp("open"), "tcp://127.0.0.1:*", insecure=True, node=allow) as target:
        yield target


def double(array: np.ndarray) -> np.ndarray:
    return array * 2


def test_a_holder_of_the_key_works_and_ships_code(keyed: Target) -> None:
    with Bus(keyed) as bus:
        assert bus.submit(lambda n: n + 1, 41).result(20) == 42
        array = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
        assert np.array_equal(bus.submit(double, array).result(20), array * 2)


def test_strangers_are_refused_and_told_why(keyed: Target, tmp_path: Path) -> None:
    with pytest.raises(omnibus.Unauthorized, match="needs the mesh's key"):
        omnibus.connect(keyed.address)
    with pytest.raises(omnibus.ConnectTimeout, match="demands the mesh's key"):
        omnibus.connect(keyed.address, insecure=True, timeout=5)
    with Bus(keyed) as bus:
        assert bus.submit("math:factorial", 3).result(20) == 6


def test_without_a_key_nothing_is_unpickled(open_to_all: Target) -> None:
    with omnibus.connect(open_to_all.address, insecure=True) as bus:
        assert bus.submit("math:factorial", 5).result(20) == 120
        with pytest.raises(omnibus.Unauthorized, match="os:system"):
            bus.submit("os:system", "true").result(20)
        with pytest.raises(omnibus.NotPicklable, match="cannot be imported by a name"):
            bus.submit(lambda: 1)
        array = np.ones((300, 300))
        assert np.array_equal(bus.submit("numpy:transpose", array).result(20), array)


def test_no_pickle_is_loaded_beside_an_open_port(tmp_path: Path) -> None:
    """Also over ipc: the broker cannot tell whose a pickle is, so in such a mesh nobody's is loaded."""
    with started_mesh(tmp_path, f"ipc://{tmp_path}/broker", "tcp://127.0.0.1:*", insecure=True) as target:
        assert target.address.startswith("ipc://")
        with Bus(target) as bus:
            with pytest.raises(omnibus.NotPicklable):
                bus.submit(lambda: 1)
            with pytest.raises(omnibus.Unauthorized, match="builtins:eval"):
                bus.submit("builtins:eval", "1").result(20)
            bus._code = True
            body, _ = encode_call((Path("x"),), {}, code=True)
            forged = bus._default._start(Verb.SUBMIT, {"fn": "math:factorial"}, body, ())
            with pytest.raises(omnibus.Unauthorized):
                forged.result(20)
