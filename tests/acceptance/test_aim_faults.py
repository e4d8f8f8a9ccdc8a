"""Real faults of Aim under a real job: verdict, exit code and series are those of the same job without Aim."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from harness.record import Kind
from tests.acceptance.conftest import Ended, Pod
from tests.aim_faults import (
    FAULTS,
    STEPS,
    Fault,
    bare_python,
    fault_id,
    forwarder_killed,
    full_disk,
    is_struck_at,
    needs_aim,
    server_frozen,
    server_killed,
)
from tests.unit.jobs import eventually

pytestmark = [pytest.mark.slow, needs_aim]

TIMEOUT_S = 6.0
CONTRACT_S = TIMEOUT_S + 5.0  # from the job's end
BUSY_S = 10.0  # a machine that does more than this test

LASTS = {full_disk, server_killed, server_frozen}  # the forwarder is still there after the job's end


def series(job: JobPaths) -> list[dict[str, Any]]:
    """What was measured and does not depend on time."""
    names = ("e", "step", "segment", "loss", "grad_norm", "learning_rate", "padded", "non_pad", "trainable", "samples")
    told = [event for _, event in read_events(job.events(0)) if event["e"] in ("step", "tokens")]
    return [{name: event[name] for name in names if name in event} for event in told]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, list[dict[str, Any]]]:
    """The same job with --no-aim: how it ended, and its series."""
    with Pod.open(tmp_path_factory.mktemp("reference")) as pod:
        ended = pod.run("--no-aim", "--", "steps.py", str(STEPS))
        found = series(pod.job)
    assert ended.record is not None, ended.stderr
    assert ended.record.aim is None
    assert len([each for each in found if each["e"] == "step"]) == STEPS
    assert len({each["loss"] for each in found if each["e"] == "step"}) > STEPS // 2
    return ended, found


@pytest.mark.parametrize("fault", FAULTS, ids=fault_id)
def test_a_fault_of_aim_changes_nothing(
    pod: Pod, reference: tuple[Ended, list[dict[str, Any]]], fault: Callable[[Path], AbstractContextManager[Fault]]
) -> None:
    state, reason = FAULTS[fault]
    expected, expected_series = reference
    with fault(pod.root) as given:
        strike = given.strike
        gate = ["gate"] if strike else []
        options = ["--aim-repo", given.repo]
        options += ["--aim-python", str(bare_python(pod.root / "venv"))] if given.without_aim else []
        process = pod.start("--aim-timeout", f"{TIMEOUT_S:g}s", *options, "--", "steps.py", str(STEPS), *gate)
        if strike is not None:
            eventually(lambda: process.poll() is not None or is_struck_at(pod.job))
            strike()
            (pod.root / "gate").touch()
        ended = pod.end(process)
        over = time.time()

    assert ended.code == expected.code == 0, ended.stderr
    assert ended.record is not None
    assert expected.record is not None
    assert (ended.record.verdict, ended.log["kind"]) == (expected.record.verdict, Kind.NONE)
    assert series(pod.job) == expected_series

    told = ended.record.aim
    assert told is not None
    assert told == read_document(pod.job.root / "forwarder.json")
    assert (told["state"], told["indexed"]) == (state, False)
    assert ("SIGKILL" if fault is forwarder_killed else reason) in told["reason"]

    job_ended = ended.record.attempts[-1].ended
    assert job_ended is not None
    assert told["ended"] - job_ended < CONTRACT_S + BUSY_S
    assert over - job_ended < CONTRACT_S + BUSY_S
    if fault in LASTS:  # the lease was free before
        assert released(pod) < told["ended"]
        assert told["ended"] > job_ended
    assert pod.living() == []


def released(pod: Pod) -> float:
    """When the job's lease was given back."""
    events = [json.loads(line) for line in (pod.job_dir / "leases.jsonl").read_text().splitlines()]
    return float(next(event["t"] for event in events if event["e"] == "released"))
