"""Addresses, keys and targets as values."""

from __future__ import annotations

import pytest

from omnibus.address import Address, MeshKey, Target, parse_address
from omnibus.errors import Unauthorized, UsageError

# The pair of ZeroMQ's own documentation.
PUBLIC = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
SECRET = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
KEY = MeshKey(PUBLIC, SECRET)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ipc:///run/omnibus/broker.sock", Address("ipc", path="/run/omnibus/broker.sock")),
        (" tcp://node7:5555\n", Address("tcp", host="node7", port=5555)),
        ("tcp://10.0.0.1:1", Address("tcp", host="10.0.0.1", port=1)),
        ("tcp://[fe80::1%eth0]:65535", Address("tcp", host="[fe80::1%eth0]", port=65535)),
    ],
)
def test_good_addresses_are_taken_apart_and_put_together(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()
    assert parse_address(str(address), bind=True) == address


def test_a_bind_may_leave_host_and_port_open() -> None:
    assert parse_address("tcp://*:0", bind=True) == parse_address("tcp://*:*", bind=True) == Address("tcp", host="*")
    assert str(Address("tcp", host="*")) == "tcp://*:*"


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("", "is empty: expected ipc:///absolute/path or tcp://host:port"),
        (None, "is empty"),
        ("node7:5555", "did you mean 'tcp://node7:5555'"),
        ("/run/broker.sock", "did you mean 'ipc:///run/broker.sock'"),
        ("node7", "did you mean 'tcp://host:port'"),
        ("inproc://x", "scheme 'inproc' is not spoken here"),
        ("ipc://broker.sock", "not an absolute path"),
        ("ipc:///run/\0", "not an absolute path"),
        ("ipc://@omnibus", "no permission protects"),
        ("ipc:///" + "x" * 107, "108 bytes, at most 107"),
        ("ipc:///" + "é" * 60, "121 bytes, at most 107"),
        ("tcp://node7", "has no port"),
        ("tcp://:1", "'' is no host name"),
        ("tcp://a;b:1", "'a;b' is no host name"),
        ("tcp://::1:5555", "'::1' is no host name"),
        ("tcp://node7:*", "not in the range 1 to 65535"),
        ("tcp://node7:0", "not in the range 1 to 65535"),
        ("tcp://node7:65536", "not in the range 1 to 65535"),
        ("tcp://node7:-1", "not in the range"),
        ("tcp://node7:٣", "not in the range"),
        ("tcp://node7:" + "1" * 5000, "not in the range"),
        ("tcp://*:5555", "only a broker can bind"),
        ("tcp://0.0.0.0:5555", "only a broker can bind"),
    ],
)
def test_bad_addresses_say_what_is_wrong(text: str, lesson: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert lesson in str(caught.value)


def test_a_bad_port_of_a_bind_is_told_of_the_free_choice() -> None:
    with pytest.raises(UsageError, match="or \\* for any free port"):
        parse_address("tcp://node7:http", bind=True)


def test_the_longest_path_that_a_socket_may_have_is_allowed() -> None:
    assert len(parse_address("ipc:///" + "x" * 106).path) == 107


def test_only_literals_ask_for_ipv6() -> None:
    assert parse_address("tcp://[::1]:1").wants_ipv6
    assert not parse_address("tcp://localhost:1").wants_ipv6


def test_a_key_survives_its_text_and_never_shows_its_secret() -> None:
    assert MeshKey.parse(f" {PUBLIC}\n{SECRET}\n", "here") == KEY
    assert MeshKey.parse(KEY.text(), "here") == KEY
    assert PUBLIC in repr(KEY)
    assert SECRET not in repr(KEY) + repr(Target("tcp://a:1", KEY))


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("", "0 characters where 80"),
        (PUBLIC, "40 characters where 80"),
        (PUBLIC[:-1] + "~" + SECRET, "public key is malformed"),
        (PUBLIC + "#" * 40, "secret key is malformed"),
    ],
)
def test_a_malformed_key_names_its_source_and_not_itself(text: str, lesson: str) -> None:
    with pytest.raises(Unauthorized, match=lesson) as caught:
        MeshKey.parse(text, "$OMNIBUS_KEY")
    assert str(caught.value).startswith("$OMNIBUS_KEY holds no mesh key")
    assert SECRET not in str(caught.value)


def test_a_child_gets_all_variables_so_that_none_is_inherited() -> None:
    assert Target("ipc:///a").environment() == {
        "OMNIBUS_ADDRESS": "ipc:///a",
        "OMNIBUS_KEY": "",
        "OMNIBUS_INSECURE": "",
    }
    assert Target("tcp://a:1", KEY).environment() == {
        "OMNIBUS_ADDRESS": "tcp://a:1",
        "OMNIBUS_KEY": PUBLIC + SECRET,
        "OMNIBUS_INSECURE": "",
    }
    assert Target("tcp://a:1", insecure=True).environment()["OMNIBUS_INSECURE"] == "1"
    assert Target("tcp://a:1").parsed() == Address("tcp", host="a", port=1)
