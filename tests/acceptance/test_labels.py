"""The labels of a job in the three places where they are looked for, for pytest and for `harness exec`."""

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.record import read_record
from tests.acceptance.conftest import Bench, Pod, properties
from tests.aim_faults import needs_aim
from tests.unit.forward.recorded import query

pytestmark = [pytest.mark.slow, needs_aim]

CI = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "17"}
CI_JOB = "https://github.com/a/b/actions/runs/17"
SCENARIO = """
name: own
processes: 1
trainer: {target: ../train.py, args: [success]}
labels: {team: search, host: node-of-the-scenario}
"""


def commit(folder: Path) -> str:
    """Make the folder a repository, with what is in it; returns the commit."""
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()[:12]


def test_record_junit_and_aim_say_the_same(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    state = commit(bench.root)
    (bench.root / "test_bench.py").write_text("def test_bench(tuning):\n    tuning.check()  # changed\n")
    done = bench.run("--aim-repo", "runs", "--aim-timeout", "2m", "--label", "run=7", environ=CI)
    assert done.returncode == 0, done.stdout
    record = read_record(bench.session / "own-1proc" / "record.json")
    assert record.labels == {
        "experiment": "own",
        "identifier": bench.session.name,
        "git": f"{state}+dirty",
        "ci_job_url": CI_JOB,
        "host": "node-of-the-scenario",  # given ones win
        "team": "search",
        "run": "7",
    }
    junit = properties(bench.case_elements()["own-1proc"])
    assert {key[6:]: value for key, value in junit.items() if key.startswith("label.")} == record.labels
    (found,) = query(bench.root / "runs", f"run.benchmark.labels.git == '{state}+dirty'")
    assert found["benchmark"]["labels"] == record.labels


def test_harness_exec_finds_them_too(pod: Pod) -> None:
    state = commit(pod.root)
    ended = pod.run(
        "--aim-repo", "runs", "--aim-timeout", "2m", "--label", "git=mine", "--", "train.py", "success", **CI
    )
    assert ended.record is not None, ended.stderr
    labels = ended.record.labels
    expected = {"experiment": "train", "git": "mine", "ci_job_url": CI_JOB, "host": platform.node()}
    assert labels == {**expected, "identifier": ended.record.session}
    (found,) = query(pod.root / "runs", "run.benchmark.labels.git == 'mine'")
    assert found["benchmark"]["labels"] == labels
    job = json.loads(pod.job.job.read_bytes())
    assert set(job["default_labels"]) == {"experiment", "identifier", "ci_job_url", "host"}
    assert (ended.record.environment["git"] or {})["commit"].startswith(state)
