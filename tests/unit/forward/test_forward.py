"""Recorded jobs through real forwarders into a real Aim repo, read back by Aim's SDK."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.forward.start import SCRIPT, Forwarder
from harness.journal import read_document
from harness.probe.companions import AIM_REPO
from harness.probe.layout import JobPaths
from tests.unit import journals
from tests.unit.forward.recorded import OUTCOMES, aim, append, end, make_job, names, query
from tests.unit.jobs import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("aim") is None, reason="needs aim"),
]

AT_ONCE = 8
DEADLINE_S = 150.0  # for eight processes that import Aim on two busy cores


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(repo, what each forwarder says): eight at once over recorded journals, two an outcome, into one new repo."""
    folder = tmp_path_factory.mktemp("night")
    cases = [f"{outcome}-{number}" for outcome in OUTCOMES for number in range(AT_ONCE // len(OUTCOMES))]
    jobs = [make_job(folder / case, case.rpartition("-")[0], DEADLINE_S) for case in cases]
    forwarders = [Forwarder.start(job, aim(folder / "repo", DEADLINE_S)) for job in jobs]
    return folder / "repo", [forwarder.wait(DEADLINE_S + 5) for forwarder in forwarders]


def test_eight_at_once_are_all_found(night: tuple[Path, list[dict[str, Any]]]) -> None:
    repo, told = night
    assert [(each["state"], each["reason"], each["indexed"]) for each in told] == [("complete", None, True)] * AT_ONCE
    found = query(repo, "run.benchmark.labels.team == 'tuning'")
    assert sorted(run["hash"] for run in found) == sorted(each["run_hash"] for each in told)
    assert names(found) == sorted(f"{outcome}-{number}" for outcome in OUTCOMES for number in (0, 1))
    assert [each["tracked"] for each in told] == [6 * 5 + 4 * 2 + 3] * AT_ONCE


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_label_finds_the_run_with_its_series(night: tuple[Path, list[dict[str, Any]]], outcome: str) -> None:
    repo, _ = night
    [run] = query(repo, f"run.benchmark.labels.commit == '{outcome}-0' and run.benchmark.verdict != None")
    assert (run["name"], run["experiment"], sorted(run["tags"]), run["active"]) == (
        f"{outcome}-0",
        "night",
        ["cpu", "tiny"],
        False,
    )
    described = run["benchmark"]
    assert (described["verdict"], described["reason"]) == OUTCOMES[outcome][2:]
    assert Path(described["record"]).exists()
    assert described["scenario"]["training"] == {"max_steps": 6}
    steps, values, times = run["series"]['loss {"rank": 0}']
    assert (steps, values) == ([1, 2, 3, 4, 5, 6], pytest.approx([4.9, 4.8, 4.7, 4.6, 4.5, 4.4]))
    assert times == [journals.T0 + n for n in range(1, 7)]  # the events' own
    assert {key.partition(" ")[0] for key in run["series"]} == {
        *("loss", "grad_norm", "learning_rate", "step_time_s", "non_pad_tokens_per_s"),
        *("__system__cpu", "__system__p_memory_percent", "__system__memory_percent"),
    }


def test_experiment_tag_and_verdict_find_runs_too(night: tuple[Path, list[dict[str, Any]]]) -> None:
    repo, _ = night
    expression = "run.experiment == 'night' and 'cpu' in run.tags and run.benchmark.verdict == 'gpu_oom'"
    assert names(query(repo, expression)) == ["oom-0", "oom-1"]


def running(folder: Path, repo: Path | str, timeout_s: float = 30.0) -> tuple[JobPaths, Forwarder]:
    """A job that still runs, and its forwarder, which has tracked what is there."""
    job = make_job(folder / "case", None, timeout_s)
    forwarder = Forwarder.start(job, aim(repo, timeout_s))
    eventually(lambda: (told(job).get("tracked") or 0) >= 6 * 5)
    return job, forwarder


def told(job: JobPaths) -> dict[str, Any]:
    return read_document(job.root / "forwarder.json") or {}


def test_a_job_is_followed_and_a_nan_counted(tmp_path: Path) -> None:
    job, forwarder = running(tmp_path, tmp_path / "repo")
    assert (told(job)["state"], told(job)["ended"]) == ("partial", None)
    append(job.root / "rank-1" / "events.jsonl", journals.step(1, loss="NaN"), journals.step(2))
    end(job)
    done = forwarder.wait(35)
    assert (done["state"], done["skipped"]) == ("complete", 1)
    [run] = query(tmp_path / "repo", "run.benchmark.case_id == 'case'")
    assert run["series"]['loss {"rank": 1}'][0] == [2]


def test_a_forwarder_that_is_killed(tmp_path: Path) -> None:
    _, forwarder = running(tmp_path, tmp_path / "repo")
    assert forwarder.pid is not None
    os.kill(forwarder.pid, signal.SIGKILL)
    done = forwarder.wait(35)
    assert (done["state"], done["indexed"]) == ("partial", False)
    assert "SIGKILL" in done["reason"]
    assert done["ended"] is not None


def test_a_forwarder_that_is_frozen_is_killed_after_the_deadline(tmp_path: Path) -> None:
    job, forwarder = running(tmp_path, tmp_path / "repo")
    assert forwarder.pid is not None
    os.kill(forwarder.pid, signal.SIGSTOP)
    end(job)
    done = forwarder.wait(0.2)
    assert (done["state"], done["indexed"]) == ("partial", False)
    assert "was killed" in done["reason"]


def test_a_record_that_never_comes(tmp_path: Path) -> None:
    job = make_job(tmp_path / "case", "success", 12.0)
    (tmp_path / "case" / "record.json").unlink()
    done = Forwarder.start(job, aim(tmp_path / "repo", 12.0)).wait(17)
    assert (done["state"], done["indexed"]) == ("partial", True)
    assert "nobody has left a verdict" in done["reason"]
    assert names(query(tmp_path / "repo", "run.benchmark.verdict == None")) == ["case"]


@pytest.fixture
def orphan(tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """Starts a forwarder by hand, as the documentation does, with an end of file on its standard input."""

    def start(job: JobPaths, **environ: str) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-I", str(SCRIPT), str(job.root)]
        return subprocess.Popen(
            argv, env={**os.environ, AIM_REPO: str(tmp_path / "repo"), **environ}, stdin=subprocess.DEVNULL
        )

    return start


def test_a_recorded_job_by_hand(tmp_path: Path, orphan: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    awkward = {"experiment": "night", "huge": 2**70, "": "no key", "half": "\udc80", "dotted.and-dashed": "y"}
    job = make_job(tmp_path / "case", lock=tmp_path / "locks" / "aim", labels=awkward)
    with orphan(job, HARNESS_AIM_TIMEOUT_S="60") as process:
        assert process.wait(65) == 0
    assert (told(job)["state"], told(job)["reason"]) == ("complete", None)
    assert (tmp_path / "locks" / "aim").exists()
    [run] = query(tmp_path / "repo", "run.benchmark.labels['dotted.and-dashed'] == 'y'")
    assert run["benchmark"]["labels"] == {
        "experiment": "night",
        "huge": str(2**70),
        "(empty)": "no key",
        "half": "\\udc80",
        "dotted.and-dashed": "y",
    }


def test_a_job_whose_harness_has_died(tmp_path: Path, orphan: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    """Its supervisor ends it, nobody writes a verdict: the series can be found all the same."""
    job = make_job(tmp_path / "case", None)
    with orphan(job) as process:
        eventually(lambda: told(job).get("tracked"))
        job.end.write_text('{"why": "parent_died"}')
        assert process.wait(65) == 0
    assert (told(job)["state"], told(job)["indexed"]) == ("partial", True)
    assert "nobody has left a verdict" in told(job)["reason"]
    assert names(query(tmp_path / "repo", "run.benchmark.labels.team == 'tuning'")) == ["case"]
