"""Figures from journals: events of all ranks in, Measurements out.  Pure.

Definitions: a step lasts from the end of the one before to its own end; time that logging, saving and evaluating took
is taken out.  The steps measured are those of the last segment that all ranks have, after the warm-up.  Tokens are
summed over the ranks that see data of their own, time is the slowest rank's, so a rate is total work over wall time and
not a mean of ratios.  What is not known is null and says why.
"""

from harness.metrics.measured import Job, Steps, find_steps, measure, step_times
from harness.metrics.phases import Wall, rank_phases
from harness.metrics.span import Span
from harness.metrics.training import Finding, did_it_train

__all__ = [
    "Finding",
    "Job",
    "Span",
    "Steps",
    "Wall",
    "did_it_train",
    "find_steps",
    "measure",
    "rank_phases",
    "step_times",
]
