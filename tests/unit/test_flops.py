"""FLOPs against counts by torch's FlopCounterMode on the real modules, and against hand counts."""

from dataclasses import replace
from typing import Any

import pytest

from harness.flops import Shape, Tokens, hardware_flops, model_flops, read_shape

HEAD = 32000 * 4096
BLOCK = 4 * 4096 * 4096 + 3 * 4096 * 11008
LORA = 2 * 2 * 16 * 4096  # rank 16 on queries and values
FULL = Shape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=32,
    head_dim=128,
    value_head_dim=128,
    matmul_frozen=0,
    matmul_trainable=32 * BLOCK + HEAD,
    head=HEAD,
    last_linear=4096 * 11008,
    attention="sdpa",
)
ADAPTED = replace(FULL, matmul_frozen=32 * BLOCK + HEAD, matmul_trainable=32 * LORA, input_gradient=False)


def checkpointed(shape: Shape) -> Shape:
    """As transformers does it: it asks for a gradient of the input, too."""
    return replace(shape, checkpointing="non_reentrant", input_gradient=True)


# Counted with FlopCounterMode (torch 2.13, transformers 5.24) on a Llama-7B of fake tensors, in TFLOP a step.
@pytest.mark.parametrize(
    "shape, rows, length, counted",
    [
        pytest.param(checkpointed(ADAPTED), 1, 512, 19.3, id="lora-checkpointed-1x512"),
        pytest.param(checkpointed(ADAPTED), 1, 2048, 84.8, id="lora-checkpointed-1x2048"),
        pytest.param(checkpointed(ADAPTED), 1, 4096, 189.3, id="lora-checkpointed-1x4096"),
        pytest.param(checkpointed(ADAPTED), 8, 512, 154.7, id="lora-checkpointed-8x512"),
        pytest.param(checkpointed(ADAPTED), 8, 2048, 678.2, id="lora-checkpointed-8x2048"),
        pytest.param(checkpointed(ADAPTED), 8, 4096, 1514.7, id="lora-checkpointed-8x4096"),
        pytest.param(ADAPTED, 1, 512, 14.0, id="lora-1x512"),
        pytest.param(ADAPTED, 1, 2048, 61.7, id="lora-1x2048"),
        pytest.param(ADAPTED, 1, 4096, 138.8, id="lora-1x4096"),
        pytest.param(ADAPTED, 8, 512, 111.9, id="lora-8x512"),
        pytest.param(ADAPTED, 8, 2048, 493.7, id="lora-8x2048"),
        pytest.param(FULL, 1, 512, 20.8, id="full-1x512"),
        pytest.param(FULL, 1, 2048, 88.9, id="full-1x2048"),
        pytest.param(checkpointed(FULL), 1, 2048, 111.7, id="full-checkpointed-1x2048"),
        pytest.param(checkpointed(FULL), 8, 2048, 893.6, id="full-checkpointed-8x2048"),
        pytest.param(checkpointed(FULL), 8, 4096, 1945.5, id="full-checkpointed-8x4096"),
    ],
)
def test_llama_7b_as_counted_on_the_real_modules(shape: Shape, rows: int, length: int, counted: float) -> None:
    tokens = Tokens(rows * length, rows * length**2)
    assert round(hardware_flops(shape, tokens) / 1e12, 1) == counted
    assert model_flops(shape, tokens) <= hardware_flops(shape, tokens)


def test_checkpointing_is_in_the_hardware_flops_alone() -> None:
    tokens = Tokens(2048, 2048**2)
    assert model_flops(checkpointed(FULL), tokens) == model_flops(FULL, tokens)
    whole = hardware_flops(replace(FULL, checkpointing="reentrant"), tokens)
    assert whole - hardware_flops(checkpointed(FULL), tokens) == 2 * 2048 * 32 * 4096 * 11008


@pytest.mark.parametrize("frozen_below", [0, 16, 31])
def test_a_block_without_a_backward_is_not_computed_again(frozen_below: int) -> None:
    """Where no gradient of the input is asked for."""
    tokens = Tokens(2048, 2048**2)
    shape = replace(FULL, input_gradient=False, first_trainable_layer=frozen_below)
    again = replace(shape, checkpointing="reentrant")
    attention = 4 * 2048**2 * 4096
    recomputed = (32 - frozen_below) * (2 * 2048 * BLOCK + attention)
    assert hardware_flops(again, tokens) - hardware_flops(shape, tokens) == recomputed


def test_trap_lora_at_6n() -> None:
    """Frozen weights have no gradient of their own, so LoRA's work is two thirds of full fine-tuning's."""
    tokens = Tokens(512, 512**2)
    share = model_flops(ADAPTED, tokens) / model_flops(FULL, tokens)
    assert 0.66 < share < 0.68
    assert model_flops(ADAPTED, tokens) < 0.7 * 6 * 6_738_415_616 * 512


def test_trap_packed_data_at_the_square_of_the_sum() -> None:
    """Four documents of 512 tokens are not one of 2048."""
    packed, one = Tokens(2048, 4 * 512**2), Tokens(2048, 2048**2)
    attention = 3 * 4 * 32 * 4096  # forward and backward, a pair of tokens
    assert model_flops(FULL, one) - model_flops(FULL, packed) == attention * (2048**2 - 4 * 512**2)


def test_trap_padding_is_no_work_of_the_model() -> None:
    """Padded slots are computed, and count in the hardware FLOPs alone."""
    tokens, slots = Tokens(1000, 2 * 500**2), Tokens(2048, 2 * 1024**2)
    assert model_flops(FULL, tokens) < hardware_flops(FULL, slots) / 2


@pytest.mark.parametrize("frozen_below", [0, 16, 32])
def test_blocks_below_the_lowest_trained_one_need_no_gradient(frozen_below: int) -> None:
    shape = replace(ADAPTED, first_trainable_layer=frozen_below, matmul_trainable=0)
    base = model_flops(replace(shape, input_gradient=True), Tokens(1, 0))
    saved = (base - model_flops(shape, Tokens(1, 0))) / 2
    assert saved == frozen_below * BLOCK + 3 * 4096**2


def test_nothing_trained_in_the_blocks() -> None:
    head_alone = replace(ADAPTED, matmul_trainable=0, first_trainable_layer=None)
    assert model_flops(head_alone, Tokens(1, 0)) == 2 * (32 * BLOCK + HEAD) + 2 * HEAD


MIXTRAL_LIKE: dict[str, Any] = {
    "layers": 2,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "intermediate": 512,
    "experts": 8,
    "experts_per_token": 2,
    # A layer: queries and output 256 x 256, keys and values 256 x 64, a router 256 x 8.
    "matmul_trainable": 2 * (2 * 256 * 256 + 2 * 256 * 64 + 256 * 8) + 1000 * 256,
    "matmul_frozen": 0,
    "expert_trainable": 2 * 8 * 3 * 256 * 512,
    "expert_frozen": 0,
    "head": 1000 * 256,
    "last_linear": 0,
    "input_gradient": True,
    "first_trainable_layer": 0,
    "attention": "eager",
    "reason": None,
}


def test_mixtral_like_by_hand() -> None:
    shape = read_shape(MIXTRAL_LIKE)
    assert isinstance(shape, Shape)
    tokens = 2 * 128
    linear = 2 * (131_072 + 32_768 + 2_048) + 256_000  # without experts
    experts = 2 * 2 * 3 * 131_072  # two of eight, in two layers
    attention = 2 * 2 * 128**2 * 2 * 256 * 2  # rows, operations, pairs, scores and values, width, layers
    assert model_flops(shape, Tokens(tokens, 2 * 128**2)) == 6 * tokens * (linear + experts) + 3 * attention
    assert hardware_flops(shape, Tokens(tokens, 2 * 128**2)) == 6 * tokens * (linear + experts) + 3 * attention


def test_a_window_limits_what_a_token_sees() -> None:
    windowed = replace(FULL, window=512, window_layers=32)
    assert model_flops(windowed, Tokens(2048, 2048**2)) == model_flops(FULL, Tokens(2048, 2048 * 512))
    assert model_flops(windowed, Tokens(256, 256**2)) == model_flops(FULL, Tokens(256, 256**2))


@pytest.mark.parametrize(
    "attention, seen",
    [("sdpa", 2048), ("eager", 2048), (None, 2048), ("flash_attention_2", 512), ("flex_attention", 512)],
)
def test_what_a_window_hides_is_computed_all_the_same(attention: str | None, seen: int) -> None:
    shape = replace(FULL, attention=attention)
    windowed = replace(shape, window=512, window_layers=32)
    assert hardware_flops(windowed, Tokens(2048, 2048**2)) == hardware_flops(shape, Tokens(2048, 2048 * seen))


def test_grouped_queries_are_in_the_parameters_and_heads_in_the_attention() -> None:
    """Every query head has scores of its own, however few the heads of keys."""
    grouped = replace(FULL, kv_heads=8)
    assert model_flops(grouped, Tokens(128, 128**2)) == model_flops(FULL, Tokens(128, 128**2))


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"reason": "an encoder and a decoder see different tokens"}, "an encoder and a decoder see different tokens"),
        ({"heads": None}, "the model's config does not tell heads"),
        ({"layers": 0}, "the model's config does not tell layers and heads"),
        (
            {"experts_per_token": None},
            "the model's config does not tell how many of its experts a token is routed to",
        ),
    ],
)
def test_what_cannot_be_counted_says_why(changes: dict[str, Any], why: str) -> None:
    assert read_shape(MIXTRAL_LIKE | changes) == why


def test_a_model_that_was_not_described() -> None:
    assert read_shape(None) == "the model was not described"
