"""Memory that the sampler saw: peaks, and a rise over the measured steps."""

import itertools
from typing import Any

import pytest

from harness.journal import Event
from harness.metrics.sampled import MOST, Series
from tests.unit.journals import event, step
from tests.unit.metrics.recorded import journal, measure

GIB, MIB = 2**30, 2**20
GPU, OTHER = "GPU-a", "GPU-b"


def host(rise: int = 0, seconds: int = 21) -> list[Event]:
    """A sample a second, from before the first step to the last."""
    return [event("sample", n, tree={"rss_bytes": GIB + rise * n // 20}) for n in range(seconds)]


def gpu(rise: int = 0, uuid: str = GPU, **fields: Any) -> list[Event]:
    return [event("gpu_sample", n, uuid=uuid, memory_used_bytes=GIB + rise * n // 20, **fields) for n in range(21)]


@pytest.mark.parametrize(
    "samples, flagged",
    [
        pytest.param(host(), None, id="level"),
        pytest.param(host(10 * MIB), None, id="less-than-64-MiB"),
        pytest.param(host(200 * MIB), "the host's memory rose from 1.07 GiB to 1.16 GiB", id="host"),
        pytest.param(host(-200 * MIB), None, id="falls"),
        pytest.param(host(20 * GIB, seconds=11), None, id="too-few-samples-of-the-window"),
        pytest.param(host() + gpu(200 * MIB), "GPU-a's memory rose from 1.07 GiB to 1.16 GiB", id="gpu"),
        pytest.param(gpu() + gpu(200 * MIB, OTHER), "GPU-b's memory rose", id="one-of-two-gpus"),
        pytest.param(host(200 * MIB) + gpu(200 * MIB), "halves); GPU-a's memory rose", id="both"),
        pytest.param([e | {"memory_used_bytes": None} for e in gpu(GIB)], None, id="a-gpu-that-does-not-tell"),
    ],
)
def test_memory_that_rises_over_the_measured_steps(samples: list[Event], flagged: str | None) -> None:
    """20 steps that end a second apart; the first three are cut off."""
    flag = measure(journal(), samples=samples).flags.get("memory_drifting")
    assert (flag is None) == (flagged is None)
    assert (flagged or "") in (flag or "")


def test_what_is_loaded_before_the_window_and_freed_after_it_is_no_rise() -> None:
    loading = [event("sample", n, tree={"rss_bytes": n * GIB}) for n in range(-20, 3)]
    saving = [event("sample", n, tree={"rss_bytes": 90 * GIB}) for n in range(21, 60)]
    measured = measure(journal(), samples=[*loading, *host()[4:], *saving])
    assert "memory_drifting" not in measured.flags
    assert measured.host_peak_rss_bytes == 90 * GIB


def test_a_gpu_that_no_rank_trains_on_does_not_count() -> None:
    recorded = journal()
    recorded.of("model")[0]["device_uuid"] = GPU
    assert "memory_drifting" not in measure(recorded, samples=gpu() + gpu(GIB, OTHER)).flags
    assert "GPU-a" in measure(recorded, samples=gpu(GIB) + gpu(uuid=OTHER)).flags["memory_drifting"]


def test_odd_lines_are_passed_over() -> None:
    odd: list[Event] = [{"e": "sample"}, {"e": "sample", "m": 5.0, "tree": 7}, {"e": "gpu_sample", "m": None}]
    measured = measure(journal(), samples=[*odd, *host()])
    assert measured.host_peak_rss_bytes == GIB


@pytest.mark.parametrize("seconds", [1, 4096, 4097, 50_000])
def test_a_long_series_is_kept_small_and_keeps_its_peak(seconds: int) -> None:
    series = Series()
    for m in range(seconds):
        series.take(float(m), m ^ 1)
    assert len(series.held) <= MOST
    assert len(series.held) == seconds or len(series.held) > MOST // 2
    assert max(count for _, count in series.held) == max(m ^ 1 for m in range(seconds))
    times = [m for m, _ in series.held]
    assert times[0] == 0.0
    assert len({late - early for early, late in itertools.pairwise(times)}) <= 1  # evenly spread


def test_without_a_window_nothing_rises() -> None:
    recorded = journal(steps=0, extra=[step(1, ended_m=None)])
    assert "memory_drifting" not in measure(recorded, samples=host(GIB)).flags
