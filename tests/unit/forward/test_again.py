"""A job that is forwarded again: its run is written over, whatever became of it the first time."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from harness.forward.start import Aim, Forwarder
from harness.probe.layout import run_hash_of
from tests.aim_faults import needs_aim
from tests.unit import journals
from tests.unit.forward.recorded import aim, append, end, make_job, query
from tests.unit.forward.test_forward import running, told
from tests.unit.jobs import eventually

pytestmark = [pytest.mark.slow, needs_aim]


def forward(where: Aim, folder: Path) -> None:
    job = make_job(folder)
    for _ in range(2):
        assert Forwarder.start(job, where).wait(60)["state"] == "complete"


def test_a_job_has_one_run(tmp_path: Path) -> None:
    forward(aim(tmp_path / "repo"), tmp_path / "case")
    [run] = query(tmp_path / "repo", "run.benchmark.labels.team == 'tuning'")
    assert run["series"]['loss {"rank": 0}'][0] == [1, 2, 3, 4, 5, 6]


def test_after_a_forwarder_that_was_killed(tmp_path: Path) -> None:
    job, forwarder = running(tmp_path, tmp_path / "repo", 40.0)
    assert forwarder.pid is not None
    eventually(lambda: told(job)["tracked"] > 0)
    os.kill(forwarder.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        forwarder.wait(10)
    append(job.events(0), torn="\n")  # ends the torn line
    append(job.events(0), *[journals.step(n) for n in range(7, 10)])
    end(job)
    done = Forwarder.start(job, aim(tmp_path / "repo")).wait(60)
    assert done["state"] == "complete", done
    [run] = query(tmp_path / "repo", "run.benchmark.labels.team == 'tuning'")
    assert run["hash"] == run_hash_of(run["benchmark"]["job_id"])
    assert run["series"]['loss {"rank": 0}'][0] == list(range(1, 10))
