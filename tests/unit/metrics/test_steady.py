"""Steady state on series whose truth is known: warm-ups, stragglers, drift, two modes."""

import random
import statistics

import pytest

from harness.metrics.steady import Summary, is_at_limit, quantile, summarise, trend
from harness.probe.settling import find_cut, median_interval, minimum_cut

SEEDS = range(60)


def noise(seed: int, count: int = 40, sigma: float = 0.01) -> list[float]:
    generator = random.Random(seed)
    return [1 + generator.gauss(0, sigma) for _ in range(count)]


def with_warm_up(times: list[float], steps: int) -> list[float]:
    """Geometric: three times as long at first."""
    return [time * (1 + (2 * 0.6**place if place < steps else 0)) for place, time in enumerate(times)]


def with_stragglers(seed: int, times: list[float]) -> list[float]:
    late = random.Random(-seed - 1).sample(range(10, len(times)), 2)
    return [time * 1.5 if place in late else time for place, time in enumerate(times)]


def settled(times: list[float]) -> tuple[int, Summary]:
    """The cut, and what is said of the rest."""
    cut = find_cut(times)
    return cut, summarise(times[cut:], before=times[:cut], cut_at_limit=is_at_limit(cut, len(times)))


@pytest.mark.parametrize("warm_up", [0, 1, 3, 8])
def test_the_median_after_a_warm_up_is_within_a_percent(warm_up: int) -> None:
    cuts, states = [], []
    for seed in SEEDS:
        times = with_stragglers(seed, with_warm_up(noise(seed), warm_up))
        cut, summary = settled(times)
        assert summary.median == pytest.approx(1, rel=0.01)
        assert len(summary.stragglers) == sum(time > 1.25 for time in times[cut:])
        cuts.append(cut)
        states.append(summary.state)
    assert statistics.median(cuts) == max(3, warm_up)
    assert states.count("steady") >= 0.98 * len(states)


def test_trap_first_step_in_the_mean() -> None:
    """A compilation of a hundred steps' length in the first step."""
    times = [100.0, *noise(1)]
    assert statistics.fmean(times) > 3
    assert summarise(times[find_cut(times) :]).mean == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("change", [0.1, 0.2, -0.2])
def test_drift_is_no_steady_state(change: float) -> None:
    states = []
    for seed in SEEDS:
        times = [time * (1 + change * place / 40) for place, time in enumerate(noise(seed))]
        states.append(settled(times)[1].state)
    assert states.count("drifting") >= 0.9 * len(states)
    assert states.count("steady") <= 0.05 * len(states)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_two_modes_are_no_steady_state(share: float) -> None:
    states = []
    for seed in SEEDS:
        generator = random.Random(seed)
        times = [time * (1.2 if generator.random() < share else 1.0) for time in noise(seed)]
        states.append(summarise(times).state)
    assert states.count("bimodal") >= 0.9 * len(states)


def test_steps_that_take_turns_are_two_modes() -> None:
    """Such as uneven micro-batches."""
    summary = summarise([1.0, 1.3] * 10)
    assert (summary.state, summary.why) == ("bimodal", "10 steps of about 1 s, 10 of about 1.3 s")


def test_a_warm_up_that_does_not_end() -> None:
    times = [time * 1.1 if place < 20 else time for place, time in enumerate(noise(3, 39, 0.001))]
    cut, summary = settled(times)
    assert (cut, summary.state) == (19, "unsettled")


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("count", [20, 40, 200])
def test_noise_alone_is_steady(sigma: float, count: int) -> None:
    states = []
    for seed in SEEDS:
        times = noise(seed, count, sigma)
        states.append(settled(times)[1].state)
    assert states.count("steady") >= 0.95 * len(states)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_too_few_steps(count: int) -> None:
    summary = summarise([0.5] * count)
    assert summary.state == "too_few_steps"
    assert (summary.median, summary.low, summary.high, summary.mad) == (0.5, 0.5, 0.5, 0)
    assert (summary.stdev is None) == (count == 1)


@pytest.mark.parametrize("steps, cut", [(0, 0), (1, 0), (2, 1), (4, 2), (6, 3), (100, 3)])
def test_minimum_cut(steps: int, cut: int) -> None:
    assert minimum_cut(steps) == cut
    assert find_cut([1.0] * steps) == cut


def test_the_interval_is_what_resampling_tends_to() -> None:
    times = noise(5, 31)
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(times, k=31)) for _ in range(20_000))
    low, high = median_interval(times)
    assert low == pytest.approx(medians[500], rel=0.001)
    assert high == pytest.approx(medians[19_500], rel=0.001)


def test_the_interval_covers_the_truth() -> None:
    covered = sum(low <= 1 <= high for low, high in (median_interval(noise(seed, 37)) for seed in range(300)))
    assert covered >= 0.92 * 300


def test_the_same_series_gives_the_same_interval() -> None:
    assert median_interval(noise(7)) == median_interval(list(reversed(noise(7))))


def test_a_long_series() -> None:
    times = with_warm_up(noise(1, 20_000), 8)
    assert summarise(times[find_cut(times) :]).state == "steady"


def test_stragglers_are_beyond_a_bound() -> None:
    summary = summarise([1.0] * 10 + [1.09, 1.11])
    assert summary.straggler_bound == pytest.approx(1.1)
    assert summary.stragglers == (11,)


@pytest.mark.parametrize(
    "times, expected",
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 9.76),
        ([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], -9.76),
        ([2, 1, 4, 3, 6, 5, 8, 7], 3.25),  # a correlation of 0.905
        ([1, 1, 1, 1], 0.0),
        ([1, 2, 3], 0.0),
    ],
)
def test_trend(times: list[float], expected: float) -> None:
    assert trend(times) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("share, expected", [(0, 1), (0.5, 2.5), (1, 4), (0.05, 1.15)])
def test_quantile(share: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], share) == pytest.approx(expected)
