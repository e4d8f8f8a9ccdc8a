"""All figures of a job, put together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.journal import Event, RankJournal
from harness.metrics.arguments import differing_arguments
from harness.metrics.compiling import describe_compiling
from harness.metrics.memory import describe_memory, retries_in_steady
from harness.metrics.parts import Part
from harness.metrics.phases import Wall, describe_phases
from harness.metrics.sampled import memory_drift, read_samples
from harness.metrics.sanity import describe_built, describe_reported, disagreements, withdraw_impossible
from harness.metrics.span import Span, find_span
from harness.metrics.split import describe_split
from harness.metrics.steady import Summary
from harness.metrics.stopping import describe_stop, not_reached
from harness.metrics.throughput import NO_COMMON_SEGMENT, Counts, describe_rates
from harness.metrics.training import describe_ranks_in_step, describe_training
from harness.metrics.utilisation import describe_utilisation
from harness.metrics.window import Window, describe_steps, find_window, have_common_segment, segment_steps
from harness.record import Measurements, Segment


@dataclass(frozen=True)
class Job:
    """What is known of a job beside its journals."""

    wall: Wall = field(default_factory=Wall)
    scenario: Mapping[str, Any] = field(default_factory=dict)  # resolved, as in the record


@dataclass(frozen=True)
class Steps:
    """The steps that are measured, and where they lie on the sampler's clock."""

    window: Window | None
    span: Span | None


def find_steps(ranks: Sequence[RankJournal]) -> Steps:
    """The measured steps of a job; what it has of them is None where there are none."""
    window = find_window(ranks)
    return Steps(window, find_span(ranks, window))


def measure(
    ranks: Sequence[RankJournal], samples: Iterable[Event], job: Job, steps_measured: Steps | None = None
) -> Measurements | None:
    """What a job's journals tell; None when no rank left one.

    `samples` is the sampler's journal, read once whatever else is known; `steps_measured` saves finding them anew."""
    sampled = read_samples(samples)
    if not ranks:
        return None
    found = steps_measured or find_steps(ranks)
    window, span = found.window, found.span
    counts = Counts(ranks, window)
    steps, summary = describe_steps(ranks, window)
    rates = describe_rates(counts, window, len(ranks))
    withdraw_impossible(rates, counts, ranks, job.scenario)
    parts = [
        steps,
        describe_stop(ranks[0]),
        describe_split(ranks, window),
        rates,
        describe_utilisation(ranks, counts, window, job.scenario),
        describe_training(ranks),
        describe_memory(ranks, sampled),
        describe_phases(ranks[0], job.wall),
        describe_compiling(ranks),
        _describe_model(ranks[0]),
    ]
    values: dict[str, Any] = {"ranks": len(ranks), "segments": _segments(ranks[0])}
    reasons: dict[str, str] = {}
    for part in parts:
        values |= part.values
        reasons |= part.reasons
    values["reported"] = describe_reported(ranks[0], values)
    flags = _flags(ranks, values, window, summary, job.scenario)
    if rise := memory_drift(sampled, ranks, span):
        flags["memory_drifting"] = rise
    values["flags"] = flags
    return Measurements(**values, reasons=reasons)


def step_times(ranks: Sequence[RankJournal]) -> list[float]:
    """Seconds of the measured steps, the slowest rank's; empty where none was measured."""
    window = find_window(ranks)
    return window.series if window else []


def _describe_model(rank: RankJournal) -> Part:
    part, model = Part(), rank.last("model")
    kind = str((model or {}).get("device", "")).split(":")[0]
    unseen = "no model was seen to train"
    part.put(
        "device",
        kind if kind in ("cuda", "cpu") else None,
        "the model's device is neither cuda nor cpu" if model else unseen,
    )
    part.put("parameters", (model or {}).get("parameters"), unseen)
    part.put("trainable_parameters", (model or {}).get("trainable"), unseen)
    part.put("built", describe_built(rank), unseen)
    return part


def _flags(
    ranks: Sequence[RankJournal],
    values: Mapping[str, Any],
    window: Window | None,
    summary: Summary | None,
    scenario: Mapping[str, Any],
) -> dict[str, str]:
    """What a reader of the figures must know; the figures stand all the same."""
    flags: dict[str, str | None] = {}
    if summary is not None and summary.state != "steady":
        flags["drifting" if summary.state == "drifting" else "no_steady_state"] = f"{summary.state}: {summary.why}"
    if window is not None and not window.left_out_for:
        flags["every_step_disturbed"] = "most steps log, save or evaluate: their time is taken out by the host's clock"
    if not have_common_segment(ranks):
        flags["no_common_segment"] = f"{NO_COMMON_SEGMENT}: what one measured belongs to no step of another"
    if retries := retries_in_steady(ranks):
        flags["alloc_retries"] = f"the allocator ran full {retries} times after the first step, which costs time"
    flags["restarted"] = _restarted(ranks)
    flags["unmeasured"] = _unmeasured(ranks)
    flags["ranks_differ"] = _ranks_differ(ranks, scenario)
    flags["model_disagrees"] = disagreements(values["built"], scenario)
    flags["interval_not_reached"] = not_reached(ranks[0], scenario)
    flags["arguments_differ"] = differing_arguments(ranks, scenario)
    flags |= describe_ranks_in_step(ranks, values["ranks_agree"])
    return {name: text for name, text in flags.items() if text}


def _restarted(ranks: Sequence[RankJournal]) -> str | None:
    turns = {rank.rank: len(rank.of("start")) for rank in ranks}
    most = max(turns, key=lambda rank: turns[rank])
    if turns[most] < 2:
        return None
    return f"rank {most} was {turns[most]} processes in turn: the figures are of the last training that all ranks have"


def _unmeasured(ranks: Sequence[RankJournal]) -> str | None:
    told = [event for rank in ranks for event in rank.of("unmeasured")]
    if not told:
        return None
    first = f"process {told[0].get('pid')} ({told[0].get('target')}) trained and was not measured: {told[0].get('why')}"
    return first if len(told) == 1 else f"{first}; and {len(told) - 1} more"


def _ranks_differ(ranks: Sequence[RankJournal], scenario: Mapping[str, Any]) -> str | None:
    asked = scenario.get("gpus") or scenario.get("processes")
    if asked is None or asked == len(ranks):
        return None
    return f"{asked} ranks were asked for, and {len(ranks)} were seen"


def _segments(rank: RankJournal) -> list[Segment]:
    return [
        Segment(
            segment=event["segment"],
            restart=bool(event.get("restart")),
            steps=len(segment_steps(rank, event["segment"])),
            batch_asked=event.get("batch_asked"),
            batch_ran=event.get("batch_ran"),
            accumulation=event.get("accumulation"),
        )
        for event in rank.of("segment")
    ]
