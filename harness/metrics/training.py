"""Did it train?  A fast job that taught nothing is no result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part, number
from harness.metrics.window import last_segment
from harness.record import Kind

FEWEST_LOSSES = 3  # equal to the last bit before a loss counts as one that does not move


@dataclass(frozen=True)
class Finding:
    """Why a job that ended well has not trained."""

    kind: Kind  # no_training or nan_loss
    reason: str
    rank: int
    step: int | None = None


def did_it_train(ranks: Sequence[RankJournal]) -> Finding | None:
    """What speaks against it, of the last segment of each rank; None where nothing does, or no step was seen.

    In this order: a loss that is no number to the end, a gradient norm that is none, parameters that are still those of
    the beginning, gradients of 0 in every step, a loss that is the same in every step where neither gradients nor
    parameters are known.  Where the learning rate was 0 in every step (a warm-up that the job did not outlast) nothing
    was to change."""
    stepped = [(rank, last_segment(rank)) for rank in ranks if rank.of("step")]
    for judge in (_no_number, _unchanged, _no_gradient, _still):
        if judge is _unchanged and _changed_a_part(ranks):
            continue
        for rank, steps in stepped:
            found = judge(rank, steps)
            if found is not None:
                return found
    return None


def _no_number(rank: RankJournal, steps: list[Event]) -> Finding | None:
    for field, name in (("loss", "the loss"), ("grad_norm", "the gradient norm")):
        since = not_a_number_since(steps, field)
        if since is not None and (field == "loss" or len(steps) - since > 1 or since == 0):
            step = steps[since]["step"]
            said = f"rank {rank.rank}, step {step}: {name} is {steps[-1][field]} from here to the end"
            return Finding(Kind.NAN_LOSS, said, rank.rank, step)
    return None


def not_a_number_since(steps: Sequence[Event], field: str) -> int | None:
    """From which of the steps to the last one a figure is no finite number; the journal writes those as text."""
    since = len(steps)
    while since and isinstance(steps[since - 1].get(field), str):
        since -= 1
    return since if since < len(steps) else None


def _unchanged(rank: RankJournal, steps: list[Event]) -> Finding | None:
    last, rates = last_parameters(rank), _rates(steps)
    if last is None or not last.get("tensors") or last.get("changed") != 0 or rates == 0:
        return None
    said = f"rank {rank.rank}: none of the {last['tensors']} trainable tensors changed in {len(steps)} steps"
    if rates is not None:
        said += f", though the learning rates add up to {rates:.3g}"
    return Finding(Kind.NO_TRAINING, said, rank.rank, last.get("step"))


def _changed_a_part(ranks: Sequence[RankJournal]) -> bool:
    """Whether ranks hold different parts of the parameters, and one changed: what is trained (a few rows of an
    embedding) may lie with that one alone."""
    begun = {(first_parameters(rank) or {}).get("checksum") for rank in ranks}
    return len(begun) > 1 and any((last_parameters(rank) or {}).get("changed") for rank in ranks)


def _no_gradient(rank: RankJournal, steps: list[Event]) -> Finding | None:
    if any(step.get("grad_norm") != 0 for step in steps):
        return None
    said = f"rank {rank.rank}: the gradient norm is 0 in all {len(steps)} steps"
    return Finding(Kind.NO_TRAINING, said, rank.rank, steps[0]["step"])


def _still(rank: RankJournal, steps: list[Event]) -> Finding | None:
    """The weakest sign, so the last resort: losses that policies are optimised by, and rounded ones, stand still while
    the model learns."""
    if any(number(step.get("grad_norm")) for step in steps) or (last_parameters(rank) or {}).get("changed") is not None:
        return None
    losses = {step.get("loss") for step in steps}
    if len(steps) < FEWEST_LOSSES or len(losses) > 1 or number(steps[0].get("loss")) is None:
        return None
    if (rank.end or {}).get("seen_by") == "journal":  # the program may have rounded it
        return None
    if not _rates(steps[:-1]):
        return None
    said = f"rank {rank.rank}: the loss is {steps[0]['loss']:.6g} in all {len(steps)} steps"
    return Finding(Kind.NO_TRAINING, said, rank.rank, steps[0]["step"])


def _rates(steps: Sequence[Event]) -> float | None:
    """The sum of the learning rates that are known; None where none is."""
    known = [rate for step in steps if (rate := number(step.get("learning_rate"))) is not None]
    return sum(known) if known else None


def last_parameters(rank: RankJournal) -> Event | None:
    """What the rank told of its parameters at the end of the last segment."""
    steps = rank.of("step")
    told = [event for event in rank.of("parameters") if event.get("when") == "last"]
    return told[-1] if told and steps and told[-1].get("segment") == steps[-1].get("segment") else None


def first_parameters(rank: RankJournal) -> Event | None:
    """What the rank told of its parameters at the beginning of the last segment."""
    steps = rank.of("step")
    told = [event for event in rank.of("parameters") if event.get("when") == "first"]
    return next((e for e in reversed(told) if steps and e.get("segment") == steps[-1].get("segment")), None)


def describe_training(ranks: Sequence[RankJournal]) -> Part:
    """Loss and gradients of rank 0, and over all ranks what became of the parameters."""
    part = Part()
    steps = last_segment(ranks[0])
    losses, norms = [s.get("loss") for s in steps], [s.get("grad_norm") for s in steps]
    no_loss = "no loss was seen: the program told none, or its training_step returned none that can be read"
    no_norm = (
        "no gradient norm was seen: nothing clipped gradients by accelerate (max_grad_norm unset), and nobody told one"
    )
    part.put("loss_first", number(losses[0]) if losses else None, _why(losses[:1], no_loss))
    part.put("loss_last", number(losses[-1]) if losses else None, _why(losses, no_loss))
    part.put("grad_norm_last", number(norms[-1]) if norms else None, _why(norms, no_norm))
    why = "the program told no learning rate" if steps else "no step ended"
    part.put("learning_rate_sum", _rates(steps), why)
    told = [event for rank in ranks if (event := last_parameters(rank)) is not None]
    why = "not all ranks looked at their parameters at the end of training"
    if len(told) == len(ranks):
        why = "no rank holds a part of a trainable tensor that could be compared"
    holding = [event for event in told if event.get("tensors")] if len(told) == len(ranks) else []
    tensors = [event["tensors"] for event in holding if isinstance(event["tensors"], int)]
    changed = [event["changed"] for event in holding if isinstance(event.get("changed"), int)]
    part.put("trainable_tensors", min(tensors, default=None), why)
    part.put("changed_tensors", min(changed, default=None), why)
    part.put("ranks_agree", *_agreement(ranks))
    return part


def _agreement(ranks: Sequence[RankJournal]) -> tuple[bool | None, str]:
    """(whether ranks that began with equal parameters ended with equal ones, why that is not known)."""
    if len(ranks) < 2:
        return None, "there is one rank"
    if any((rank.last("model") or {}).get("whole") is False for rank in ranks):
        return None, "ranks hold parts of the parameters, or flattened ones: their checksums cannot be compared"
    last = [event.get("checksum") for rank in ranks if (event := last_parameters(rank)) is not None]
    if len(last) < len(ranks):
        return None, "not all ranks looked at their parameters at the end of training"
    first = {(first_parameters(rank) or {}).get("checksum") for rank in ranks}
    if None in first:
        return None, "not all ranks looked at their parameters at the beginning of training"
    return (len(set(last)) == 1 if len(first) == 1 else None), "the ranks began with different parameters"


def _why(values: list[Any], otherwise: str) -> str:
    if not values:
        return "no step ended"
    if isinstance(values[-1], str):  # NaN, Infinity
        since = len(values)
        while since > 1 and values[since - 2] == values[-1]:
            since -= 1
        return f"{values[-1]} since step {since} of the segment"
    return otherwise


def describe_ranks_in_step(ranks: Sequence[RankJournal], agree: bool | None) -> dict[str, str]:
    """Flags: ranks that took another number of steps, or that do not `agree` on the parameters."""
    flags = {}
    steps = {rank.rank: len(last_segment(rank)) for rank in ranks}
    if len(set(steps.values())) > 1:
        few, many = min(steps, key=lambda rank: steps[rank]), max(steps, key=lambda rank: steps[rank])
        flags["ranks_out_of_step"] = f"rank {few} took {steps[few]} steps, rank {many} took {steps[many]}"
    if agree is False:
        flags["ranks_diverged"] = "the ranks began with the same parameters and ended with different ones"
    return flags
