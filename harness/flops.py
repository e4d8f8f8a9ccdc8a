"""Floating-point operations of training a decoder, from its shape and the tokens it saw.  Pure.

Two numbers.  Model FLOPs: what the mathematics needs for the tokens that are no padding, nothing computed twice.
Hardware FLOPs: what is really computed, padding included, activations recomputed under checkpointing, and scores
recomputed in the backward of a fused attention.

Conventions.  A multiplication and an addition are two operations.  A matrix of N parameters costs a token 2N forward,
2N for the gradient of its input and 2N for its own gradient; a frozen matrix has no gradient of its own, and what lies
below the lowest trained block needs no gradient of its input.  Embeddings are looked up and cost nothing; the output
head counts, also where it is the embedding.  Attention of a sequence of s tokens costs 2 s^2 (d_qk + d_v) a head and
layer, **in full: not halved for a causal mask** (as PaLM, torchtitan and torch's own counter have it), twice as much
backward.  Norms, activations, rotary embeddings, the loss and the optimizer are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

NEEDED = ("layers", "hidden", "heads", "matmul_frozen", "matmul_trainable")
GIVEN = (*NEEDED, "window", "first_trainable_layer", "checkpointing", "attention")
COUNTED = ("expert_frozen", "expert_trainable", "head", "last_linear", "window_layers")  # 0 where it is null


@dataclass(frozen=True)
class Shape:
    """A model as FLOPs see it; fields as in the journal's `shape` event, whose nulls are filled in."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    matmul_frozen: int
    matmul_trainable: int
    expert_frozen: int = 0
    expert_trainable: int = 0
    active_share: float = 1.0  # of the experts, those a token is routed to
    head: int = 0
    last_linear: int = 0
    window: int | None = None
    window_layers: int = 0
    first_trainable_layer: int | None = 0
    first_norm_trained: bool = False
    input_gradient: bool = True
    checkpointing: str | None = None
    attention: str | None = None

    @property
    def frozen(self) -> float:
        """Frozen parameters that multiply a token."""
        return self.matmul_frozen + self.active_share * self.expert_frozen

    @property
    def trainable(self) -> float:
        return self.matmul_trainable + self.active_share * self.expert_trainable

    @property
    def block(self) -> float:
        """Parameters of a block that multiply a token."""
        return (self.frozen + self.trainable - self.head) / self.layers

    @property
    def blocks_without_gradient(self) -> int:
        """Blocks below the lowest trained one, where nothing before them is trained either."""
        if self.input_gradient:
            return 0
        return self.layers if self.first_trainable_layer is None else self.first_trainable_layer


@dataclass(frozen=True)
class Tokens:
    """How many tokens, and the sum of the squared lengths of the sequences they form."""

    count: float
    squares: float


def read_shape(event: Mapping[str, Any] | None) -> Shape | str:
    """The shape that a `shape` event tells; a text says why FLOPs cannot be counted from it."""
    if event is None:
        return "the model was not described"
    if event.get("reason"):
        return str(event["reason"])
    lacking = [name for name in NEEDED if not isinstance(event.get(name), int)]
    if lacking or not event["layers"] or not event["heads"]:
        return f"the model's config does not tell {', '.join(lacking) or 'layers and heads'}"
    experts, active = event.get("experts"), event.get("experts_per_token")
    has_experts = bool(event.get("expert_frozen") or event.get("expert_trainable"))
    if has_experts and not (experts and active):
        return "the model's config does not tell how many of its experts a token is routed to"
    if not has_experts:
        experts = active = 1
    head_dim = event.get("head_dim") or event["hidden"] // event["heads"]
    given: dict[str, Any] = {name: event.get(name) for name in GIVEN} | {name: event.get(name) or 0 for name in COUNTED}
    return Shape(
        **given,
        kv_heads=event.get("kv_heads") or event["heads"],
        head_dim=head_dim,
        value_head_dim=event.get("value_head_dim") or head_dim,
        active_share=float(active or 1) / float(experts or 1),
        first_norm_trained=bool(event.get("first_norm_trained")),
        input_gradient=bool(event.get("input_gradient", True)),
    )


def model_flops(shape: Shape, tokens: Tokens) -> float:
    """Of a forward and a backward; `tokens` are those that are no padding."""
    return _linear(shape, tokens.count) + _attention(shape, tokens) * (1 + 2 * _with_gradient(shape))


def hardware_flops(shape: Shape, slots: Tokens) -> float:
    """As computed; `slots` are all that went through the matrices, squares as attention saw them."""
    attention = _attention(shape if skips_masked(shape.attention) else replace(shape, window=None), slots)
    backward = 2.5 if fused(shape.attention) else 2.0  # a fused backward computes the scores once more
    recomputed = 0.0
    if shape.checkpointing is not None:
        blocks = shape.frozen + shape.trainable - shape.head
        if shape.checkpointing == "non_reentrant":  # ends at the last tensor that the backward needs
            blocks -= shape.last_linear * shape.layers
        # A block whose input and parameters need no gradient has no backward, and is not computed again.
        recomputed = (2 * blocks * slots.count + attention) * _with_gradient(shape)
    return _linear(shape, slots.count) + attention * (1 + backward * _with_gradient(shape)) + recomputed


def fused(attention: str | None) -> bool:
    """Whether an implementation, as transformers calls it, recomputes scores in its backward.  Unknown ones do."""
    return attention != "eager"


def skips_masked(attention: str | None) -> bool:
    """Whether an implementation leaves out what a sliding window hides; the others compute it, and mask it."""
    return any(kernel in str(attention) for kernel in ("flash", "flex"))


def _linear(shape: Shape, tokens: float) -> float:
    """Matrices: forward, gradients of inputs, gradients of trained weights."""
    needless = shape.blocks_without_gradient * shape.block
    trained = shape.first_trainable_layer is not None
    if trained and not shape.input_gradient and not shape.first_norm_trained:
        # Queries, keys and values of the lowest trained block: nothing below them asks for a gradient.
        keys_and_values = shape.kv_heads * (shape.head_dim + shape.value_head_dim)
        needless += shape.hidden * (shape.heads * shape.head_dim + keys_and_values)
    forward = shape.frozen + shape.trainable
    return 2 * tokens * (forward + max(0.0, forward - needless) + shape.trainable)


def _attention(shape: Shape, tokens: Tokens) -> float:
    """Scores and their product with the values, forward, all layers."""
    wide = shape.layers - shape.window_layers
    seen = tokens.squares
    if shape.window is not None and tokens.count:
        # Each token sees the window at most; sequences are taken as equally long.
        seen = tokens.count * min(shape.window, tokens.squares / tokens.count)
    pairs = wide * tokens.squares + shape.window_layers * seen
    return 2 * pairs * shape.heads * (shape.head_dim + shape.value_head_dim)


def _with_gradient(shape: Shape) -> float:
    """The share of blocks that have a backward."""
    return (shape.layers - shape.blocks_without_gradient) / shape.layers
