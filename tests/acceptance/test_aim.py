"""Real jobs in a real Aim repo: found by their labels with their series, however they ended."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from harness.record import Kind, read_record
from tests.acceptance.conftest import Bench, Ended, Pod
from tests.aim_faults import needs_aim
from tests.unit.forward.recorded import names, query
from tests.unit.jobs import eventually, processes_naming

SCENARIO = "{name: plain, processes: 1, trainer: {kind: script, target: ../train.py, args: [success]}}"
PATIENT = ["--aim-timeout", "2m"]  # on a busy machine

pytestmark = [pytest.mark.slow, needs_aim]


def steps(job: JobPaths) -> list[dict[str, Any]]:
    return [event for _, event in read_events(job.events(0)) if event["e"] == "step"]


def check_is_found(pod: Pod, ended: Ended, repo: Path, kind: Kind) -> None:
    """A query for the label finds the run with the verdict and all of the journal's steps."""
    assert ended.record is not None, ended.stderr
    assert ended.record.verdict is not None
    assert ended.record.verdict.kind == kind
    assert ended.record.aim is not None
    assert (ended.record.aim["state"], ended.record.aim["reason"]) == ("complete", None)
    [run] = query(repo, "run.benchmark.labels.team == 'search'")
    assert (run["name"], run["experiment"]) == (ended.record.case_id, ended.record.labels["experiment"])
    assert (run["benchmark"]["verdict"], run["benchmark"]["reason"]) == (kind, ended.record.verdict.reason)
    journal = steps(pod.job)
    assert journal
    found, values, _ = run["series"]['loss {"rank": 0}']
    told = [event for event in journal if event["loss"] is not None]
    assert (found, values) == ([event["step"] for event in told], pytest.approx([event["loss"] for event in told]))
    assert run["series"]["__system__cpu {}"][0]


@pytest.mark.parametrize(("mode", "kind"), [("success", Kind.NONE), ("oom", Kind.GPU_OOM)])
def test_a_run_is_found_in_the_default_repo(pod: Pod, mode: str, kind: Kind) -> None:
    ended = pod.run(*PATIENT, "--label", "team=search", "--", "train.py", mode)
    assert f"harness: the run goes to the Aim repo {pod.job_dir}\n" in ended.stderr
    check_is_found(pod, ended, pod.job_dir, kind)


def test_a_run_is_found_after_sigkill_of_the_trainer(pod: Pod) -> None:
    process = pod.start(*PATIENT, "--aim-repo", "repo", "--label", "team=search", "--", "steps.py", "10000")
    eventually(lambda: process.poll() is not None or len(steps(pod.job)) >= 3)
    [start] = [event for _, event in read_events(pod.job.events(0)) if event["e"] == "start"]
    os.kill(start["pid"], signal.SIGKILL)
    check_is_found(pod, pod.end(process), pod.root / "repo", Kind.KILLED)


def test_a_run_is_found_after_the_time_limit(pod: Pod) -> None:
    ended = pod.run(
        *(*PATIENT, "--aim-repo", "repo", "--label", "team=search"), "--time-limit", "20s", "--", "steps.py", "10000"
    )
    check_is_found(pod, ended, pod.root / "repo", Kind.TIMEOUT)


SCENARIOS = """
defaults: {processes: 1, trainer: {kind: script, target: ../train.py}}
scenarios:
  - {name: first, trainer: {args: [success]}}
  - {name: second, trainer: {args: [oom]}}
  - {name: third, trainer: {args: [success]}}
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_all_cases_of_a_session_are_in_its_repo(make_bench: Callable[[str], Bench], workers: str) -> None:
    bench = make_bench(SCENARIOS)
    done = bench.run("-n", workers, *PATIENT, "--label", "team=search")
    assert done.returncode == 0, done.stdout
    results = bench.root / "results"
    assert f"harness: runs go to the Aim repo {results}\n" in done.stdout
    records = [read_record(path) for path in bench.session.glob("*/record.json")]
    assert [record.aim and (record.aim["state"], record.aim["reason"]) for record in records] == [
        ("complete", None)
    ] * 3
    assert all(record.measurements is not None for record in records)
    found = query(results, "run.benchmark.labels.team == 'search' and run.benchmark.verdict != None")
    assert names(found) == ["first-1proc", "second-1proc", "third-1proc"]
    assert processes_naming(bench.root) == []


LONG = "{name: long, processes: 1, trainer: {kind: script, target: ../steps.py, args: ['10000']}}"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_job_of_an_interrupted_session_is_found(make_bench: Callable[[str], Bench], workers: str) -> None:
    bench = make_bench(LONG)
    process = bench.start("-n", workers, "--aim-repo", "repo", "--label", "team=search")
    job = JobPaths(bench.root / "results" / "latest" / "long-1proc" / "attempt-1")
    eventually(lambda: process.poll() is not None or (len(steps(job)) >= 3 and tracked(job) > 0))
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 2
    assert processes_naming(bench.root) == []
    record = read_record(bench.session / "long-1proc" / "record.json")
    assert record.verdict is not None
    assert record.aim is not None
    assert (record.verdict.kind, record.aim["state"]) == (Kind.KILLED, "complete"), record.aim
    [run] = query(bench.root / "repo", "run.benchmark.labels.team == 'search'")
    assert run["benchmark"]["verdict"] == "killed"
    assert run["series"]['loss {"rank": 0}'][0] == [event["step"] for event in steps(job)]


def tracked(job: JobPaths) -> int:
    """Values that Aim has taken so far."""
    return (read_document(job.root / "forwarder.json") or {}).get("tracked") or 0


def test_an_interpreter_without_aim_costs_no_verdict(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    done = bench.run("--aim-python", "/no/such/python")
    assert done.returncode == 0, done.stdout
    told = read_record(bench.session / "plain-1proc" / "record.json").aim
    assert told is not None
    assert told["state"] == "failed"
    assert "/no/such/python" in told["reason"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_no_forwarder_outlives_the_session(make_bench: Callable[[str], Bench], workers: str) -> None:
    bench = make_bench(SCENARIO)
    (bench.root / "stuck").write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    (bench.root / "stuck").chmod(0o700)
    done = bench.run("-n", workers, "--aim-python", "./stuck", "--aim-timeout", "100ms")
    assert done.returncode == 0, done.stdout
    told = read_record(bench.session / "plain-1proc" / "record.json").aim
    assert told is not None
    assert (told["state"], told["reason"]) == ("failed", "the forwarder was not done in time and was killed")
    assert told["ended"] is not None
    assert processes_naming(bench.root) == []
