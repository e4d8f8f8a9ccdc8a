"""What is made of real verdicts: expectations and retries, in one process and under xdist; junit.xml read back."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from junitparser import JUnitXml, TestCase

from harness.record import Record, read_record
from tests.acceptance.conftest import HARNESS, Bench, properties
from tests.acceptance.test_gpus import environ_of, lease_events
from tests.conftest import FakeNvml
from tests.unit.jobs import eventually, processes_naming

pytestmark = pytest.mark.slow

SCENARIOS = """
defaults:
  trainer: {kind: script, target: ../train.py}
  time_limit: 10m
scenarios:
  - {name: met, processes: 2, trainer: {args: [oom]}, expect: gpu_oom}
  - {name: fits, processes: 1, trainer: {args: [success]}, expect: gpu_oom}
  - {name: other, processes: 1, trainer: {args: [nccl]}, expect: gpu_oom}
  - {name: must-train, processes: 1, trainer: {args: [oom]}, expect: none}
  - name: by-gpu
    gpus: 1
    trainer: {args: [oom]}
    matrix:
      expect:
        - {kind: gpu_oom, when: {gpu_memory_below: 100GiB, gpu_name: "*h100*"}, label: small}
        - {kind: gpu_oom, when: {gpu_memory_at_least: 100GiB}, label: large}
  - {name: no-gpu, processes: 1, trainer: {args: [oom]}, expect: {kind: gpu_oom, when: {gpu_memory_below: 100GiB}}}
  - {name: flaky, processes: 1, trainer: {args: [flaky, marker]}, retries: 2}
  - {name: used-up, processes: 1, trainer: {args: [nccl]}, retries: {nccl: 1}}
  - {name: lasting, processes: 1, trainer: {args: [oom]}, retries: 2}
"""
# case -> (verdict, what JUnit shows, what was expected, attempts)
EXPECTED = {
    "met-2proc": ("gpu_oom", "passed", "gpu_oom", None),
    "fits-1proc": ("none", "failure", "gpu_oom", None),
    "other-1proc": ("nccl", "failure", "gpu_oom", None),
    "must-train-1proc": ("gpu_oom", "failure", "none", None),
    "by-gpu-small-1gpu": ("gpu_oom", "passed", "gpu_oom", None),
    "by-gpu-large-1gpu": ("gpu_oom", "pytest.xfail", None, None),
    "no-gpu-1proc": ("gpu_oom", "pytest.xfail", None, None),
    "flaky-1proc": ("none", "passed", None, "2"),
    "used-up-1proc": ("nccl", "pytest.xfail", None, "2"),
    "lasting-1proc": ("gpu_oom", "pytest.xfail", None, None),
}


@dataclass(frozen=True)
class Ended:
    bench: Bench
    done: "subprocess.CompletedProcess[str]"
    cases: dict[str, TestCase]
    properties: dict[str, dict[str, str]]

    def record(self, case: str) -> Record:
        return read_record(self.bench.session / case / "record.json")

    def message(self, case: str) -> str:
        return str(self.cases[case].result[0].message)


@pytest.fixture(scope="module", params=["0", "2"], ids=["n0", "n2"])
def ended(request: pytest.FixtureRequest, make_bench: Callable[[str], Bench], fake_nvml: FakeNvml) -> Ended:
    bench = make_bench(SCENARIOS)
    done = bench.run("-n", request.param, "-o", "harness_retry_wait=200ms", environ=environ_of(fake_nvml, 1))
    assert done.returncode == 1, done.stdout + done.stderr
    suites = JUnitXml.fromfile(str(bench.root / "junit.xml"))
    cases = {case.name.partition("[")[2].rstrip("]"): case for suite in suites for case in suite}
    return Ended(bench, done, cases, {case: properties(found) for case, found in bench.case_elements().items()})


def shown(case: TestCase) -> str:
    if case.is_skipped:
        return str(case.result[0].type)
    return "passed" if case.is_passed else "failure" if case.is_failure else "error"


def test_every_case_counts_as_it_should(ended: Ended) -> None:
    found = {
        name: (told["verdict"], shown(ended.cases[name]), told.get("expected"), told.get("attempts"))
        for name, told in ended.properties.items()
    }
    assert found == EXPECTED


def test_expectations_say_what_they_were(ended: Ended) -> None:
    assert ended.message("fits-1proc").startswith("[XPASS(strict)] expected gpu_oom, the job trained")
    assert ended.message("other-1proc").startswith("expected gpu_oom, got nccl: rank 0")
    assert ended.message("must-train-1proc").startswith("expected training, got gpu_oom: rank 0 asked for 2.15 GiB")
    assert "asked for 2.15 GiB" in ended.properties["met-2proc"]["verdict_reason"]
    assert ended.record("by-gpu-small-1gpu").attempts[0].lease.gpu_names == ["NVIDIA H100 80GB HBM3"]


def test_a_case_that_passed_on_attempt_2_says_so(ended: Ended) -> None:
    record = ended.record("flaky-1proc")
    assert [attempt.verdict.kind for attempt in record.attempts if attempt.verdict] == ["nccl", "none"]
    assert record.verdict == record.attempts[1].verdict
    assert record.measurements is not None
    assert record.measurements.steps_seen == 6
    folder = ended.bench.session / "flaky-1proc"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["attempt-1", "attempt-2"]
    assert ended.properties["flaky-1proc"]["retried"].startswith("attempt 1: nccl: rank 0")
    assert "retried: flaky-1proc passed on attempt 2; attempt 1: nccl: rank 0" in ended.done.stdout
    summary = subprocess.run([*HARNESS, "summary", "junit.xml"], cwd=ended.bench.root, capture_output=True, text=True)
    assert summary.returncode == 1
    retried = summary.stdout.partition("### Retried\n")[2]
    assert "- **flaky-1proc** passed on attempt 2; attempt 1: nccl: rank 0" in retried
    assert "- **used-up-1proc** xfailed on attempt 2; attempt 1: nccl: rank 0" in retried
    expected = summary.stdout.partition("### Ended badly, as expected (passed)\n")[2].partition("###")[0]
    assert {case for case in EXPECTED if f"- **{case}** `gpu" in expected} == {"met-2proc", "by-gpu-small-1gpu"}


def test_retries_end(ended: Ended) -> None:
    record = ended.record("used-up-1proc")
    assert [attempt.verdict.kind for attempt in record.attempts if attempt.verdict] == ["nccl", "nccl"]
    assert len(ended.record("lasting-1proc").attempts) == 1


def test_each_attempt_has_a_lease_of_its_own(ended: Ended) -> None:
    events = lease_events(ended.bench.session)
    mine = [event["e"] for event in events if event["what"].startswith("flaky-1proc ")]
    assert mine == ["acquired", "released", "acquired", "released"]


WAITING = """
defaults: {processes: 1, trainer: {kind: script, target: ../train.py}}
scenarios:
  - {name: a-success, trainer: {args: [success]}}
  - {name: b-flaky, trainer: {args: [flaky, marker]}, retries: 1}
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_case_that_waits_holds_nothing_up_and_ends_on_ctrl_c(
    make_bench: Callable[[str], Bench], workers: str
) -> None:
    bench = make_bench(WAITING)
    process = bench.start(workers, "-o", "harness_retry_wait=1h", "-o", "harness_progress_interval=0.2")
    path = bench.root / "results" / "latest" / "b-flaky-1proc" / "record.json"

    def waits() -> bool:
        assert process.poll() is None, (bench.root / "output.txt").read_text()
        record = read_record(path) if path.exists() else None
        junit = bench.root / "junit.xml"
        return (
            record is not None
            and record.state == "running"
            and record.attempts[0].verdict is not None
            and b"a-success" in junit.read_bytes()
            and "b-flaky-1proc: " in (bench.root / "output.txt").read_text()
            and "attempt-1 has ended" in (bench.root / "output.txt").read_text()
        )

    try:
        eventually(waits)
        assert lease_events(bench.session)[-1]["e"] == "released"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.wait()
    record = read_record(path)
    assert record.state == "finished"
    assert record.verdict is not None
    assert record.verdict == record.attempts[0].verdict
    assert len(record.attempts) == 1
    assert not (path.parent / "attempt-2").exists()
    assert processes_naming(bench.root) == []
