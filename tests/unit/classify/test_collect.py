"""Job directories on disk: logs and the kernel's lines count where the probe saw nothing, and not where it knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.classify import JobEvidence, collect, judge
from harness.journal import Event
from harness.probe.layout import JobPaths
from harness.record import Kind
from tests.unit.classify.test_logs import CLOSED, OOM, summary, trace
from tests.unit.journals import T0, error, event, step

STEPS = [event("start", pid=1001), *(step(n) for n in range(1, 4))]


def make(
    root: Path, end: dict[str, Any], logs: dict[str, str], journals: dict[int, list[Event]] | None = None
) -> JobPaths:
    job = JobPaths(root)
    for name, text in logs.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for rank, events in (journals or {}).items():
        job.rank(rank).mkdir(parents=True, exist_ok=True)
        job.events(rank).write_text("".join(json.dumps(each) + "\n" for each in events))
    job.end.write_text(json.dumps(end))
    return job


def read(job: JobPaths, world_size: int = 2) -> JobEvidence:
    return collect(job, world_size=world_size, expects_steps=True, time_limit_s=60.0)


BAD = {"why": "exit", "exit_code": 1, "oom_kill": 0}


def test_an_exception_that_only_the_log_tells(tmp_path: Path) -> None:
    logs = {"rank-0/stderr.log": trace(CLOSED), "rank-1/stderr.log": trace(OOM)}
    verdict = judge(read(make(tmp_path, BAD, logs)))
    assert (verdict.kind, verdict.rank, verdict.evidence[0].file) == (Kind.GPU_OOM, 1, "rank-1/stderr.log")
    assert [(other.kind, other.rank) for other in verdict.secondary] == [(Kind.NCCL, 0)]


def test_what_the_probe_knows_comes_before_what_a_log_tells(tmp_path: Path) -> None:
    job = make(tmp_path, BAD, {"rank-0/stderr.log": trace(OOM)}, {0: STEPS})
    job.error(0).write_text(json.dumps(error("ValueError", "shard 3", bases=[])))
    verdict = judge(read(job, 1))
    assert (verdict.kind, verdict.evidence[0].file) == (Kind.USER_ERROR, "rank-0/error.json")


def test_a_traceback_of_a_rank_that_went_on_is_no_cause(tmp_path: Path) -> None:
    job = make(
        tmp_path, BAD, {"rank-0/stderr.log": trace("ModuleNotFoundError: No module named 'x'")}, {0: STEPS, 1: STEPS}
    )
    job.error(1).write_text(json.dumps(error("RuntimeError", CLOSED.partition(": ")[2])))
    verdict = judge(read(job))
    assert (verdict.kind, verdict.transient) == (Kind.NCCL, True)
    assert [(other.kind, other.rank) for other in verdict.secondary] == [(Kind.USER_ERROR, 0)]


def test_a_program_that_prints_its_exception_and_leaves_at_once(tmp_path: Path) -> None:
    logs = {"rank-1/stderr.log": trace(OOM), "node-0/launcher.log": summary((0, -15), (1, 3), closed=(0,))}
    verdict = judge(read(make(tmp_path, BAD, logs, {0: STEPS, 1: STEPS})))
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, 1)


def test_an_abort_that_python_does_not_see(tmp_path: Path) -> None:
    logs = {
        "rank-1/stderr.log": "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  x\n",
        "node-0/launcher.log": summary((0, -15), (1, -6), closed=(0,)),
    }
    verdict = judge(read(make(tmp_path, BAD, logs, {0: STEPS, 1: STEPS})))
    assert (verdict.kind, verdict.rank) == (Kind.HOST_OOM, 1)


def test_exit_0_whatever_the_log_says(tmp_path: Path) -> None:
    job = make(tmp_path, BAD | {"exit_code": 0}, {"rank-0/stderr.log": trace(OOM)}, {0: STEPS})
    assert judge(read(job, 1)).kind is Kind.NONE


def test_an_exception_that_was_caught_before_the_time_limit(tmp_path: Path) -> None:
    end = {"why": "time_limit", "exit_code": -15}
    ending = json.dumps({"t": T0 + 50, "e": "ending", "why": "time_limit"})
    job = make(tmp_path, end, {"rank-0/stderr.log": trace(OOM), "node-0/supervisor.jsonl": ending}, {0: STEPS})
    assert judge(read(job, 1)).kind is Kind.TIMEOUT


def test_a_wait_for_the_hub_at_the_time_limit(tmp_path: Path) -> None:
    waiting = "HTTP Error 429 thrown while requesting GET x\nRate limited. Waiting 56.0s before retry [Retry 1/5].\n"
    ending = json.dumps({"t": T0 + 50, "e": "ending", "why": "time_limit"})
    logs = {"rank-0/stderr.log": waiting, "node-0/supervisor.jsonl": ending}
    verdict = judge(read(make(tmp_path, {"why": "time_limit", "exit_code": -15}, logs, {0: STEPS[:1]}), 1))
    assert (verdict.kind, verdict.transient) == (Kind.NETWORK, True)
    assert verdict.reason == "waiting to try again after HTTP status 429; time limit of 60 s reached"


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        pytest.param([{"e": "xid", "uuid": "GPU-1", "xid": 79}], "cuda_error", id="xid-of-the-hardware"),
        pytest.param([{"e": "gpu_lost", "uuid": "GPU-1", "reason": "GPU is lost"}], "cuda_error", id="lost"),
        pytest.param([{"e": "xid", "uuid": "GPU-1", "xid": 31}], "nccl", id="the-applications-own"),
    ],
)
def test_what_the_driver_told_the_sampler(tmp_path: Path, events: list[dict[str, Any]], kind: str) -> None:
    lines = "".join(json.dumps({"t": 1.0, "m": 1.0, **event}) + "\n" for event in [{"e": "sample"}, *events])
    logs = {"rank-0/stderr.log": trace(CLOSED), "node-0/system.jsonl": lines}
    verdict = judge(read(make(tmp_path, BAD, logs)))
    assert str(verdict.kind) == kind
    if kind == "cuda_error":
        assert (verdict.evidence[0].file, verdict.evidence[0].line) == ("node-0/system.jsonl", 2)
        assert "GPU-1" in verdict.reason


def test_the_kernels_lines(tmp_path: Path) -> None:
    kernel = "1000001.5 NVRM: Xid (PCI:0000:1b:00): 79, pid=1001, GPU has fallen off the bus.\n"
    logs = {"rank-0/stderr.log": trace(CLOSED), "node-0/kernel.log": kernel}
    verdict = judge(read(make(tmp_path, BAD, logs, {0: STEPS}), 2))
    assert (verdict.kind, verdict.transient, verdict.rank) == (Kind.CUDA_ERROR, True, 0)
    assert (verdict.evidence[0].file, verdict.evidence[0].line) == ("node-0/kernel.log", 1)


def test_a_kill_of_another_job_on_the_machine(tmp_path: Path) -> None:
    kernel = "1000001.5 Out of memory: Killed process {0} (python3) total-vm:1kB\n"
    logs = {"node-0/launcher.log": summary((0, -15), (1, -9), closed=(0,))}
    for pid, kind in ((77, Kind.KILLED), (1001, Kind.HOST_OOM)):
        verdict = judge(read(make(tmp_path, BAD, logs | {"node-0/kernel.log": kernel.format(pid)})))
        assert (verdict.kind, verdict.rank) == (kind, 1)


def test_an_out_of_memory_error_after_training_names_its_phase(tmp_path: Path) -> None:
    oom = error("torch.OutOfMemoryError", OOM.partition(": ")[2], step=None, phase="save", where="main")
    job = make(tmp_path, BAD, {}, {0: STEPS})
    job.error(0).write_text(json.dumps(oom))
    verdict = judge(read(job, 1))
    assert verdict.reason == "rank 0 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, save"
    assert verdict.phase == "save"


def test_a_program_that_halves_its_batch_until_none_fits(tmp_path: Path) -> None:
    first = error("torch.OutOfMemoryError", OOM.partition(": ")[2], t=1)
    none = error("RuntimeError", "No executable batch size found, reached zero.", t=2, bases=[])
    job = make(tmp_path, BAD, {}, {0: [*STEPS[:1], first]})
    job.error(0).write_text(json.dumps(none))
    verdict = judge(read(job, 1))
    assert (verdict.kind, verdict.transient) == (Kind.GPU_OOM, False)
    assert verdict.reason.startswith(
        "rank 0 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free at first; no batch size fits"
    )


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(trace(OOM))
    job = make(tmp_path / "job", BAD, {"rank-0/stdout.log": ""})
    job.stderr(0).symlink_to(tmp_path / "secret")
    assert judge(read(job, 1)).kind is Kind.UNKNOWN
