"""Steady state: where a series of step times settles, how sure its median is, and whether it settles at all.

The cut is MSER's (White 1997: the start whose removal makes the mean of the rest most certain) on winsorised times, so
that stragglers do not move it; never before `MINIMUM_CUT`.  The interval of the median is the one that bootstrap
resampling tends to, computed from the binomial distribution instead of drawn: the same series gives the same interval.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["steady", "drifting", "bimodal", "unsettled", "too_few_steps"]

MINIMUM_CUT = 3  # allocator growth, autotuning and lazy initialisation end within the first steps
FEWEST = 8  # measured steps below which nothing can be said of a steady state
CONFIDENCE = 0.95
FIVE_SIGMA = 7.4  # median absolute deviations in five standard deviations of a normal distribution
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


def minimum_cut(count: int) -> int:
    """Values to leave out at the start whatever they are: 3, at most half."""
    return min(MINIMUM_CUT, count // 2)


def find_cut(times: Sequence[float]) -> int:
    """Values to leave out at the start: those of the warm-up, at least the minimum, at most half."""
    count, half = len(times), times[len(times) // 2 :]
    if count < 2:
        return 0
    middle = statistics.median(half)
    reach = FIVE_SIGMA * (_mad(half, middle) or abs(middle) * 1e-3)
    best, least = minimum_cut(count), math.inf
    total = squares = 0.0
    for cut in range(count - 1, minimum_cut(count) - 1, -1):  # from the end, so that the sums need no second pass
        value = min(max(times[cut] - middle, -reach), reach)
        total, squares, left = total + value, squares + value * value, count - cut
        error = (squares / left - (total / left) ** 2) / left
        if cut <= count // 2 and error <= least:
            best, least = cut, error
    return best


def is_at_limit(cut: int, count: int) -> bool:
    """Whether the warm-up of so many values may have gone on beyond their cut, which is never after half of them."""
    return cut >= count // 2 - 1


def summarise(times: Sequence[float], *, before: Sequence[float] = (), cut_at_limit: bool = False) -> Summary:
    """Describe the measured part of a series; `before` is what was cut off, `cut_at_limit` what `is_at_limit` said.

    Raises ValueError without a value."""
    median = statistics.median(times)
    mad = _mad(times, median)
    bound = median + max(FIVE_SIGMA * mad, STRAGGLER * median)
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
        mad=mad,
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
    spread = SIGMA * math.hypot(_mad(fast, a), _mad(slow, b))
    if ordered[split] - ordered[split - 1] <= GAP * a or math.sqrt(2) * (b - a) <= ASHMAN_D * spread:
        return None
    return (len(fast), a), (len(slow), b)


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """The percentile-bootstrap interval of the median at `CONFIDENCE`, in the limit of infinitely many resamples.

    The k-th smallest of n values is at least the median of a resample when at least half of its n draws are among the k
    smallest: a binomial tail (Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, 10.3).  With an even
    n the lower bound is that of the lower of the two middle draws, the upper that of the upper.
    """
    ordered, count = sorted(times), len(times)
    tail = (1 - CONFIDENCE) / 2
    lower, upper = (count + 1) // 2, count // 2 + 1
    low = _first_rank(count, lower, tail)
    high = _first_rank(count, upper, 1 - tail)
    return ordered[low - 1], ordered[high - 1]


def _first_rank(count: int, needed: int, probability: float) -> int:
    """The smallest k for which `needed` of `count` draws are among the k smallest with at least this probability."""
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if _binomial_tail(count, middle / count, needed) >= probability:
            high = middle
        else:
            low = middle + 1
    return low


def _binomial_tail(count: int, p: float, least: int) -> float:
    """P(X >= least) for X binomial."""
    if p >= 1:
        return 1.0
    log_p, log_q, whole = math.log(p), math.log1p(-p), math.lgamma(count + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_p + (count - k) * log_q)
        for k in range(least, count + 1)
    )


def quantile(times: Sequence[float], share: float) -> float:
    """With linear interpolation between the two nearest values."""
    ordered, place = sorted(times), share * (len(times) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _mad(times: Sequence[float], median: float) -> float:
    return statistics.median(abs(time - median) for time in times)
