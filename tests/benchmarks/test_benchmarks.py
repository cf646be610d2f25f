"""Each benchmark runs, and says what it promises: the figure, its reference, floor and aim, and whether they hold.

No test looks at how fast anything was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.__main__ import NAMES, main
from benchmarks.common import Result, absolute, interleave, p, show, versus
from benchmarks.processes import descendants, pss
from tests.repo.tree import ROOT

# The claims, by benchmark: floor and aim of each result, and whether more or less is better.
CLAIMS: dict[str, list[tuple[float | None, float | None, str]]] = {
    "throughput": [(2.5, 4.0, "more")],
    "async_throughput": [(0.8, 1.0, "more")],
    "latency": [(1.6, 1.2, "less"), (None, None, "less")],
    "backlog": [(0.9, 1.0, "more")],
    "memory_per_task": [(700, 400, "less")],
    "cold_start": [(1.0, 0.4, "less")],
    "failover": [(100, 20, "less"), (None, None, "less")],
    "idle_memory": [(60, 45, "less"), (None, None, "less")],
    "tensor_tcp": [(0.8, 0.95, "more"), (None, None, "more")] * 2,  # under CURVE, then --insecure
}
QUICK = ("throughput", "cold_start")
FIELDS = {
    "benchmark", "claim", "figure", "unit", "better", "floor", "aim", "floor_holds", "aim_holds",
    "measured_in", "ours", "against", "reference", "rounds", "details",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


def results_of(name: str) -> list[dict[str, Any]]:
    ran = run(name, "--quick", "--json")
    assert ran.returncode == 0, ran.stderr
    output = json.loads(ran.stdout)
    assert output["quick"] is True
    assert output["machine"]["cpus"] >= 1
    found: list[dict[str, Any]] = output["results"]
    for result in found:
        assert set(result) == FIELDS
        assert result["benchmark"] == name
        assert result["figure"] > 0
        assert result["ours"] > 0
        assert result["reference"] > 0
        assert result["rounds"]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CLAIMS]
)
def test_a_benchmark_measures_its_claim_and_its_reference(name: str) -> None:
    found = results_of(name)
    assert [(result["floor"], result["aim"], result["better"]) for result in found] == CLAIMS[name]
    for result in found:
        for bound in ("floor", "aim"):
            expected = None
            if result[bound] is not None:
                above = result["figure"] >= result[bound]
                expected = above if result["better"] == "more" else result["figure"] <= result[bound]
            assert result[f"{bound}_holds"] is expected


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_codec_is_bounded_for_a_small_tensor() -> None:
    small = [result for result in results_of("tensor_codec") if "1 KB" in result["claim"]]
    assert any(result["floor"] is not None and result["better"] == "less" for result in small)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_peers_are_measured_or_skipped_with_a_reason() -> None:
    found = results_of("peers")
    against = {result["against"] for result in found}
    assert {"ProcessPoolExecutor", "multiprocessing.Pool, imap"} <= against
    for peer, module in (("Ray", "ray"), ("Dask", "distributed")):
        assert (peer in against) != any(module in why for why in found[0]["details"]["skipped"].values())


def test_every_script_is_among_the_names() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef measure(" in path.read_text()}
    assert scripts == set(NAMES)


def test_an_unknown_name_is_refused_with_the_names_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["thruput"])
    assert leaving.value.code == 2
    assert "throughput" in capsys.readouterr().err


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    result = versus("b", "c", [(1, 2), (9, 3), (4, 4)], against="x", measured_in="s", floor=1.0, aim=2.0)
    assert (result.figure, result.ours, result.reference) == (1, 4, 3)
    assert result.holds(result.floor) is True
    assert result.holds(result.aim) is False
    assert result.holds(None) is None


def test_less_is_better_for_an_absolute_figure() -> None:
    result = absolute("b", "c", [3, 1, 2], unit="s", against="x", references=[1, 1, 1], floor=2, aim=1)
    assert result.figure == 2
    assert result.as_dict()["floor_holds"] is True
    assert result.as_dict()["aim_holds"] is False


def test_rounds_interleave_what_is_compared() -> None:
    calls: list[str] = []
    rows = interleave(2, lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b", "a", "b"]
    assert rows == [(None, None)] * 2


def test_a_percentile_is_one_of_the_values() -> None:
    assert [p([3, 1, 2], share) for share in (0, 0.5, 0.99, 1)] == [1, 2, 3, 3]


def test_the_table_says_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    results: list[Result] = [
        versus("b", "c", [(5, 2)], against="x", measured_in="s", floor=2.0, aim=3.0),
        versus("b", "for comparison", [(5, 2)], against="x", measured_in="s"),
    ]
    show(results, {"cpus": 2, "processor": "p", "python": "3", "libzmq": "4", "load_before": 0}, quick=True)
    said = capsys.readouterr().out
    assert "≥ 2 holds" in said
    assert "≥ 3 missed" in said
    assert said.count("holds") == 1


def test_a_process_that_was_started_is_found_and_weighed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = descendants(child.pid)
        assert list(found) == [child.pid]
        assert child.pid in descendants(os.getpid())
        assert pss(child.pid) > 1 << 16
    finally:
        child.kill()
        child.communicate()
