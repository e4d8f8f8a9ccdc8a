"""GPUs of a stand-in driver are leased: by several workers, by two sessions, not while someone else computes."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_events
from harness.record import read_record
from harness.telemetry import summarise
from tests.acceptance.conftest import Bench, properties
from tests.conftest import FakeNvml
from tests.unit.jobs import eventually

pytestmark = pytest.mark.slow

SCENARIOS = """
defaults:
  measure: {steps: none}
  trainer: {kind: script, target: ../show_gpus.py, args: ["0.7"]}
scenarios:
  - {name: one, gpus: 1, matrix: {labels.number: ["1", "2", "3", "4"]}}
  - {name: two, gpus: 2, matrix: {labels.number: ["1", "2"]}}
  - {name: four, gpus: 4}
  - {name: big, gpus: 1, needs: {gpu_memory: 200GiB}}
"""
UUIDS = [f"GPU-fa4e0000-0000-4000-8000-{index:012d}" for index in range(4)]


def start(bench: Bench, environ: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        bench.command(*arguments),
        cwd=bench.root,
        env=bench.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def lease_events(*sessions: Path) -> list[dict[str, Any]]:
    """Acquired and released, of all sessions in the order of time."""
    lines = [line for session in sessions for line in (session / "leases.jsonl").read_text().splitlines()]
    events = [event for line in lines if (event := json.loads(line))["e"] in ("acquired", "released")]
    return sorted(events, key=lambda event: event["t"])


def most_at_once(events: list[dict[str, Any]]) -> int:
    """How many GPUs were held at the same time at most; fails when one was held twice."""
    held: set[str] = set()
    most = 0
    for event in events:
        if event["e"] == "acquired":
            assert not held & set(event["ids"])
            held |= set(event["ids"])
        else:
            held -= set(event["ids"])
        most = max(most, len(held))
    assert not held
    return most


def environ_of(fake: FakeNvml, count: int = 4, script: Path | None = None) -> dict[str, str]:
    wanted = ("LD_LIBRARY_PATH", "FAKE_NVML_COUNT", "FAKE_NVML_SCRIPT")
    return {name: value for name, value in fake.environ(count, script).items() if name in wanted}


def test_workers_share_the_gpus(make_bench: Callable[[str], Bench], fake_nvml: FakeNvml) -> None:
    bench = make_bench(SCENARIOS)
    output = finish(start(bench, environ_of(fake_nvml), "-n", "auto"))
    assert "4 GPUs" in output
    assert "4 workers" in output
    events = lease_events(bench.session)
    assert most_at_once(events) == 4
    assert len([event for event in events if event["e"] == "acquired"]) == 7
    cases = bench.case_elements()
    assert "200" in properties(cases["big-1gpu"])["verdict_reason"]
    assert properties(cases["big-1gpu"])["verdict"] == "not_run"
    for path in bench.session.glob("*/record.json"):
        record = read_record(path)
        lease = record.attempts[0].lease
        log = (path.parent / "attempt-1" / "rank-0" / "stdout.log").read_text()
        assert f"GPUS {','.join(lease.gpus)} " in log
        assert set(lease.gpus) <= set(UUIDS)
        assert lease.gpu_names == ["NVIDIA H100 80GB HBM3"] * len(lease.gpus)


def test_the_leased_gpus_are_sampled(make_bench: Callable[[str], Bench], fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Two of eight; whose energy is known, and the rest of the machine's is nobody's business."""
    script = tmp_path / "gpus.txt"
    script.write_text("0 * power_mw 200000\n")
    bench = make_bench(
        "{name: two, gpus: 2, measure: {steps: none}, trainer: {kind: script, target: ../show_gpus.py, args: ['4']}}"
    )
    finish(start(bench, environ_of(fake_nvml, 8, script), "-o", "harness_sampler_interval=100ms"))
    (path,) = bench.session.glob("*/record.json")
    lease = read_record(path).attempts[0].lease
    told = summarise(event for _, event in read_events(path.parent / "attempt-1" / "node-0" / "system.jsonl"))
    assert [gpu.uuid for gpu in told.gpus] == lease.gpus
    assert told.interval_s == 0.1
    for gpu in told.gpus:
        assert gpu.job is not None
        assert (gpu.job.power_mean_w, gpu.contended, gpu.reason) == (200.0, False, None)
        assert gpu.job.energy.counter_j == pytest.approx(200.0 * gpu.job.seconds, rel=0.1)
    assert told.job.host is not None
    assert told.job.host.processes_peak is not None


def test_a_gpu_that_is_shared_and_held_down_marks_the_case(
    make_bench: Callable[[str], Bench], fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    """Somebody begins to compute on it once the job runs: nothing is discarded, and everybody is told."""
    script, epoch = tmp_path / "gpus.txt", time.time()
    script.write_text("0 0 reasons 0x40\n0 0 temp 61\n0 0 sm_mhz 1200\n")
    bench = make_bench(
        "{name: one, gpus: 1, measure: {steps: none}, trainer: {kind: script, target: ../show_gpus.py, args: ['5']}}"
    )
    environ = environ_of(fake_nvml, 1, script) | {"FAKE_NVML_T0": repr(epoch)}
    process = start(bench, environ, "-o", "harness_sampler_interval=100ms")
    eventually(lambda: any("gpu_sample" in path.read_text() for path in bench.root.rglob("system.jsonl")))
    with script.open("a") as file:
        file.write(f"{time.time() - epoch} 0 procs {os.getpid()}:600\n")
    output = finish(process)
    why = f"contended: process {os.getpid()} computed on its GPUs, too; throttled for 100% of the time; "
    assert f"* one-1gpu: {why}began at 61 degrees C, 1200 MHz" in output
    told = properties(bench.case_elements()["one-1gpu"])
    assert (told["verdict"], told["contended"], told["foreign_pids"]) == ("none", "true", str(os.getpid()))
    assert (told["throttled_share"], told["gpu_start_temperature_c"], told["gpu_start_sm_clock_mhz"]) == (
        "1",
        "61",
        "1200",
    )
    (path,) = bench.session.glob("*/record.json")
    record = read_record(path)
    assert record.telemetry is not None
    assert (record.telemetry.contended, record.telemetry.gpus[0].foreign_pids) == (True, (os.getpid(),))
    facts = record.environment["doctor"]
    assert [gpu["uuid"] for gpu in facts["gpus"]] == UUIDS[:1]


def test_two_sessions_at_once_never_overlap(make_bench: Callable[[str], Bench], fake_nvml: FakeNvml) -> None:
    benches = [make_bench(SCENARIOS), make_bench(SCENARIOS)]
    locks = {"HARNESS_LOCK_DIR": str(benches[0].root / "locks")}
    processes = [start(bench, environ_of(fake_nvml) | locks, "-n", "2") for bench in benches]
    for process in processes:
        finish(process)
    events = lease_events(*(bench.session for bench in benches))
    assert most_at_once(events) <= 4
    assert len(events) == 28


def test_the_pool_is_what_is_visible(make_bench: Callable[[str], Bench], fake_nvml: FakeNvml) -> None:
    bench = make_bench(SCENARIOS)
    visible = {"CUDA_VISIBLE_DEVICES": "3,1"}
    finish(start(bench, environ_of(fake_nvml) | visible, "-k", "one or two or four", "--gpus", "2"))
    assert {gpu for event in lease_events(bench.session) for gpu in event["ids"]} == {UUIDS[3], UUIDS[1]}
    assert properties(bench.case_elements()["four-4gpu"])["verdict"] == "not_run"


def test_a_gpu_on_which_someone_computes_is_waited_for(
    make_bench: Callable[[str], Bench], fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    script = tmp_path / "gpus.txt"
    began = time.time()
    script.write_text(f"0 0 procs {os.getpid()}:600\n6 0 procs ,\n")
    environ = environ_of(fake_nvml, 1, script) | {"FAKE_NVML_T0": str(began)}
    bench = make_bench(
        "{name: one, gpus: 1, measure: {steps: none}, trainer: {kind: script, target: ../show_gpus.py, args: ['0']}}"
    )
    finish(start(bench, environ))
    (acquired,) = [event for event in lease_events(bench.session) if event["e"] == "acquired"]
    assert acquired["t"] - began >= 6
