"""Steady state: where a series of step times settles, how sure its median is, and whether it settles at all.

The cut and the interval of the median are the probe's, which stops a job by them: one definition for both.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.probe.settling import FEWEST, FIVE_SIGMA, mad, median_interval

State = Literal["steady", "drifting", "bimodal", "unsettled", "too_few_steps"]

SIGMA = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
TREND = 3.0  # standard deviations of a rank correlation that is no chance
SHIFT = 0.01  # how far the medians of the two halves may be apart
STRAGGLER = 0.1  # a straggler takes at least this share more than the median, however quiet the series
# Two groups of steps: each holds a fifth of them, nothing lies between them for 5 %, and Ashman's D, from medians and
# median absolute deviations, is beyond 6 (the two halves of one normal distribution have 2.3).
GROUP = 0.2
SMALLEST_GROUP = 4
GAP = 0.05
ASHMAN_D = 6.0


@dataclass(frozen=True)
class Summary:
    """What the measured part of a series says; times in the unit of the series."""

    state: State
    why: str | None  # the state in words, where it is not `steady`
    median: float
    low: float  # of the median's interval
    high: float
    mean: float
    stdev: float | None  # None for a single value
    mad: float  # median absolute deviation as it is, not scaled to a standard deviation
    minimum: float
    maximum: float
    p5: float
    p95: float
    straggler_bound: float
    stragglers: tuple[int, ...]  # positions in the measured part


def is_at_limit(cut: int, count: int) -> bool:
    """Whether the warm-up of so many values may have gone on beyond their cut, which is never after half of them."""
    return cut >= count // 2 - 1


def summarise(times: Sequence[float], *, before: Sequence[float] = (), cut_at_limit: bool = False) -> Summary:
    """Describe the measured part of a series; `before` is what was cut off, `cut_at_limit` what `is_at_limit` said.

    Raises ValueError without a value."""
    median = statistics.median(times)
    deviation = mad(times, median)
    bound = median + max(FIVE_SIGMA * deviation, STRAGGLER * median)
    state, why = _judge(times, before if cut_at_limit else (), median)
    low, high = median_interval(times)
    return Summary(
        state=state,
        why=why,
        median=median,
        low=low,
        high=high,
        mean=statistics.fmean(times),
        stdev=statistics.stdev(times) if len(times) > 1 else None,
        mad=deviation,
        minimum=min(times),
        maximum=max(times),
        p5=quantile(times, 0.05),
        p95=quantile(times, 0.95),
        straggler_bound=bound,
        stragglers=tuple(position for position, time in enumerate(times) if time > bound),
    )


def _judge(times: Sequence[float], before: Sequence[float], median: float) -> tuple[State, str | None]:
    """The state, and why; `before`: what a cut as late as may be has left out."""
    if len(times) < FEWEST:
        return "too_few_steps", f"{len(times)} steps were measured, {FEWEST} are needed to tell"
    half = len(times) // 2
    first, second = statistics.median(times[:half]), statistics.median(times[-half:])
    if abs(trend(times)) > TREND and abs(first - second) > SHIFT * min(first, second):
        return "drifting", f"median of the first half {first:.6g} s, of the second half {second:.6g} s"
    groups = _two_groups(times)
    if groups is not None:
        (few, fast), (many, slow) = groups
        return "bimodal", f"{few} steps of about {fast:.6g} s, {many} of about {slow:.6g} s"
    if before:  # the cut is as late as it may be: has the warm-up ended there?
        late = before[-half:]
        (low, high), (low_late, high_late) = median_interval(times), median_interval(late)
        last = statistics.median(late)
        if (low_late > high or high_late < low) and abs(last - median) > SHIFT * median:
            return "unsettled", f"{last:.6g} s in the middle of the series, {median:.6g} s after it"
    return "steady", None


def trend(times: Sequence[float]) -> float:
    """Spearman's rank correlation of the times with their order, in standard deviations of Fisher's transform of it.

    Fieller, Hartley and Pearson (1957) for the 1.06.  0 for fewer than four times."""
    count = len(times)
    if count < 4:
        return 0.0
    ranks = [0.0] * count
    ordered = sorted(range(count), key=lambda position: times[position])
    start = 0
    while start < count:
        end = start
        while end < count and times[ordered[end]] == times[ordered[start]]:
            end += 1
        for position in ordered[start:end]:  # equal times share their ranks
            ranks[position] = (start + end - 1) / 2
        start = end
    middle = (count - 1) / 2
    spread = math.sqrt(sum((rank - middle) ** 2 for rank in ranks) * sum((n - middle) ** 2 for n in range(count)))
    if spread == 0:
        return 0.0
    correlation = sum((rank - middle) * (n - middle) for n, rank in enumerate(ranks)) / spread
    return math.atanh(max(-0.999, min(0.999, correlation))) * math.sqrt((count - 3) / 1.06)


def _two_groups(times: Sequence[float]) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """(count, median) of the fast and of the slow steps, where the series is clearly made of two groups."""
    ordered = sorted(times)
    count, least = len(ordered), max(SMALLEST_GROUP, math.ceil(GROUP * len(ordered)))
    # Of all ways to part the sorted values the one with the widest gap.
    split = max(range(least, count - least + 1), key=lambda n: ordered[n] - ordered[n - 1])
    fast, slow = ordered[:split], ordered[split:]
    a, b = statistics.median(fast), statistics.median(slow)
    spread = SIGMA * math.hypot(mad(fast, a), mad(slow, b))
    if ordered[split] - ordered[split - 1] <= GAP * a or math.sqrt(2) * (b - a) <= ASHMAN_D * spread:
        return None
    return (len(fast), a), (len(slow), b)


def quantile(times: Sequence[float], share: float) -> float:
    """With linear interpolation between the two nearest values."""
    ordered, place = sorted(times), share * (len(times) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
