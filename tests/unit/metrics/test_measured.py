"""Figures from hand-made journals, worked out by hand."""

from itertools import chain
from typing import Any

import pytest

from harness import metrics
from harness.journal import Event, RankJournal, number_segments
from harness.record import Measurements
from tests.unit.journals import T0, event, rank, step, tokens


def measure(*ranks: RankJournal, samples: list[Event] | None = None) -> Measurements:
    measured = metrics.measure(ranks, samples or [], metrics.Job(metrics.Wall(ended=T0 + 100)))
    assert measured is not None
    return measured


def steady(count: int, seconds: float = 0.1, padded: int = 128) -> list[Event]:
    return list(chain.from_iterable((step(n, seconds), tokens(n, padded)) for n in range(1, count + 1)))


def test_no_journal_no_figures() -> None:
    assert metrics.measure([], [], metrics.Job()) is None


def test_the_first_steps_do_not_count() -> None:
    slow_start = [step(1, 9.0), tokens(1), *steady(20)[2:]]
    measured = measure(rank(0, *slow_start))
    assert (measured.steps_seen, measured.first_cut, measured.steps_measured) == (20, 3, 17)
    assert measured.step_time_median_s == pytest.approx(0.1)
    assert measured.window_s == pytest.approx(1.7)
    assert measured.non_pad_tokens_per_s == pytest.approx(1280)


def test_ranks_add_up_and_a_device_gets_its_share() -> None:
    measured = measure(rank(0, *steady(20)), rank(1, *steady(20, padded=64)))
    assert measured.non_pad_tokens_per_s == pytest.approx((128 + 64) / 0.1)
    assert measured.non_pad_tokens_per_s_per_device == pytest.approx((128 + 64) / 0.2)
    assert measured.tokens == {"padded": 3840, "non_pad": 3840, "trainable": 3840, "samples": 80}


def test_the_slowest_rank_sets_the_time() -> None:
    measured = measure(rank(0, *steady(20)), rank(1, *steady(20, seconds=0.2)))
    assert measured.window_s == pytest.approx(3.4)
    assert measured.non_pad_tokens_per_s == pytest.approx(2 * 128 * 17 / 3.4)


def test_rate_is_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    uneven = list(chain.from_iterable((step(n, 0.1 if n % 2 else 0.3), tokens(n, 100)) for n in range(1, 21)))
    measured = measure(rank(0, *uneven))
    seconds = sum(0.1 if n % 2 else 0.3 for n in range(4, 21))
    assert measured.padded_tokens_per_s == pytest.approx(1700 / seconds)


def test_time_for_saving_is_taken_out() -> None:
    events = steady(20)
    events[20] = step(11, 5.1, overhead_seconds=5.0, overhead=["save"])
    measured = measure(rank(0, *events))
    assert (measured.steps_left_out, measured.left_out_for) == (1, ["log", "save", "eval"])
    assert measured.window_s == pytest.approx(1.6)
    assert measured.non_pad_tokens_per_s == pytest.approx(1280)


@pytest.mark.parametrize(
    "tags, left_out_for, left_out, median",
    [
        ([["log"]] * 20, ["save", "eval"], 0, 0.1),
        ([["log", "save"] if n % 4 == 0 else ["log"] for n in range(20)], ["save", "eval"], 4, 0.1),
        ([["log", "eval"]] * 20, [], 0, 0.1),
        ([[]] * 20, ["log", "save", "eval"], 0, 0.1),
    ],
    ids=["every-step-logs", "every-step-logs-some-save", "every-step-evaluates", "none"],
)
def test_steps_are_left_out_while_enough_remain(
    tags: list[list[str]], left_out_for: list[str], left_out: int, median: float
) -> None:
    events = [step(n, 0.1 + len(tag), overhead_seconds=float(len(tag)), overhead=tag) for n, tag in enumerate(tags, 1)]
    measured = measure(rank(0, *events))
    assert (measured.left_out_for, measured.steps_left_out) == (left_out_for, left_out)
    assert measured.step_time_median_s == pytest.approx(median)
    assert ("every_step_disturbed" in measured.flags) == (left_out_for == [])


def test_the_gpus_clock_is_preferred_and_never_mixed_with_the_hosts() -> None:
    events = [step(n, 0.1, device_seconds=0.09, overhead_seconds=0.08, overhead=["log"]) for n in range(1, 21)]
    assert measure(rank(0, *events)).step_time_median_s == pytest.approx(0.09)


def test_unknown_tokens_are_null_and_say_why() -> None:
    events = list(chain.from_iterable((step(n), tokens(n, None, reason="no input_ids")) for n in range(1, 21)))
    measured = measure(rank(0, *events))
    assert measured.non_pad_tokens_per_s is None
    assert measured.reasons["non_pad_tokens_per_s"] == "rank 0: no input_ids"
    assert measured.samples_per_s == pytest.approx(20)


def test_a_step_without_a_count_is_not_a_count_of_zero() -> None:
    measured = measure(rank(0, *[step(n) for n in range(1, 21)]))
    assert measured.padded_tokens_per_s is None
    assert "padded_tokens_per_s" in measured.reasons


def test_only_the_last_segment_is_measured() -> None:
    first = [step(n, 1.0) for n in range(1, 4)]
    second = [step(n, 0.1, segment=1) for n in range(1, 11)]
    stale = [tokens(n, 999) for n in range(1, 4)]  # of the same steps, in the segment before
    segments = [
        event("segment", segment=0, restart=False, batch_asked=8, batch_ran=8, accumulation=1),
        event("segment", segment=1, restart=True, batch_asked=8, batch_ran=4, accumulation=1),
    ]
    counted = [tokens(n, segment=1) for n in range(1, 11)]
    measured = measure(rank(0, *segments, *first, *stale, *second, *counted))
    assert measured.step_time_median_s == pytest.approx(0.1)
    assert measured.tokens["padded"] == 1280
    assert [(s.steps, s.batch_ran, s.restart) for s in measured.segments] == [(3, 8, False), (10, 4, True)]


def test_phases_reach_from_the_process_to_its_end() -> None:
    journal = rank(
        0,
        event("start", 2.0, process_started=T0 + 1.0),
        event("phase", 2.0, name="import"),
        event("phase", 5.0, name="steady"),
        event("phase", 9.0, name="teardown"),
        event("end", 10.0, exit_code=0),
    )
    assert metrics.rank_phases(journal, None) == {"import": 4.0, "steady": 4.0, "teardown": 1.0}


def test_a_killed_rank_phase_ends_with_the_job() -> None:
    assert metrics.rank_phases(rank(0, event("phase", 2.0, name="steady")), T0 + 7.0) == {"steady": 5.0}


def test_peaks_are_the_largest_of_all_ranks_and_samples() -> None:
    memory: dict[str, Any] = {"allocated_peak_bytes": 5, "reserved_peak_bytes": 7, "reason": None}
    small: dict[str, Any] = {"allocated_peak_bytes": 3, "reserved_peak_bytes": 9, "reason": None}
    samples = [event("sample", n, tree={"rss_bytes": n * 10, "pss_bytes": n if n % 2 else None}) for n in range(5)]
    measured = measure(rank(0, event("memory", **memory)), rank(1, event("memory", **small)), samples=samples)
    assert (measured.peak_allocated_bytes, measured.peak_reserved_bytes) == (5, 9)
    assert (measured.host_peak_rss_bytes, measured.host_peak_pss_bytes) == (40, 3)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([event("start", process_started=None)], id="never-stepped"),
        pytest.param([step(1)], id="one-step"),
        pytest.param(steady(20), id="steady"),
        pytest.param([step(n, loss=None, grad_norm=None) for n in range(1, 9)], id="nothing-but-time"),
    ],
)
def test_every_null_has_a_reason(events: list[Event]) -> None:
    measured = measure(rank(0, *events))
    nulls = {name for name, value in measured.model_dump().items() if value is None}
    assert {name for name in measured.reasons if "." not in name} == nulls
    inner = {
        f"{part}.{name}" for part in ("tokens", "phases_s") for name, v in getattr(measured, part).items() if v is None
    }
    assert {name for name in measured.reasons if "." in name} == inner


def test_a_loss_that_turned_nan_is_no_number_of_before() -> None:
    losses: list[Any] = [2.0, 1.9, 1.8, *["NaN"] * 17]
    measured = measure(rank(0, *[step(n, loss=loss, grad_norm="NaN") for n, loss in enumerate(losses, 1)]))
    assert (measured.loss_first, measured.loss_last, measured.grad_norm_last) == (2.0, None, None)
    assert measured.reasons["loss_last"] == "NaN since step 4 of the segment"
    assert measured.reasons["grad_norm_last"] == "NaN since step 1 of the segment"


def training(steps: int, seconds: float, slots: int, batch: int, t: float) -> list[Event]:
    """A process that is the rank, and trains once."""
    told = event("segment", segment=0, restart=False, batch_asked=batch, batch_ran=batch, accumulation=1)
    pairs = ((step(n, seconds, ended_m=t + n * seconds), tokens(n, slots)) for n in range(1, steps + 1))
    return [event("start", process_started=T0 + t), told, *chain.from_iterable(pairs), event("end", exit_code=0)]


def test_the_figures_of_a_rank_that_was_two_processes_are_the_last_ones() -> None:
    turns = [*training(30, 0.05, 16, 2, 1.0), *training(12, 0.3, 64, 8, 10.0)]
    [read] = number_segments([rank(0, *turns)])
    measured = measure(read)
    assert measured.step_time_median_s == pytest.approx(0.3)
    assert measured.tokens["padded"] == 12 * 64
    assert measured.padded_tokens_per_s == pytest.approx(64 / 0.3)
    assert [(s.segment, s.steps, s.batch_ran) for s in measured.segments] == [(0, 30, 2), (1, 12, 8)]
    assert measured.steps_seen == 42
    assert measured.flags["restarted"].startswith("rank 0 was 2 processes in turn")
    assert "restarted" not in measure(rank(0, *training(12, 0.3, 64, 8, 10.0))).flags


def test_a_training_that_nobody_measured_is_told() -> None:
    told = [event("unmeasured", pid=7, target="train.py", why="it runs below process 5, which is rank 0")]
    flag = measure(rank(0, *steady(20), *told)).flags["unmeasured"]
    assert flag == ("process 7 (train.py) trained and was not measured: it runs below process 5, which is rank 0")
    assert measure(rank(0, *steady(20), *told, *told)).flags["unmeasured"] == f"{flag}; and 1 more"
    assert "unmeasured" not in measure(rank(0, *steady(20))).flags
