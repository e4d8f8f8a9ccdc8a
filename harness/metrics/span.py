"""The measured window on the sampler's clock: from the start of its first step to the end of its last.

Unlike the window's own figures it holds the steps that were left out within it: power is drawn in those, too."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.journal import RankJournal
from harness.metrics.window import Window, describe_segment, segment_steps


@dataclass(frozen=True)
class Span:
    """Monotonic seconds; `non_pad_tokens`: of all ranks in all steps of the span, None where they are not known."""

    begin_m: float
    end_m: float
    non_pad_tokens: int | None


def find_span(ranks: Sequence[RankJournal], window: Window | None) -> Span | None:
    """The span of the window; None where there is none, or nobody told when its steps ended."""
    if window is None or not window.steps:
        return None
    first, last = window.steps[0], window.steps[-1]
    begins, ends = [], []
    for rank in ranks:
        for step in segment_steps(rank, window.segment):
            if first <= step["step"] <= last and isinstance(step.get("ended_m"), int | float):
                begins.append(step["ended_m"] - step["seconds"])
                ends.append(step["ended_m"])
    return Span(min(begins), max(ends), _tokens(ranks, window.segment, first, last)) if ends else None


def _tokens(ranks: Sequence[RankJournal], segment: int | None, first: int, last: int) -> int | None:
    """None, too, where ranks share their data: whose tokens are whose is the throughput's business."""
    total = 0
    for rank in ranks:
        told = describe_segment(rank, segment)
        counts = {
            event["step"]: event.get("non_pad")
            for event in rank.of("tokens")
            if event.get("segment") == segment and first <= event["step"] <= last
        }
        shared = told.get("data_ranks") not in (None, len(ranks))
        if shared or len(counts) < last - first + 1 or not all(isinstance(n, int) for n in counts.values()):
            return None
        total += sum(n for n in counts.values() if isinstance(n, int))
    return total
