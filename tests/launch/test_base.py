"""What all backends share."""

from __future__ import annotations

import pytest

from omnibus.address import MeshKey
from omnibus.errors import Unauthorized, UsageError
from omnibus.launch.base import describe_exit, refuse_secrets

KEY = MeshKey("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_an_exit_is_described(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_secret_in_a_command_is_refused_wherever_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMNIBUS_KEY", raising=False)
    command = ["broker", f"--key={KEY.text()}"]
    refuse_secrets(command, {})  # no mesh has that key here
    with pytest.raises(UsageError, match="has the mesh's secret among its arguments") as caught:
        refuse_secrets(command, {"OMNIBUS_KEY": KEY.text()})
    assert KEY.secret not in str(caught.value)
    monkeypatch.setenv("OMNIBUS_KEY", KEY.text())
    with pytest.raises(UsageError):
        refuse_secrets(command, {})
    refuse_secrets(["broker", KEY.public], {"OMNIBUS_KEY": KEY.text()})
    monkeypatch.delenv("OMNIBUS_KEY")
    with pytest.raises(Unauthorized, match="holds no mesh key"):
        refuse_secrets(command, {"OMNIBUS_KEY": "garbage"})
