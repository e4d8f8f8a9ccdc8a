"""Where a step's time goes: the wait for data, forward and backward, the optimizer, the rest, and logging."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part, number
from harness.metrics.window import Window, describe_segment, segment_steps

# figure -> field of a `step` event
PARTS = {
    "data_wait_s": "data_wait_seconds",
    "forward_backward_s": "forward_backward_seconds",
    "optimizer_s": "optimizer_seconds",
}
FIGURES = (*PARTS, "step_rest_s", "log_save_eval_s")
NOT_SEEN = {
    "data_wait_s": "no batch was seen to be fetched in step {step}",
    "forward_backward_s": "step {step} was not seen to compute through Trainer.training_step",
    "optimizer_s": "step {step} was not seen to compute through Trainer.training_step",
}


def describe_split(ranks: Sequence[RankJournal], window: Window | None) -> Part:
    """Means over the measured steps of the slowest rank, their shares of its mean step; each rank's wait for data."""
    part = Part()
    part.values |= {"rank_data_wait_s": {}, "step_shares": {}}
    if window is None or not window.seconds:
        part.nulls(FIGURES, "no step was measured" if window is None else "the measured steps took no time")
        return part
    part.values["rank_data_wait_s"] = {
        rank.rank: wait
        for rank in ranks
        if rank.rank in window.times and isinstance(wait := _mean(_steps(rank, window), "data_wait_s"), float)
    }
    slowest = next(rank for rank in ranks if rank.rank == window.slowest)
    steps = _steps(slowest, window)
    told = describe_segment(slowest, window.segment)
    for name in PARTS:
        mean = _mean(steps, name)
        why = (name != "data_wait_s" and told.get("split_reason")) or mean
        part.put(name, mean if isinstance(mean, float) else None, str(why))
    step = window.seconds / len(window.steps)
    _put_rest(part, step)
    part.values["step_shares"] = {
        name.removesuffix("_s"): part.values[name] / step
        for name in (*PARTS, "step_rest_s")
        if part.values[name] is not None
    }
    overhead = [number(event.get("overhead_seconds")) for event in segment_steps(slowest, window.segment)]
    told_overhead = [seconds for seconds in overhead if seconds is not None]
    part.put("log_save_eval_s", sum(told_overhead) if told_overhead else None, "no step tells of it")
    return part


def _steps(rank: RankJournal, window: Window) -> list[Event]:
    numbers = set(window.steps)
    return [step for step in segment_steps(rank, window.segment) if step["step"] in numbers]


def _mean(steps: Sequence[Event], name: str) -> float | str:
    """Seconds; a text says why that is not known."""
    values = []
    for step in steps:
        value: Any = number(step.get(PARTS[name]))
        if value is None:
            return NOT_SEEN[name].format(step=step["step"])
        values.append(value)
    return fmean(values) if values else "no step was measured"


def _put_rest(part: Part, step: float) -> None:
    """What is left of the mean step; the host's wait for data may have passed while the device was still at work."""
    known = [part.values[name] for name in PARTS]
    lacking = [name for name in PARTS if part.values[name] is None]
    if lacking:
        part.put("step_rest_s", None, f"{lacking[0]} is not known")
        return
    rest = step - sum(known)
    beyond = f"the parts take {sum(known):.6g} s of {step:.6g}: the wait for data passed while the device was at work"
    part.put("step_rest_s", max(0.0, rest) if rest > -1e-6 * step else None, beyond)
