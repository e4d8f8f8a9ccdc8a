"""The steps that are measured: of the last segment, common to all ranks, settled, and undisturbed."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part
from harness.metrics.steady import Summary, is_at_limit, summarise
from harness.probe.journal import net_seconds
from harness.probe.settling import find_cut, minimum_cut, undisturbed

FIGURES = (
    "steady_state",
    "window_s",
    "step_time_median_s",
    "step_time_median_low_s",
    "step_time_median_high_s",
    "step_time_mad_s",
    "step_time_mean_s",
    "step_time_stdev_s",
    "step_time_min_s",
    "step_time_p5_s",
    "step_time_p95_s",
    "step_time_max_s",
    "stragglers",
    "straggler_bound_s",
    "slowest_rank",
)


@dataclass(frozen=True)
class Window:
    """The measured steps, by their numbers, and what each rank needed for them."""

    segment: int | None  # the last one that all ranks have
    cut: int  # steps left out at the start of the segment
    cut_at_limit: bool  # as late as a cut may be
    disturbed: int  # steps left out after the cut
    left_out_for: tuple[str, ...]
    steps: tuple[int, ...]
    times: dict[int, list[float]]  # rank -> seconds of the measured steps
    before: dict[int, list[float]]  # rank -> seconds of the steps cut off

    @property
    def slowest(self) -> int:
        """The rank that needed longest for the window."""
        return max(self.times, key=lambda rank: sum(self.times[rank]))

    @property
    def seconds(self) -> float:
        """Of the slowest rank."""
        return sum(self.times[self.slowest])

    @property
    def series(self) -> list[float]:
        """The slowest rank's times: a job is as fast as it."""
        return self.times[self.slowest]


def last_segment(rank: RankJournal) -> list[Event]:
    """The steps of the last segment, in order."""
    steps = rank.of("step")
    return segment_steps(rank, steps[-1].get("segment")) if steps else []


def segment_steps(rank: RankJournal, segment: int | None) -> list[Event]:
    """The steps of a segment, in order."""
    return [step for step in rank.of("step") if step.get("segment") == segment]


def describe_segment(rank: RankJournal, segment: int | None) -> Event:
    """What the rank told at that segment's start; nothing where it did not."""
    return next((event for event in rank.of("segment") if event.get("segment") == segment), {})


def have_common_segment(ranks: Sequence[RankJournal]) -> bool:
    """False where the ranks that stepped did so in different segments: nothing of theirs belongs together."""
    return not any(rank.of("step") for rank in ranks) or bool(_common_segments(ranks))


def common_steps(ranks: Sequence[RankJournal]) -> dict[int, list[Event]]:
    """Steps of the last segment that all ranks which stepped have in common, by rank; empty where none has."""
    segments = _common_segments(ranks)
    if not segments:
        return {}
    stepped = [rank for rank in ranks if rank.of("step")]
    last = max(segments, key=lambda segment: -1 if segment is None else segment)
    return {rank.rank: segment_steps(rank, last) for rank in stepped}


def _common_segments(ranks: Sequence[RankJournal]) -> set[int | None]:
    segments = [{step.get("segment") for step in steps} for rank in ranks if (steps := rank.of("step"))]
    return set.intersection(*segments) if segments else set()


def find_window(ranks: Sequence[RankJournal]) -> Window | None:
    """The window that all ranks which stepped have in common; None where none has."""
    stepped = {rank: {step["step"]: step for step in steps} for rank, steps in common_steps(ranks).items()}
    if not stepped:
        return None
    segment = next(step.get("segment") for steps in stepped.values() for step in steps.values())
    common = sorted(set.intersection(*(set(steps) for steps in stepped.values())))
    seconds = {rank: [net_seconds(steps[number]) for number in common] for rank, steps in stepped.items()}
    cut = max((find_cut(times) for times in seconds.values()), default=0)
    tags = [{tag for steps in stepped.values() for tag in steps[number].get("overhead") or ()} for number in common]
    kept, left_out_for = undisturbed(tags, cut)
    if not kept:
        return None
    return Window(
        segment=segment,
        cut=cut,
        cut_at_limit=is_at_limit(cut, len(common)),
        disturbed=len(common) - cut - len(kept),
        left_out_for=left_out_for,
        steps=tuple(common[place] for place in kept),
        times={rank: [times[place] for place in kept] for rank, times in seconds.items()},
        before={rank: times[:cut] for rank, times in seconds.items()},
    )


def describe_steps(ranks: Sequence[RankJournal], window: Window | None) -> tuple[Part, Summary | None]:
    """The figures of step time."""
    part = Part()
    steps = len(last_segment(ranks[0]))
    part.values |= {
        "steps_seen": len(ranks[0].of("step")),
        "first_cut": window.cut if window else minimum_cut(steps),
        "steps_measured": len(window.steps) if window else 0,
        "left_out_for": list(window.left_out_for) if window else [],
        "rank_step_time_median_s": {},
        "series": [f"rank-{rank.rank}/events.jsonl" for rank in ranks],
    }
    part.put("steps_left_out", window.disturbed if window else None, "no step was measured")
    if window is None:
        part.nulls(FIGURES, "no step was measured")
        return part, None
    summaries = {
        rank: summarise(times, before=window.before[rank], cut_at_limit=window.cut_at_limit)
        for rank, times in window.times.items()
    }
    summary = summaries[window.slowest]
    part.values |= {
        "steady_state": summary.state,
        "step_time_median_s": summary.median,
        "step_time_median_low_s": summary.low,
        "step_time_median_high_s": summary.high,
        "step_time_mad_s": summary.mad,
        "step_time_mean_s": summary.mean,
        "step_time_min_s": summary.minimum,
        "step_time_p5_s": summary.p5,
        "step_time_p95_s": summary.p95,
        "step_time_max_s": summary.maximum,
        "stragglers": len(summary.stragglers),
        "straggler_bound_s": summary.straggler_bound,
        "slowest_rank": window.slowest,
        "rank_step_time_median_s": {rank: each.median for rank, each in summaries.items()},
    }
    part.put("window_s", window.seconds or None, "the measured steps took no time")
    part.put("step_time_stdev_s", summary.stdev, "a single step was measured")
    return part, summary
