"""The models that scenarios can name: their shapes as transformers' config fields, and how many parameters a shape has.

A shape is enough to benchmark: weights are random, so nothing is downloaded and no licence is met."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Model:
    """A catalogue entry: `shape` holds `model_type` and fields of that type's transformers config."""

    shape: Mapping[str, Any]
    parameters: int  # as published
    keywords: tuple[str, ...]  # extra words for `pytest -k`


# tiny-llama has no keywords: `-k tiny` and `-k llama` then select by id alone, whatever scenario uses it.
MODELS: dict[str, Model] = {
    "tiny-llama": Model(
        shape={
            "model_type": "llama",
            "vocab_size": 512,  # as many tokens as the tokenizer beside its checkpoints has
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
        },
        parameters=147_776,
        keywords=(),
    ),
    "llama-7b": Model(  # meta-llama/Llama-2-7b-hf, config.json
        shape={
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        parameters=6_738_415_616,
        keywords=("llama-7b", "llama7b"),
    ),
    "llama3-8b": Model(  # meta-llama/Meta-Llama-3-8B, config.json
        shape={
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
        },
        parameters=8_030_261_248,
        keywords=("llama3-8b", "llama38b"),
    ),
    "mixtral-8x7b": Model(  # mistralai/Mixtral-8x7B-v0.1, config.json
        shape={
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
        },
        parameters=46_702_792_704,
        keywords=("mixtral-8x7b", "mixtral8x7b"),
    ),
}

# model_type -> (biases of q, k, v; bias of o): what the types do when no `attention_bias` is given.
_ATTENTION_BIAS = {
    "llama": (False, False),
    "mistral": (False, False),
    "mixtral": (False, False),
    "qwen2": (True, False),
}

# What a config class has where a shape leaves a field out.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008},
    "mistral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336},
    "mixtral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336},
    "qwen2": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016},
}
_KEY_VALUE_HEADS: dict[str, int | None] = {"llama": None, "mistral": 8, "mixtral": 8, "qwen2": 32}


def parameter_count(shape: Mapping[str, Any]) -> int | None:
    """Parameters of a causal language model of this shape, tied weights once; None for types without a formula here.

    Embedding V*d, head V*d unless tied; a layer has q and o (d * h*k), k and v (d * g*k), two norms (d), and a gated
    MLP of 3*d*f, or E of them and a router of d*E; one last norm.  (V vocabulary, d width, h heads, g key-value heads,
    k head width, f MLP width, E experts.)"""
    kind = shape.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        return None
    fields = (
        {"num_hidden_layers": 32, "num_attention_heads": 32, "num_local_experts": 8} | _DEFAULTS[kind] | dict(shape)
    )
    d, f, vocabulary = fields["hidden_size"], fields["intermediate_size"], fields["vocab_size"]
    embeddings = vocabulary * d * (1 if fields.get("tie_word_embeddings") else 2)
    experts = fields["num_local_experts"] if kind == "mixtral" else 1
    mlp = 3 * d * f * experts + (d * experts if kind == "mixtral" else 0)
    if kind == "llama" and fields.get("mlp_bias"):
        mlp += 2 * f + d
    layer = _attention_parameters(kind, fields, d) + mlp + 2 * d
    return int(embeddings + fields["num_hidden_layers"] * layer + d)


def _attention_parameters(kind: str, fields: Mapping[str, Any], d: int) -> int:
    heads: int = fields["num_attention_heads"]
    key_value_heads: int = fields.get("num_key_value_heads", _KEY_VALUE_HEADS[kind]) or heads
    width: int = fields.get("head_dim") or d // heads
    queries, keys = heads * width, key_value_heads * width
    qkv_bias, o_bias = _ATTENTION_BIAS[kind]
    if kind == "llama" and fields.get("attention_bias"):
        qkv_bias = o_bias = True
    biases = (queries + 2 * keys if qkv_bias else 0) + (d if o_bias else 0)
    return 2 * d * queries + 2 * d * keys + biases
