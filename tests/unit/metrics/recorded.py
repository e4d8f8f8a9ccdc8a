"""A job as its ranks journal it: steps of 0.1 s on an A100, a model small enough to work out its FLOPs by hand."""

from typing import Any

from harness import metrics
from harness.journal import Event, RankJournal
from harness.record import Measurements
from tests.unit.journals import T0, event, rank, step, tokens

# One block of width 8 with 2 heads: queries, keys, values, output 4 x 64, feed-forward 3 x 128; output head 10 x 8.
BLOCK = 4 * 64 + 3 * 8 * 16
HEAD = 10 * 8
SHAPE: dict[str, Any] = {
    "layers": 1,
    "hidden": 8,
    "heads": 2,
    "kv_heads": 2,
    "head_dim": 4,
    "intermediate": 16,
    "vocab": 10,
    "matmul_frozen": 0,
    "matmul_trainable": BLOCK + HEAD,
    "expert_frozen": 0,
    "expert_trainable": 0,
    "head": HEAD,
    "last_linear": 128,
    "first_trainable_layer": 0,
    "input_gradient": True,
    "window_layers": 0,
    "checkpointing": None,
    "attention": "sdpa",
    "compute_dtype": "bfloat16",
    "reason": None,
}
LORA = {"matmul_frozen": BLOCK + HEAD, "matmul_trainable": 64, "last_linear": 128}
CHECKPOINTED = {"checkpointing": "non_reentrant"}
STEPS = 20


def journal(
    number: int = 0,
    *,
    shape: dict[str, Any] | None = None,
    count: dict[str, Any] | None = None,
    steps: int = STEPS,
    seconds: float = 0.1,
    segment: dict[str, Any] | None = None,
    device: str | None = "NVIDIA A100-SXM4-80GB",
    extra: list[Event] | None = None,
) -> RankJournal:
    """Rank `number`: each step has two rows of 64 tokens unless `count` says otherwise."""
    counted = {"padded": 128, "non_pad": 128, "trainable": 126, "samples": 2}
    counted |= {"padded_squares": 2 * 64**2, "non_pad_squares": 2 * 64**2} | (count or {})
    events = [
        event("model", device="cuda:0" if device else "cpu", device_name=device, parameters=1000, trainable=1000),
        event("shape", **(SHAPE | (shape or {}))),
        event("segment", segment=0, batch_ran=2, accumulation=1, **({"data_rank": number} | (segment or {}))),
    ]
    for n in range(1, steps + 1):
        events += [step(n, seconds), tokens(n, **counted)]
    return rank(number, *events, *(extra or []))


def measure(
    *ranks: RankJournal, scenario: dict[str, Any] | None = None, samples: list[Event] | None = None
) -> Measurements:
    measured = metrics.measure(ranks, samples or [], metrics.Job(metrics.Wall(ended=T0 + 100), scenario or {}))
    assert measured is not None
    return measured.figures
