"""Where a series of step times settles, and how sure its median is: for the record, and for a job that stops by it.

The cut is MSER's (White 1997: the start whose removal makes the mean of the rest most certain) on winsorised times, so
that stragglers do not move it; never before `MINIMUM_CUT`.  The interval of the median is the one that bootstrap
resampling tends to, computed from the binomial distribution instead of drawn: the same series gives the same interval.
"""

import math
import statistics
from collections.abc import Collection, Sequence

MINIMUM_CUT = 3  # allocator growth, autotuning and lazy initialisation end within the first steps
FEWEST = 8  # measured steps below which nothing can be said of a steady state
CONFIDENCE = 0.95
FIVE_SIGMA = 7.4  # median absolute deviations in five standard deviations of a normal distribution
# What a step may be left out for, in the order in which that is given up when too few steps would remain.
DISTURBANCES = (("log", "save", "eval"), ("save", "eval"), ())


def minimum_cut(count: int) -> int:
    """Values to leave out at the start whatever they are: 3, at most half."""
    return min(MINIMUM_CUT, count // 2)


def find_cut(times: Sequence[float]) -> int:
    """Values to leave out at the start: those of the warm-up, at least the minimum, at most half."""
    count, half = len(times), times[len(times) // 2 :]
    if count < 2:
        return 0
    middle = statistics.median(half)
    reach = FIVE_SIGMA * (mad(half, middle) or abs(middle) * 1e-3)
    best, least = minimum_cut(count), math.inf
    total = squares = 0.0
    for cut in range(count - 1, minimum_cut(count) - 1, -1):  # from the end, so that the sums need no second pass
        value = min(max(times[cut] - middle, -reach), reach)
        total, squares, left = total + value, squares + value * value, count - cut
        error = (squares / left - (total / left) ** 2) / left
        if cut <= count // 2 and error <= least:
            best, least = cut, error
    return best


def undisturbed(tags: Sequence[Collection[str]], cut: int) -> tuple[list[int], tuple[str, ...]]:
    """(places of the steps that are measured, what a step was left out for).  `tags`: what each step did besides.

    All of those after the cut count, but for the disturbed ones: unless more than half of them were."""
    after = range(cut, len(tags))
    for disturbances in DISTURBANCES:
        kept = [place for place in after if not set(tags[place]) & set(disturbances)]
        if 2 * len(kept) >= len(after):
            break
    return kept, disturbances


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
    log_whole = math.lgamma(count + 1)
    log_choices = [log_whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(needed, count + 1)]

    def tail(p: float) -> float:
        """P(X >= needed) for X binomial."""
        if p >= 1:
            return 1.0
        log_p, log_q = math.log(p), math.log1p(-p)
        terms = (math.exp(log + k * log_p + (count - k) * log_q) for k, log in enumerate(log_choices, needed))
        return math.fsum(terms)

    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if tail(middle / count) >= probability:
            high = middle
        else:
            low = middle + 1
    return low


def mad(times: Sequence[float], median: float) -> float:
    """Median absolute deviation from the median, not scaled to a standard deviation."""
    return statistics.median(abs(time - median) for time in times)
