"""What is made of a job's journals: the sampler's is read once, and its figures meet those of the steps."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harness import metrics
from harness.attempt.result import measure
from harness.journal import RankJournal
from harness.probe.layout import JobPaths, attempt
from tests.unit.journals import T0, event, rank, step, tokens

UUID = "GPU-11111111-2222-4333-8444-555555555555"


def trained(number: int, uuid: str | None, steps: int = 20) -> RankJournal:
    """A step a second, 100 tokens each."""
    events = [event("model", device="cuda:0", device_uuid=uuid), event("segment", segment=0, batch_ran=2)]
    for n in range(1, steps + 1):
        events += [step(n, 1.0, ended_m=float(n)), tokens(n, 100)]
    return rank(number, *events)


def sampled(m: int, uuids: Iterable[str]) -> list[dict[str, Any]]:
    """A second of the sampler's."""
    base = {"t": T0 + m, "m": float(m)}
    tree = {"processes": 1, "rss_bytes": 1000 + m, "pss_bytes": 500 + m, "cpu_s": float(m)}
    gpu = {"processes": [], "power_w": 100.0, "energy_j": 100.0 * m, "temperature_c": 40}
    return [
        base | {"e": "sample", "tree": tree, "host": {}, "cgroup": {}, "sampler": {}},
        *({**base, "e": "gpu_sample", "uuid": uuid, **gpu} for uuid in uuids),
    ]


def written(folder: Path, seconds: int, uuids: Iterable[str] = (UUID,)) -> JobPaths:
    job = attempt(folder, 1)
    job.node().mkdir(parents=True)
    with job.system_journal().open("w") as file:
        lines: list[dict[str, Any]] = [{"t": T0, "m": 0.0, "e": "start", "interval_s": 1.0}]
        lines += [{"t": T0, "m": 0.0, "e": "gpu", "uuid": uuid, "whole_uuid": uuid, "index": 0} for uuid in uuids]
        for line in lines:
            file.write(json.dumps(line) + "\n")
        for m in range(seconds + 1):
            for line in sampled(m, uuids):
                file.write(json.dumps(line) + "\n")
    return job


def test_steps_and_samples_meet(tmp_path: Path) -> None:
    other = UUID.replace("1111", "aaaa")
    ranks = [trained(0, UUID), trained(1, other), trained(2, None)]
    measured, told = measure(written(tmp_path, 25, [UUID, other]), ranks, metrics.Job())
    assert measured is not None
    assert told.window is not None
    assert told.window.host is not None
    assert told.window.energy is not None
    assert [gpu.ranks for gpu in told.gpus] == [(0,), (1,)]
    seconds = told.window.host.seconds
    assert seconds == 20 - measured.first_cut
    assert told.window.energy.counter_j == pytest.approx(2 * 100 * seconds)
    # Three ranks make 300 tokens a second, two GPUs draw 200 W.
    assert told.window.joules_per_million_tokens == pytest.approx(2e8 / 300)
    assert told.job.joules_per_million_tokens == pytest.approx(2 * 100 * 25 / (300 * 20) * 1e6)
    assert (measured.host_peak_rss_bytes, measured.host_peak_pss_bytes) == (1025, 525)


READ = """
import json, resource, sys
from harness import metrics
from harness.attempt.result import measure
from harness.probe.layout import JobPaths
from tests.unit.attempt.test_result import UUID, trained
from pathlib import Path
measured, told = measure(JobPaths(Path(sys.argv[1])), [trained(0, UUID)], metrics.Job())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([peak, measured.host_peak_rss_bytes, told.gpus[0].job.energy.counter_j]))
"""


@pytest.mark.slow
def test_a_day_takes_no_more_memory_than_two_hours(tmp_path: Path) -> None:
    peaks = {}
    for seconds in (7_200, 86_400):
        job = written(tmp_path / str(seconds), seconds)
        told = subprocess.run([sys.executable, "-c", READ, str(job.root)], check=True, capture_output=True)
        peaks[seconds], rss_bytes, joules = json.loads(told.stdout)
        assert rss_bytes == 1000 + seconds
        assert joules == pytest.approx(100 * seconds)
    assert peaks[86_400] < 1.2 * peaks[7_200]
