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
    the beginning, gradients of 0 in every step, a loss that is the same in every step.  Where the learning rate was 0
    in every step (a warm-up that the job did not outlast) nothing was to change."""
    stepped = [(rank, last_segment(rank)) for rank in ranks if rank.of("step")]
    for judge in (_no_number, _unchanged, _no_gradient, _still):
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
    last = last_parameters(rank)
    if last is None or not last.get("tensors") or last.get("changed") != 0 or not _rates(steps):
        return None
    said = (
        f"rank {rank.rank}: none of the {last['tensors']} trainable tensors changed in {len(steps)} steps, "
        f"though the learning rates add up to {_rates(steps):.3g}"
    )
    return Finding(Kind.NO_TRAINING, said, rank.rank, last.get("step"))


def _no_gradient(rank: RankJournal, steps: list[Event]) -> Finding | None:
    if any(step.get("grad_norm") != 0 for step in steps):
        return None
    said = f"rank {rank.rank}: the gradient norm is 0 in all {len(steps)} steps"
    return Finding(Kind.NO_TRAINING, said, rank.rank, steps[0]["step"])


def _still(rank: RankJournal, steps: list[Event]) -> Finding | None:
    losses = {step.get("loss") for step in steps}
    if len(steps) < FEWEST_LOSSES or len(losses) > 1 or number(steps[0].get("loss")) is None:
        return None
    if (rank.last("end") or {}).get("seen_by") == "journal":  # the program may have rounded it
        return None
    if not _rates(steps[:-1]):
        return None
    said = f"rank {rank.rank}: the loss is {steps[0]['loss']:.6g} in all {len(steps)} steps"
    return Finding(Kind.NO_TRAINING, said, rank.rank, steps[0]["step"])


def _rates(steps: Sequence[Event]) -> float:
    """The sum of the learning rates, as far as they are known."""
    return sum(number(step.get("learning_rate")) or 0.0 for step in steps)


def last_parameters(rank: RankJournal) -> Event | None:
    """What the rank told of its parameters at the end of the last segment."""
    steps = rank.of("step")
    told = [event for event in rank.of("parameters") if event.get("when") == "last"]
    return told[-1] if told and steps and told[-1].get("segment") == steps[-1].get("segment") else None


def describe_training(ranks: Sequence[RankJournal]) -> Part:
    """Loss and gradients of rank 0, and over all ranks what became of the parameters."""
    part = Part()
    steps = last_segment(ranks[0]) if ranks[0].of("step") else []
    losses, norms = [s.get("loss") for s in steps], [s.get("grad_norm") for s in steps]
    no_loss = "the program's training_step returned no loss that can be read"
    no_norm = "the trainer computed no gradient norm (max_grad_norm unset)"
    part.put("loss_first", number(losses[0]) if losses else None, _why(losses[:1], no_loss))
    part.put("loss_last", number(losses[-1]) if losses else None, _why(losses, no_loss))
    part.put("grad_norm_last", number(norms[-1]) if norms else None, _why(norms, no_norm))
    rates = [number(step.get("learning_rate")) for step in steps]
    known = [rate for rate in rates if rate is not None]
    why = "the program told no learning rate" if steps else "no step ended"
    part.put("learning_rate_sum", sum(known) if known else None, why)
    told = [event for rank in ranks if (event := last_parameters(rank)) is not None]
    complete = told if len(told) == len(ranks) else []
    why = "not all ranks looked at their parameters at the end of training"
    tensors = [event["tensors"] for event in complete if isinstance(event.get("tensors"), int)]
    changed = [event["changed"] for event in complete if isinstance(event.get("changed"), int)]
    part.put("trainable_tensors", min(tensors, default=None), why)
    part.put("changed_tensors", min(changed, default=None), why)
    return part


def _why(values: list[Any], otherwise: str) -> str:
    if not values:
        return "no step ended"
    if isinstance(values[-1], str):  # NaN, Infinity
        since = len(values)
        while since > 1 and values[since - 2] == values[-1]:
            since -= 1
        return f"{values[-1]} since step {since} of the segment"
    return otherwise


def describe_ranks_in_step(ranks: Sequence[RankJournal]) -> dict[str, str]:
    """Flags: ranks that took another number of steps, or that began with equal parameters and ended with others."""
    flags = {}
    steps = {rank.rank: len(last_segment(rank)) for rank in ranks if rank.of("step")}
    if len(set(steps.values())) > 1:
        few, many = min(steps, key=lambda rank: steps[rank]), max(steps, key=lambda rank: steps[rank])
        flags["ranks_out_of_step"] = f"rank {few} took {steps[few]} steps, rank {many} took {steps[many]}"
    sums: dict[str, set[Any]] = {"first": set(), "last": set()}
    for rank in ranks:
        last = last_parameters(rank)
        if last is None:
            return flags
        sums["last"].add(last.get("checksum"))
        begun = [e for e in rank.of("parameters") if e.get("when") == "first" and e.get("segment") == last["segment"]]
        sums["first"].add(begun[-1].get("checksum") if begun else None)
    if len(sums["first"]) == 1 and None not in sums["first"] and len(sums["last"]) > 1:
        flags["ranks_diverged"] = "the ranks began with the same parameters and ended with different ones"
    return flags
