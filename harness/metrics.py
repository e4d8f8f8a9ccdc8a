"""Figures from journals: events of all ranks in, Measurements out.  Pure.

Definitions: a step lasts from the end of the one before to its own end; time that logging, saving and evaluating took
is taken out.  The steps measured are those of the last segment after the first `first_cut`.  Tokens are summed over
ranks, time is the longest rank's, so a rate is total work over wall time and not a mean of ratios.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.journal import Event, RankJournal
from harness.probe.journal import net_seconds
from harness.record import Measurements, Segment

MINIMUM_CUT = 3  # allocator growth, autotuning and lazy initialisation end within the first steps


def first_cut(steps: int) -> int:
    """Steps to leave out at the start: a tenth, at least 3, at most half."""
    return min(max(MINIMUM_CUT, -(-steps // 10)), steps // 2)


def last_segment(rank: RankJournal) -> list[Event]:
    """The steps of the last segment, in order."""
    steps = rank.of("step")
    return [step for step in steps if step.get("segment") == steps[-1].get("segment")]


def measured_steps(rank: RankJournal) -> list[Event]:
    """The steps of the last segment after the first cut."""
    steps = last_segment(rank)
    return steps[first_cut(len(steps)) :]


def step_times(ranks: Sequence[RankJournal]) -> list[float]:
    """Seconds of the measured steps of the first rank that has any."""
    return next(([net_seconds(s) for s in steps] for rank in ranks if (steps := measured_steps(rank))), [])


def measure(ranks: Sequence[RankJournal], samples: Sequence[Event], ended: float | None) -> Measurements | None:
    """The figures of a job; None when no rank left a journal.

    `samples` is the sampler's journal; `ended`, when the job ended, seconds since the epoch.
    """
    if not ranks:
        return None
    first = ranks[0]
    times = step_times(ranks)
    window = [sum(map(net_seconds, steps)) for rank in ranks if (steps := measured_steps(rank))]
    window_s = max(window, default=None) or None
    model = first.last("model") or {}
    device = _device(model)
    tokens, measured, reasons = _tokens(ranks)
    rates = {name: _rate(measured[name], window_s) for name in measured}
    memory, memory_reasons = _memory(ranks)
    host = {key: _peak(samples, key) for key in ("rss_bytes", "pss_bytes")}
    losses = [s.get("loss") for s in last_segment(first)]
    norms = [s.get("grad_norm") for s in last_segment(first)]
    non_pad = rates["non_pad"]
    measured_figures = Measurements(
        ranks=len(ranks),
        device=device,
        steps_seen=len(first.of("step")),
        first_cut=first_cut(len(last_segment(first))),
        steps_measured=len(times),
        window_s=window_s,
        step_time_median_s=statistics.median(times) if times else None,
        step_time_mean_s=statistics.fmean(times) if times else None,
        step_time_stdev_s=statistics.stdev(times) if len(times) > 1 else None,
        step_time_min_s=min(times, default=None),
        step_time_max_s=max(times, default=None),
        samples_per_s=rates["samples"],
        padded_tokens_per_s=rates["padded"],
        non_pad_tokens_per_s=non_pad,
        trainable_tokens_per_s=rates["trainable"],
        non_pad_tokens_per_s_per_device=non_pad / len(ranks) if non_pad is not None else None,
        loss_first=_number(losses[0]) if losses else None,
        loss_last=_number(losses[-1]) if losses else None,
        grad_norm_last=_number(norms[-1]) if norms else None,
        peak_allocated_bytes=memory["allocated_peak_bytes"],
        peak_reserved_bytes=memory["reserved_peak_bytes"],
        host_peak_rss_bytes=host["rss_bytes"],
        host_peak_pss_bytes=host["pss_bytes"],
        phases_s=phases(first, ended),
        parameters=model.get("parameters"),
        trainable_parameters=model.get("trainable"),
        tokens=tokens,
        segments=_segments(first),
        reasons={},
    )
    why = Reasons(
        model=bool(model),
        steps=bool(times),
        tokens=reasons,
        memory=memory_reasons,
        losses=losses,
        norms=norms,
    )
    nulls = [name for name, value in measured_figures.model_dump().items() if value is None]
    return measured_figures.model_copy(update={"reasons": {name: why.of(name) for name in nulls}})


def _device(model: Event) -> Any:
    kind = str(model.get("device", "")).split(":")[0]
    return kind if kind in ("cuda", "cpu") else None


COUNTERS = ("padded", "non_pad", "trainable", "samples")


def _tokens(ranks: Sequence[RankJournal]) -> tuple[dict[str, int | None], dict[str, int | None], dict[str, str]]:
    """Counts over all ranks: of the whole last segment, of its measured steps, and why a count is null."""
    whole: dict[str, int | None] = dict.fromkeys(COUNTERS, 0)
    measured: dict[str, int | None] = dict.fromkeys(COUNTERS, 0)
    reasons: dict[str, str] = {}
    for rank in ranks:
        steps = {step["step"] for step in last_segment(rank)}
        window = {step["step"] for step in measured_steps(rank)}
        segment = rank.of("step")[-1]["segment"] if steps else None
        events = {event["step"]: event for event in rank.of("tokens") if event.get("segment") == segment}
        for name in COUNTERS:
            for totals, wanted in ((whole, steps), (measured, window)):
                total, reason = _sum(events, wanted, name)
                current = totals[name]
                totals[name] = current + total if current is not None and total is not None else None
                if reason:
                    reasons[name] = f"rank {rank.rank}: {reason}"
    if not any(rank.of("tokens") for rank in ranks):
        whole, measured = dict.fromkeys(COUNTERS), dict.fromkeys(COUNTERS)
        reasons = dict.fromkeys(COUNTERS, "no batch was seen on its way to a step")
    return whole, measured, reasons


def _sum(events: dict[int, Event], steps: set[int], name: str) -> tuple[int | None, str | None]:
    total = 0
    for step in steps:
        event = events.get(step, {})
        count = event.get(name)
        if not isinstance(count, int):
            return None, event.get("reason") or f"step {step} has no count"
        total += count
    return total, None


def _rate(count: int | None, window_s: float | None) -> float | None:
    return count / window_s if count is not None and window_s else None


def _memory(ranks: Sequence[RankJournal]) -> tuple[dict[str, int | None], dict[str, str]]:
    peaks: dict[str, int | None] = {}
    reasons = {}
    for name, figure in (
        ("allocated_peak_bytes", "peak_allocated_bytes"),
        ("reserved_peak_bytes", "peak_reserved_bytes"),
    ):
        values = [m[name] for rank in ranks for m in rank.of("memory") if isinstance(m.get(name), int)]
        peaks[name] = max(values, default=None)
        if not values:
            told = [str(m["reason"]) for rank in ranks for m in rank.of("memory") if m.get("reason")]
            reasons[figure] = told[0] if told else "no rank reported its allocator"
    return peaks, reasons


def _peak(samples: Sequence[Event], key: str) -> int | None:
    values = [v for s in samples if isinstance(v := s.get("tree", {}).get(key), int)]
    return max(values, default=None)


def phases(rank: RankJournal, ended: float | None) -> dict[str, float]:
    """Seconds by phase: each lasts until the next begins, the last until the rank's `end` or `ended` (epoch seconds).

    A phase that comes again (a second call of train()) adds up.  `import` begins when the process was created.
    """
    marks = [(event["t"], str(event["name"])) for event in rank.of("phase")]
    start = rank.last("start")
    if marks and start and marks[0][1] == "import" and isinstance(start.get("process_started"), int | float):
        marks[0] = (min(start["process_started"], marks[0][0]), "import")
    end = rank.last("end")
    final = end["t"] if end else ended
    spans: dict[str, float] = {}
    for index, (t, name) in enumerate(marks):
        until = marks[index + 1][0] if index + 1 < len(marks) else final
        if until is not None:
            spans[name] = spans.get(name, 0.0) + max(0.0, until - t)
    return spans


def _segments(rank: RankJournal) -> list[Segment]:
    steps = rank.of("step")
    return [
        Segment(
            segment=event["segment"],
            restart=bool(event.get("restart")),
            steps=sum(step.get("segment") == event["segment"] for step in steps),
            batch_asked=event.get("batch_asked"),
            batch_ran=event.get("batch_ran"),
            accumulation=event.get("accumulation"),
        )
        for event in rank.of("segment")
    ]


def _number(value: Any) -> float | None:
    """A finite number; the journal writes others as text."""
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Reasons:
    """Why a figure is null: every null has a reason, and it is a true one."""

    model: bool  # a model was described
    steps: bool  # steps were measured
    tokens: dict[str, str]  # counter -> why it is null
    memory: dict[str, str]  # figure -> why it is null
    losses: list[Any]
    norms: list[Any]

    def of(self, figure: str) -> str:
        if figure in self.memory:
            return self.memory[figure]
        if figure in ("parameters", "trainable_parameters", "device"):
            return "the model's device is neither cuda nor cpu" if self.model else "no model was seen to train"
        if figure.startswith("host_peak"):
            return "the sampler saw no process of the job, or may not read its memory map"
        if figure.startswith("loss"):
            return _why_no_number(self.losses, "the program's training_step returned no loss that can be read")
        if figure.startswith("grad_norm"):
            return _why_no_number(self.norms, "the trainer computed no gradient norm (max_grad_norm unset)")
        if not self.steps:
            return "no step was measured"
        counter = next((name for name in COUNTERS if figure.startswith(name)), None)
        if counter in self.tokens:
            return self.tokens[counter]
        return "a single step was measured" if figure == "step_time_stdev_s" else "the measured steps took no time"


def _why_no_number(values: list[Any], otherwise: str) -> str:
    if not values:
        return "no step ended"
    if isinstance(values[-1], str):  # NaN, Infinity
        since = len(values)
        while since > 1 and values[since - 2] == values[-1]:
            since -= 1
        return f"{values[-1]} since step {since} of the segment"
    return otherwise
