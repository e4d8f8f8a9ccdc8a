"""Real faults of Aim under a real job: verdict, exit code and series are those of the same job without Aim."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from harness.record import Kind
from tests.acceptance.conftest import Ended, Pod
from tests.aim_faults import bare_python, fill, free_port, make_old, make_read_only, needs_aim, server, tmpfs
from tests.unit.jobs import eventually, processes_naming

pytestmark = [pytest.mark.slow, needs_aim]

TIMEOUT_S = 6.0
CONTRACT_S = TIMEOUT_S + 5.0  # from the job's end
BUSY_S = 10.0  # a machine that does more than this test
STRUCK_AT = 15  # step at which the program waits until the fault is there
STEPS = 20

Strike = Callable[[], None]  # what is done while the program waits at step 15
Fault = tuple[list[str], Strike | None]  # options of `harness exec`, and the blow


@contextmanager
def not_installed(root: Path) -> Iterator[Fault]:
    yield ["--aim-python", str(bare_python(root / "venv"))], None


@contextmanager
def read_only(root: Path) -> Iterator[Fault]:
    with tmpfs(root / "disk", "1m") as disk:
        make_read_only(disk)
        yield ["--aim-repo", str(disk)], None


@contextmanager
def old_version(root: Path) -> Iterator[Fault]:
    make_old(root / "repo", "0.9")
    yield ["--aim-repo", "repo"], None


@contextmanager
def full_disk(root: Path) -> Iterator[Fault]:
    with tmpfs(root / "disk", "3m") as disk:
        yield ["--aim-repo", str(disk)], lambda: fill(disk / "filler")


@contextmanager
def deleted(root: Path) -> Iterator[Fault]:
    yield ["--aim-repo", "repo"], lambda: shutil.rmtree(root / "repo")


@contextmanager
def server_killed(root: Path) -> Iterator[Fault]:
    with server(root / "repo") as (url, process):
        yield ["--aim-repo", url], lambda: os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def server_frozen(root: Path) -> Iterator[Fault]:
    with server(root / "repo") as (url, process):
        yield ["--aim-repo", url], lambda: os.killpg(process.pid, signal.SIGSTOP)


@contextmanager
def no_server(root: Path) -> Iterator[Fault]:
    yield ["--aim-repo", f"aim://127.0.0.1:{free_port()}"], None


@contextmanager
def forwarder_killed(root: Path) -> Iterator[Fault]:
    def strike() -> None:
        [pid] = processes_naming(f"forward/__main__.py\0{root / 'job' / 'attempt-1'}")
        os.kill(pid, signal.SIGKILL)

    yield ["--aim-repo", "repo"], strike


# fault, state in the record, text of its reason, whether the forwarder is still there after the job's end
FAULTS = [
    (not_installed, "failed", "aim is not installed", False),
    (read_only, "failed", "Read-only file system", False),
    (old_version, "failed", "the repo has version 0.9", False),
    (full_disk, "partial", "free on the disk", True),
    (deleted, "partial", "was it deleted?", False),
    (server_killed, "partial", "wait for the server", True),
    (server_frozen, "partial", "wait for the server", True),
    (no_server, "failed", "Aim Server", False),
    (forwarder_killed, "partial", "SIGKILL", False),
]


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


@pytest.mark.parametrize(
    ("fault", "state", "reason", "lasts"), FAULTS, ids=[fault.__name__.replace("_", "-") for fault, *_ in FAULTS]
)
def test_a_fault_of_aim_changes_nothing(
    pod: Pod,
    reference: tuple[Ended, list[dict[str, Any]]],
    fault: Any,
    state: str,
    reason: str,
    lasts: bool,
) -> None:
    expected, expected_series = reference
    with fault(pod.root) as (options, strike):
        gate = ["gate"] if strike else []
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
    assert reason in told["reason"]

    job_ended = ended.record.attempts[-1].ended
    assert job_ended is not None
    assert told["ended"] - job_ended < CONTRACT_S + BUSY_S
    assert over - job_ended < CONTRACT_S + BUSY_S
    if lasts:  # the lease was free before
        assert released(pod) < told["ended"]
        assert told["ended"] > job_ended
    assert pod.living() == []


def is_struck_at(job: JobPaths) -> bool:
    """Whether the program waits at its step 15, and Aim has taken something of it."""
    steps = [event for _, event in read_events(job.events(0)) if event["e"] == "step"]
    tracked = (read_document(job.root / "forwarder.json") or {}).get("tracked") or 0
    return len(steps) == STRUCK_AT and tracked >= STRUCK_AT


def released(pod: Pod) -> float:
    """When the job's lease was given back."""
    events = [json.loads(line) for line in (pod.job_dir / "leases.jsonl").read_text().splitlines()]
    return float(next(event["t"] for event in events if event["e"] == "released"))
