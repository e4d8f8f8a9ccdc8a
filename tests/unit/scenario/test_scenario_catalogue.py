"""Parameter counts, against what was published and against the models themselves."""

import json
import subprocess
import sys
from typing import Any

import pytest

from harness.scenario import MODELS, parameter_count

VARIANTS: list[dict[str, Any]] = [
    {"model_type": "llama", "num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": True, "num_key_value_heads": 4},
    {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 64},
    {"model_type": "mistral", "num_hidden_layers": 2},
    {"model_type": "qwen2", "num_hidden_layers": 2, "num_key_value_heads": 4},
    {"model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 4},
]


def test_the_catalogue_has_the_published_counts() -> None:
    published = {"llama-7b": 6_738_415_616, "llama3-8b": 8_030_261_248, "mixtral-8x7b": 46_702_792_704}
    assert {name: MODELS[name].parameters for name in published} == published


@pytest.mark.parametrize("name", MODELS)
def test_the_formula_gives_the_catalogues_count(name: str) -> None:
    assert parameter_count(MODELS[name].shape) == MODELS[name].parameters


@pytest.mark.parametrize("shape", [{}, {"model_type": "gpt2"}, {"model_type": 3}], ids=str)
def test_an_unknown_type_has_no_count(shape: dict[str, Any]) -> None:
    assert parameter_count(shape) is None


@pytest.mark.slow
def test_the_formula_counts_as_torch_does() -> None:
    pytest.importorskip("torch")
    program = """
import json, sys, torch, transformers
for shape in json.load(sys.stdin):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**shape))
    print(sum(parameter.numel() for parameter in model.parameters()))
"""
    shapes = [dict(model.shape) for model in MODELS.values()] + VARIANTS
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(shapes),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert [int(count) for count in found.stdout.split()] == [parameter_count(shape) for shape in shapes]
