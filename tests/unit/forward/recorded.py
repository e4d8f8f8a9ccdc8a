"""Recorded jobs, hand-made and small, and a reader of Aim's SDK in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.forward.start import Aim
from harness.probe.layout import JobPaths
from tests.unit import journals

STEPS = 6

# how a job ended -> (why of end.json, exit code, kind and reason of the verdict)
OUTCOMES: dict[str, tuple[str, int | None, str, str]] = {
    "success": ("exit", 0, "none", "6 steps"),
    "oom": ("exit", 1, "gpu_oom", "rank 0, step 7: CUDA out of memory. Tried to allocate 2.00 GiB"),
    "sigkill": ("exit", -9, "killed", "rank 0 was ended by SIGKILL"),
    "time-limit": ("time_limit", -15, "timeout", "the time limit of 60 s passed at step 6"),
}

READER = """
import json, sys
from aim.sdk.repo import Repo
from aim.sdk.types import QueryReportMode

repo, found = Repo(sys.argv[1]), []
for row in repo.query_runs(sys.argv[2], report_mode=QueryReportMode.DISABLED).iter_runs():
    run, series = row.run, {}
    for metric in run.metrics():
        steps, (values, _, times) = metric.data.numpy()
        key = metric.name + " " + json.dumps(metric.context.to_dict(), sort_keys=True)
        series[key] = [steps.tolist(), values.tolist(), times.tolist()]
    found.append({
        "hash": run.hash, "name": run.name, "experiment": run.experiment, "tags": run.tags, "active": run.active,
        "benchmark": run["benchmark"], "series": series,
    })
print(json.dumps(found))
sys.stdout.flush()
import os
os._exit(0)
"""


def sample(number: int) -> dict[str, Any]:
    tree = {"processes": 1, "rss_bytes": 2**30, "pss_bytes": None, "cpu_s": number / 2, "threads": 1}
    host = {"memory_total_bytes": 2**32, "memory_available_bytes": 2**31, "cpu_percent": 50.0, "load1": 1.0}
    return journals.event("sample", number, tree=tree, host=host, sampler={"poll_s": 0.001, "cpu_s": 0.1})


def append(path: Path, *events: dict[str, Any], torn: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events) + torn)


def make_job(
    case_dir: Path,
    outcome: str | None = "success",
    timeout_s: float = 40.0,
    steps: int = STEPS,
    ranks: int = 1,
    lock: Path | None = None,
    labels: dict[str, Any] | None = None,
) -> JobPaths:
    """A job directory and its record; with no outcome it still runs."""
    job = JobPaths(case_dir / "attempt-1")
    job.node().mkdir(parents=True)
    document = {
        "schema": 1,
        "job_id": f"id-{case_dir.name}",
        "case_id": case_dir.name,
        "attempt": 1,
        "labels": labels or {"experiment": "night", "team": "tuning", "commit": case_dir.name},
        "scenario": {"name": "tiny", "tags": ["tiny", "cpu"], "env": {}, "model": None, "training": {"max_steps": 6}},
        "aim": {"timeout_s": timeout_s, "index_lock": str(lock) if lock else None},
    }
    job.job.write_text(json.dumps(document))
    for rank in range(ranks):
        lines = [event for n in range(1, steps + 1) for event in (journals.step(n), journals.tokens(n))]
        append(job.events(rank), journals.event("start"), *lines, torn='{"t": 1, "e": "st')
    append(job.system_journal(), *map(sample, range(4)))
    if outcome is not None:
        end(job, outcome)
    return job


def end(job: JobPaths, outcome: str = "success") -> None:
    """What supervisor and harness write at a job's end."""
    why, code, kind, reason = OUTCOMES[outcome]
    verdict = {"kind": kind, "reason": reason, "rank": None if kind == "none" else 0, "step": None}
    record = {"state": "finished", "attempts": [{"number": 1, "verdict": verdict}], "verdict": verdict}
    (job.root.parent / "record.json").write_text(json.dumps(record))
    partial = job.end.with_name("end.json.tmp")
    partial.write_text(json.dumps({"schema": 1, "why": why, "exit_code": code}))
    os.replace(partial, job.end)


def aim(repo: Path | str, timeout_s: float = 40.0) -> Aim:
    return Aim(str(repo), sys.executable, timeout_s)


def query(repo: Path, expression: str) -> list[dict[str, Any]]:
    """The runs that a reader of Aim's SDK finds, with their series: (steps, values, times)."""
    return run_python(READER, str(repo), expression)


def run_python(source: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def names(runs: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(run["name"] for run in runs)
