"""A job's labels and series in a real Aim repo, found again by a query."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.record import read_record
from tests.acceptance.conftest import Bench

TARGET = Path(__file__).parent / "targets" / "train.py"
QUERY = """
import json, sys
from aim import Repo
from aim.sdk.types import QueryReportMode
repo = Repo(sys.argv[1])
found = []
for item in repo.query_runs(sys.argv[2], report_mode=QueryReportMode.DISABLED).iter_runs():
    run = item.run
    series = {m.name: len(m.values.sparse_list()[0]) for m in run.metrics()}
    found.append({"name": run.name, "experiment": run.experiment, "benchmark": run["benchmark"], "series": series})
print(json.dumps(found))
"""

SCENARIO = "{name: plain, processes: 1, trainer: {kind: script, target: ../train.py, args: [success]}}"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="aim has no wheel for Python 3.13 and later"),
]


@pytest.mark.parametrize(("mode", "code", "verdict", "steps"), [("success", 0, "none", 6), ("oom", 204, "gpu_oom", 2)])
def test_a_run_is_found_by_its_label(tmp_path: Path, mode: str, code: int, verdict: str, steps: int) -> None:
    environ = {**os.environ, "HARNESS_LOCK_DIR": str(tmp_path / "locks"), "OMP_NUM_THREADS": "1"}
    command = ["harness.cli", "exec", "--job-dir", "job", "--aim-repo", "aim", "--label", f"team=search-{mode}"]
    start = "import sys; from harness.cli import main; sys.argv = sys.argv[1:]; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *command, "--", str(TARGET), mode],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    record: dict[str, Any] = json.loads((tmp_path / "job" / "record.json").read_text())
    assert (record["aim"]["state"], record["aim"]["reason"]) == ("complete", None)
    found = query(tmp_path / "aim", f"run.benchmark['labels']['team'] == 'search-{mode}'")
    assert len(found) == 1
    (run,) = found
    assert run["benchmark"]["verdict"] == verdict
    assert run["name"] == record["case_id"]
    assert run["experiment"] == record["labels"]["experiment"]
    assert run["series"]["loss"] == steps


def query(repo: Path, expression: str) -> list[dict[str, Any]]:
    asked = [sys.executable, "-W", "ignore", "-c", QUERY, str(repo), expression]
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )
    return found


def test_a_case_of_pytest_is_found_too(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    done = bench.run("--aim-repo", "runs", "--label", "team=search")
    assert done.returncode == 0, done.stdout
    (run,) = query(bench.root / "runs", "run.benchmark['labels']['team'] == 'search'")
    assert run["name"] == "plain-1proc"
    assert run["benchmark"]["verdict"] == "none"


def test_an_interpreter_without_aim_costs_no_verdict(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    done = bench.run("--aim-repo", "runs", "--aim-python", "/no/such/python")
    assert done.returncode == 0, done.stdout
    told = read_record(bench.session / "plain-1proc" / "record.json").aim
    assert told is not None
    assert told["state"] == "failed"
    assert "/no/such/python" in told["reason"]
