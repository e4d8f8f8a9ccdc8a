"""Figures against what else is known: the program's own, the data's size, the scenario's model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.journal import RankJournal
from harness.metrics.parts import Part, number
from harness.metrics.throughput import RATES, SQUARES, Counts
from harness.metrics.window import last_segment
from harness.record import Built, Reported

WHOLE = "of all of train(): the first step, logging, saving and evaluating included"
# transformers 4 counts its own data loader's slots before it trains.
OLD = "before transformers 5 one rank's alone, with max_steps reckoned from its first batch"
# What programs log of themselves -> (ours, why the two differ).
REPORTED = {
    "train_samples_per_second": ("samples_per_s", WHOLE),
    "train_tokens_per_second": (
        "padded_tokens_per_s",
        f"{WHOLE}; padding too, unless the program leaves it out; {OLD}",
    ),
    "num_input_tokens_seen": ("padded", "padding too, unless the program leaves it out; of all calls of train()"),
    "num_tokens": ("non_pad", "of all calls of train()"),
    "total_flos": ("model_flops", "6 a slot and parameter: with padding and what LoRA spares, without attention"),
}
# Fields of the scenario's shape -> of the `shape` event.
SHAPE = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "intermediate",
    "vocab_size": "vocab",
    "num_local_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
}


def describe_built(rank: RankJournal) -> Built | None:
    """The model as the rank described it; None where none was seen to train."""
    model, shape = rank.last("model"), rank.last("shape") or {}
    if model is None:
        return None
    fields = {name: model.get(name, shape.get(name)) for name in Built.model_fields}
    return Built(**fields)


def disagreements(built: Built | None, scenario: Mapping[str, Any]) -> str | None:
    """Where the model that was built is not the one that the scenario asks for."""
    asked = scenario.get("model")
    if built is None or not isinstance(asked, Mapping):
        return None
    pairs = [(name, (asked.get("shape") or {}).get(name), getattr(built, ours)) for name, ours in SHAPE.items()]
    if (scenario.get("trainer") or {}).get("kind") == "hf":  # for a script the defaults say nothing
        pairs.append(("dtype", asked.get("dtype"), built.dtype))
    pairs.append(("attention", asked.get("attention"), built.attention))
    differing = [(name, want, got) for name, want, got in pairs if None not in (want, got) and want != got]
    return "; ".join(f"{name}: {want} asked for, {got} built" for name, want, got in differing) or None


def describe_reported(rank: RankJournal, figures: Mapping[str, Any]) -> list[Reported]:
    """What the program logged of itself last, beside ours; `figures` are those of `Measurements`."""
    logged: dict[str, Any] = {}
    for event in rank.of("log"):
        logged |= event.get("logs") or {}
    steps = len(last_segment(rank))
    per_step = figures.get("model_flops_per_step")
    known = {**figures, **figures["tokens"], "model_flops": None if per_step is None else per_step * steps}
    found = []
    for name, (ours, why) in REPORTED.items():
        value = number(logged.get(name))
        if value is not None:
            mine = number(known.get(ours))
            ratio = value / mine if mine else None
            found.append(Reported(name=name, value=value, ours=mine, ratio=ratio, why=f"it is {why}"))
    return found


def withdraw_impossible(rates: Part, counts: Counts, ranks: Sequence[RankJournal], scenario: Mapping[str, Any]) -> None:
    """Rates of more tokens than there are, in the slots or in the data, become null; both numbers are in the reason.

    What follows from the same counts (FLOPs) is null with them."""
    padded, non_pad = counts.whole["padded"], counts.whole["non_pad"]
    if padded is not None and non_pad is not None and non_pad > padded:
        _withdraw(rates, counts, ("non_pad", "trainable"), f"{non_pad} tokens were counted in {padded} slots")
    limit = _tokens_in_data(ranks, scenario)
    if limit is not None and non_pad is not None and non_pad > limit:
        _withdraw(rates, counts, tuple(RATES), f"{non_pad} tokens were counted, and the data holds {limit}")


def _withdraw(rates: Part, counts: Counts, counters: Sequence[str], why: str) -> None:
    for counter in counters:
        for name in (RATES[counter], f"{RATES[counter]}_per_device"):
            value = rates.values[name]
            if value is not None:
                rates.put(name, None, f"would be {value:.6g}: {why}")
    for counter in (*counters, *SQUARES):
        counts.measured[counter], counts.reasons[counter] = None, why


def _tokens_in_data(ranks: Sequence[RankJournal], scenario: Mapping[str, Any]) -> int | None:
    """At most so many tokens are in the passes that the built-in target made over its synthetic data.

    Other programs add tokens of their own (the end of a text), or read other data."""
    if (scenario.get("trainer") or {}).get("kind", "hf") != "hf":
        return None
    data, steps = scenario.get("data"), ranks[0].of("step")
    epochs = number(steps[-1].get("epoch")) if steps else None
    segment = ranks[0].last("segment") or {}
    batch, accumulation = segment.get("batch_ran"), segment.get("accumulation")
    if not isinstance(data, Mapping) or epochs is None or not isinstance(batch, int):
        return None
    # A sampler repeats samples to give every rank whole batches.
    repeated = math.ceil(epochs) * len(ranks) * batch * (accumulation or 1)
    return int((epochs * data["samples"] + repeated) * data["sequence_length"])
