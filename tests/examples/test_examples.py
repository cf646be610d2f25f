"""Each example runs as it stands, and prints what it should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repo.tree import ROOT

EXAMPLES = ROOT / "examples"
# By tests of their own.
ELSEWHERE = {"embedded_service.py"}
PRINTS = {
    "task.py": """\
one: 111
many: [0, 1, 7, 2, 5, 8, 16, 3]
urgent: 118
longest below 2000: 181
failed: builtins.ZeroDivisionError | cause: ZeroDivisionError('division by zero')
""",
    "actor.py": """\
ask: 100
after ten tells: 150
refused: a deposit is positive
still: 150
""",
    "stream.py": """\
the
quick
brown
fox
first three: [0, 1, 2]
asyncio: ['and', 'once', 'more']
""",
    "tensors.py": """\
numpy: (3, 4) float32 [0, 1, 0]
torch: tensor([[0.5000, 0.5000, 0.5000],
        [0.5000, 0.5000, 0.5000]], dtype=torch.bfloat16)
pyarrow: ['arrow', 'tensor']
big: 0
""",
    "pubsub.py": """\
number 1: step 0 loss 0.5
number 2: step 1 loss 0.25
number 3: step 2 loss 0.125
number 4: step 3 loss 0.0625
result: 0.0625
again from number 1: [0, 1, 2, 3]
""",
    "executor.py": """\
threads: 328350
mesh: 328350
map: [0, 1, 4, 9, 16]
asyncio: 144
""",
    "lost_worker.py": """\
sum: 190
redelivered: 1
dead after two attempts: True
""",
    "asynchronous.py": """\
gather: [0, 1, 8, 27, 64]
map: [0, 1, 8, 27, 64]
counter: 100
tasks done: 10
""",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_should(name: str) -> None:
    if "import torch" in (EXAMPLES / name).read_text():
        pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == PRINTS[name]
