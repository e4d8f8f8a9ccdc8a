"""What the probe tells of a model, against torch's own counting of the operations it makes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.flops import Shape, Tokens, hardware_flops, model_flops, read_shape
from harness.probe.shape import count_roles, data_place, describe_shape
from tests.unit.probe.jobs import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning"),
]

ROWS, LENGTH = 2, 32
MIXTRAL = TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
LATENT = TINY | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 2,
}
CHECKPOINTING = {"use_reentrant": False}


def build(config: dict[str, Any], *, lora: bool = False, checkpointing: bool = False) -> Any:
    import peft
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    if lora:
        adapters = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapters)
    if checkpointing:
        model.gradient_checkpointing_enable(CHECKPOINTING)
    return model.train()


def describe(model: Any) -> dict[str, Any]:
    return describe_shape(model, count_roles(model), SimpleNamespace(), None)


def counted(model: Any) -> int:
    """Operations of a forward and a backward, by torch's counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.randint(0, 256, (ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "config, options",
    [
        pytest.param(TINY, {}, id="full"),
        pytest.param(TINY, {"lora": True}, id="lora"),
        pytest.param(TINY, {"checkpointing": True}, id="full-checkpointed"),
        pytest.param(TINY, {"lora": True, "checkpointing": True}, id="lora-checkpointed"),
        pytest.param(TINY | {"num_key_value_heads": 2}, {}, id="grouped-query-attention"),
        pytest.param(TINY | {"tie_word_embeddings": True}, {}, id="tied-embeddings"),
        pytest.param(TINY | {"model_type": "qwen2"}, {}, id="biases"),
        pytest.param(LATENT, {}, id="latent-attention"),
        pytest.param({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}, {}, id="gpt2"),
    ],
)
def test_flops_are_those_that_torch_counts(config: dict[str, Any], options: dict[str, bool]) -> None:
    model = build(config, **options)
    shape = read_shape(describe(model))
    assert isinstance(shape, Shape)
    tokens = Tokens(ROWS * LENGTH, ROWS * LENGTH**2)
    # The counter sees rotary embeddings as matrices of a column, and that the first adapters' inputs need no gradient.
    close = 5e-3 if options.get("lora") else 1e-3
    assert hardware_flops(shape, tokens) == pytest.approx(counted(model), rel=close)
    if not options.get("checkpointing"):
        assert model_flops(shape, tokens) == hardware_flops(shape, tokens)


def test_of_experts_those_count_that_a_token_is_routed_to() -> None:
    model = build(MIXTRAL)
    event = describe(model)
    assert (event["experts"], event["experts_per_token"], event["last_linear"]) == (4, 2, 0)
    assert event["expert_trainable"] == 2 * 4 * 3 * 64 * 128
    shape = read_shape(event)
    assert isinstance(shape, Shape)
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 64 * 4) + 256 * 64
    assert shape.trainable == linear + 2 * 2 * 3 * 64 * 128


def test_what_is_told_of_a_model() -> None:
    event = describe(build(TINY | {"tie_word_embeddings": True}, lora=True))
    assert (event["layers"], event["hidden"], event["heads"], event["kv_heads"], event["vocab"]) == (2, 64, 4, 4, 256)
    assert (event["tied"], event["attention"], event["compute_dtype"]) == (True, "eager", "float32")
    assert (event["input_gradient"], event["first_trainable_layer"], event["checkpointing"]) == (False, 0, None)
    assert event["reason"] is None


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("input_gradient", [False, True])
def test_frozen_blocks_below(checkpointing: bool, input_gradient: bool) -> None:
    model = build(TINY, checkpointing=checkpointing)  # which asks for the input's gradient, by transformers 5
    model.disable_input_require_grads()
    if input_gradient:
        model.enable_input_require_grads()
    model.requires_grad_(False)
    model.model.layers[1].requires_grad_(True)
    event = describe(model)
    assert (event["first_trainable_layer"], event["input_gradient"]) == (1, input_gradient)
    shape = read_shape(event)
    assert isinstance(shape, Shape)
    assert hardware_flops(shape, Tokens(ROWS * LENGTH, ROWS * LENGTH**2)) == pytest.approx(counted(model), rel=1e-3)


@pytest.mark.parametrize(
    "config, why",
    [
        ({"is_encoder_decoder": True}, "an encoder and a decoder see different tokens"),
        ({"vision_config": {}}, "not all inputs are tokens: the model's config has vision_config"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of type linear_attention are not counted"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "weights quantised by gptq are no parameters that could be counted",
        ),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, None),
        ({"num_hidden_groups": 1}, "layers share their parameters"),
    ],
    ids=["encoder-decoder", "vision", "linear-attention", "gptq", "bitsandbytes", "albert"],
)
def test_what_cannot_be_counted(config: dict[str, Any], why: str | None) -> None:
    model = build(TINY)
    model.config = SimpleNamespace(num_hidden_layers=2, **config)
    assert describe(model)["reason"] == why


def test_a_model_without_a_config() -> None:
    import torch

    event = describe(torch.nn.Linear(2, 3))
    assert (event["layers"], event["heads"], event["reason"]) == (None, None, "the model has no config")
    assert read_shape(event) == "the model has no config"


@pytest.fixture
def precision() -> Iterator[Any]:
    """torch's settings of float32 multiplication, put back after the test."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    everywhere: Any = torch.backends
    before = (matmul.fp32_precision, everywhere.fp32_precision)
    yield SimpleNamespace(matmul=matmul, everywhere=everywhere)
    matmul.fp32_precision, everywhere.fp32_precision = before


@pytest.mark.parametrize(
    "matmul, everywhere, dtype",
    [("tf32", "none", "tf32"), ("none", "tf32", "tf32"), ("ieee", "tf32", "float32"), ("none", "none", "float32")],
)
def test_float32_in_tensor_cores(precision: Any, matmul: str, everywhere: str, dtype: str) -> None:
    """Set as transformers' enable_tf32 does it, after which torch's older function raises."""
    precision.matmul.fp32_precision, precision.everywhere.fp32_precision = matmul, everywhere
    assert describe(build(TINY))["compute_dtype"] == dtype


def test_float32_in_tensor_cores_the_older_way(precision: Any) -> None:
    import torch

    torch.set_float32_matmul_precision("high")
    try:
        assert describe(build(TINY))["compute_dtype"] == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_type_that_cannot_be_read_costs_the_peak_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed() -> bool:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr("harness.probe.shape._allows_tf32", mixed)
    event = describe(build(TINY))
    assert (event["compute_dtype"], event["layers"]) == (None, 2)


class Mesh:
    """As accelerate's device mesh: named dimensions and their sizes."""

    def __init__(self, **sizes: int) -> None:
        self.mesh_dim_names = tuple(sizes)
        self._sizes = tuple(sizes.values())

    def size(self, dimension: int) -> int:
        return self._sizes[dimension]


@pytest.mark.parametrize(
    "rank, ranks, mesh, place",
    [
        (3, 8, None, (3, 8)),
        (3, 8, Mesh(dp_shard=8), (3, 8)),
        (3, 8, Mesh(dp_shard=4, tp=2), (1, 4)),
        (7, 8, Mesh(dp_replicate=2, cp=2, tp=2), (1, 2)),
    ],
    ids=["no-mesh", "sharded", "tensor-parallel", "context-and-tensor-parallel"],
)
def test_ranks_that_are_fed_the_same_batches(rank: int, ranks: int, mesh: Any, place: tuple[int, int]) -> None:
    accelerator = SimpleNamespace(process_index=rank, num_processes=ranks, torch_device_mesh=mesh)
    assert data_place(SimpleNamespace(accelerator=accelerator)) == place


def test_nobody_tells_of_the_data() -> None:
    assert data_place(None) == (None, None)
