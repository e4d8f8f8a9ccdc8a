"""Step times in pytest-benchmark's session: the same names and figures with and without workers."""

import json
from typing import Any

import pytest

from tests.unit.plugin.conftest import Bench


def read(bench: Bench, name: str) -> dict[str, dict[str, Any]]:
    document = json.loads((bench.path / name).read_text())
    return {entry["fullname"]: entry for entry in document["benchmarks"]}


def test_the_json_is_the_same_with_and_without_workers(bench: Bench) -> None:
    bench.scenario("one")
    bench.scenario("two")
    bench.scenario("oom", "gpu_oom")
    bench.run("-n0", "--benchmark-json=n0.json")
    bench.run("-n2", "--benchmark-json=n2.json")
    alone, spread = read(bench, "n0.json"), read(bench, "n2.json")
    assert set(alone) == set(spread)
    assert set(alone) == {f"benchmarks/test_finetune.py::test_finetune[{name}-1proc]" for name in ("one", "two")}
    for name, entry in alone.items():
        assert entry["stats"]["data"] == spread[name]["stats"]["data"] == [0.25, 0.5, 0.25]
        assert entry["params"] == spread[name]["params"]
        assert entry["extra_info"]["verdict"] == "none"
        assert entry["options"]["timer"] == "step_time"


def test_a_slower_job_is_a_regression_with_a_clean_exit(
    bench: Bench, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.scenario("one")
    bench.run("-n0", "--benchmark-autosave")
    monkeypatch.setenv("FAKE_STEP_S", "0.5")
    result = bench.run(workers, "--benchmark-compare", "--benchmark-compare-fail=mean:20%")
    assert result.ret == 6
    result.stderr.fnmatch_lines(["*Performance has regressed*"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert bench.junit().outcome("one-1proc") == "passed"


def test_it_can_be_switched_off(bench: Bench) -> None:
    bench.scenario("one")
    bench.run("--benchmark-disable").stdout.no_fnmatch_line("*benchmark: 1 tests*")
