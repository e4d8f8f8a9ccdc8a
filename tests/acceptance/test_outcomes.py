"""Real jobs, each ending in its own way, in one process and under xdist; junit.xml read back as a CI job would."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml

from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import Bench, properties

pytestmark = pytest.mark.slow

SCENARIOS = """
defaults:
  trainer: {kind: script, target: ../train.py}
  time_limit: 10m
scenarios:
  - {name: success, processes: 1, trainer: {args: [success]}}
  - {name: oom, processes: 2, trainer: {args: [oom]}}
  - {name: peer-death, processes: 2, trainer: {args: [peer-death]}}
  - {name: nccl, processes: 2, trainer: {args: [nccl]}}
  - {name: user-error, processes: 1, trainer: {args: [user-error]}}
  - {name: swallow, processes: 1, trainer: {args: [swallow]}}
  - {name: nothing, processes: 1, trainer: {args: [nothing]}}
  - {name: recover, processes: 1, trainer: {args: [recover]}}
  - {name: absent, processes: 1, trainer: {target: ../not_there.py}}
  - {name: many, gpus: 4096, trainer: {args: [success]}}
"""
# case -> (verdict, what JUnit shows)
EXPECTED = {
    "success-1proc": ("none", "passed"),
    "oom-2proc": ("gpu_oom", "skipped"),
    "peer-death-2proc": ("unknown", "failure"),
    "nccl-2proc": ("nccl", "skipped"),
    "user-error-1proc": ("user_error", "failure"),
    "swallow-1proc": ("gpu_oom", "skipped"),
    "nothing-1proc": ("no_training", "failure"),
    "recover-1proc": ("none", "passed"),
    "absent-1proc": ("user_error", "failure"),
    "many-4096gpu": ("not_run", "skipped"),
}


@dataclass(frozen=True)
class Outcome:
    bench: Bench
    done: "subprocess.CompletedProcess[str]"
    cases: dict[str, ET.Element]

    def record(self, case: str) -> Record:
        return read_record(self.bench.session / case / "record.json")


@pytest.fixture(scope="module", params=["0", "2"], ids=["n0", "n2"])
def outcome(request: pytest.FixtureRequest, make_bench: Callable[[str], Bench]) -> Outcome:
    bench = make_bench(SCENARIOS)
    done = bench.run("-n", request.param, "--label", "team=search", "--benchmark-json", "bench.json")
    assert done.returncode == 1, done.stdout + done.stderr
    return Outcome(bench, done, bench.case_elements())


def shown(element: ET.Element) -> str:
    return next((child.tag for child in element if child.tag in ("failure", "error", "skipped")), "passed")


def test_every_case_has_its_verdict(outcome: Outcome) -> None:
    found = {case: (properties(element)["verdict"], shown(element)) for case, element in outcome.cases.items()}
    assert found == EXPECTED


def test_junitparser_reads_the_report(outcome: Outcome) -> None:
    suites = JUnitXml.fromfile(str(outcome.bench.session / "junit.xml"))
    cases = [case for suite in suites for case in suite]
    assert len(cases) == len(EXPECTED)
    xfailed = [case for case in cases if case.is_skipped and case.result[0].type == "pytest.xfail"]
    assert sorted(case.result[0].message.partition(":")[0] for case in xfailed) == ["gpu_oom", "gpu_oom", "nccl"]


def test_the_oom_of_rank_1_says_what_it_asked_for(outcome: Outcome) -> None:
    told = properties(outcome.cases["oom-2proc"])
    assert told["verdict_reason"] == "rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 3, backward"
    verdict = outcome.record("oom-2proc").verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank, verdict.step, verdict.part) == (Kind.GPU_OOM, 1, 3, "backward")


def test_a_swallowed_exception_is_found(outcome: Outcome) -> None:
    record = outcome.record("swallow-1proc")
    assert record.attempts[0].end is not None
    assert record.attempts[0].end["exit_code"] == 1
    assert "asked for 2.15 GiB" in properties(outcome.cases["swallow-1proc"])["verdict_reason"]


def test_a_user_error_names_the_argument(outcome: Outcome) -> None:
    element = outcome.cases["user-error-1proc"]
    assert "evaluation_strategy" in properties(element)["verdict_reason"]
    output = element.find("system-out")
    assert output is not None
    assert "TypeError" in (output.text or "")


def test_a_recovered_job_is_measured_by_its_last_segment(outcome: Outcome) -> None:
    record = outcome.record("recover-1proc")
    assert record.measurements is not None
    assert [(s.batch_ran, s.steps) for s in record.measurements.segments] == [(4, 2), (2, 6)]
    assert not (outcome.bench.session / "recover-1proc" / "attempt-1" / "rank-0" / "error.json").exists()


def test_a_success_has_figures(outcome: Outcome) -> None:
    measured = outcome.record("success-1proc").measurements
    assert measured is not None
    assert measured.tokens == {"padded": 192, "non_pad": 192, "trainable": 180, "samples": 12}
    assert measured.steps_seen == 6
    assert measured.non_pad_tokens_per_s_per_device is not None
    assert measured.host_peak_rss_bytes is not None
    told = properties(outcome.cases["success-1proc"])
    assert float(told["step_time_median_s"]) == pytest.approx(measured.step_time_median_s, rel=1e-5)


def test_labels_are_everywhere(outcome: Outcome) -> None:
    for case in ("success-1proc", "oom-2proc"):
        labels = outcome.record(case).labels
        assert labels["team"] == "search"
        assert labels["experiment"] == case.rpartition("-")[0]
        assert labels["identifier"] == outcome.bench.session.name
        assert set(labels.values()) <= set(properties(outcome.cases[case]).values())


def test_a_skip_says_what_is_needed_and_what_is_there(outcome: Outcome) -> None:
    reason = properties(outcome.cases["many-4096gpu"])["verdict_reason"]
    assert "4096 GPUs" in reason


def test_step_times_reach_pytest_benchmark(outcome: Outcome) -> None:
    document = json.loads((outcome.bench.root / "bench.json").read_text())
    names = {entry["name"] for entry in document["benchmarks"]}
    assert {"test_bench[success-1proc]", "test_bench[recover-1proc]"} <= names
    entry = next(e for e in document["benchmarks"] if e["name"] == "test_bench[success-1proc]")
    assert entry["stats"]["rounds"] == 3


def test_the_terminal_tells_the_night_in_a_table(outcome: Outcome) -> None:
    for text in ("gpu_oom", "nccl", "no_training", "results"):
        assert text in outcome.done.stdout


def test_the_report_is_copied_to_the_root(outcome: Outcome) -> None:
    assert (outcome.bench.root / "junit.xml").read_bytes() == (outcome.bench.session / "junit.xml").read_bytes()


def test_no_lease_overlaps_another(outcome: Outcome) -> None:
    held: set[str] = set()
    for line in (outcome.bench.session / "leases.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["e"] == "acquired":
            assert not held & set(event["ids"])
            held |= set(event["ids"])
        elif event["e"] == "released":
            held -= set(event["ids"])
    assert not held


def test_the_benchmarks_of_both_ways_have_the_same_names(make_bench: Callable[[str], Bench], tmp_path: Path) -> None:
    bench = make_bench("{name: success, processes: 1, trainer: {kind: script, target: ../train.py, args: [success]}}")
    names = []
    for workers in ("0", "2"):
        done = bench.run("-n", workers, "--benchmark-json", f"n{workers}.json")
        assert done.returncode == 0, done.stdout
        names.append([e["fullname"] for e in json.loads((bench.root / f"n{workers}.json").read_text())["benchmarks"]])
    assert names[0] == names[1] == ["test_bench.py::test_bench[success-1proc]"]
    compare = [sys.executable, "-m", "pytest_benchmark", "compare", "n0.json", "n2.json"]
    table = subprocess.run(compare, cwd=bench.root, capture_output=True, text=True, check=True).stdout
    assert table.count("test_bench[success-1proc]") == 2
