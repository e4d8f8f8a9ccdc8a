"""What the probe tells of a model, against torch's own counting of the operations it makes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.flops import Shape, Tokens, hardware_flops, model_flops, read_shape
from harness.probe.shape import count_roles, data_place, describe_shape, slices, why_not_split
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


GRANITE = MIXTRAL | {"model_type": "granitemoe"}
DBRX_LIKE = {"w1": (4 * 128, 64), "v1": (4 * 128, 64), "w2": (4 * 128, 64)}


def test_experts_that_are_not_under_that_name() -> None:
    """Granite's lie in one tensor, below `block_sparse_moe`, beside a router that every token sees."""
    event = describe(build(GRANITE))
    assert event["expert_trainable"] == 2 * 4 * 3 * 64 * 128
    assert event["matmul_trainable"] == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 64 * 4) + 256 * 64


def with_experts(block: Any) -> dict[str, Any]:
    """What is told of a model of one block, whose config speaks of 4 experts."""
    import torch

    model: Any = torch.nn.Module()
    model.layers = torch.nn.ModuleList([block])
    model.config = SimpleNamespace(num_hidden_layers=1, moe_num_experts=4, moe_top_k=2)
    return count_roles(model)


def test_experts_are_found_by_their_number() -> None:
    import torch

    listed: Any = torch.nn.Module()
    listed.feed_forward = torch.nn.ModuleList([torch.nn.Linear(64, 128, bias=False) for _ in range(4)])
    listed.others = torch.nn.ModuleList([torch.nn.Linear(64, 128, bias=False) for _ in range(3)])
    told = with_experts(listed)
    assert (told["expert_trainable"], told["matmul_trainable"]) == (4 * 64 * 128, 3 * 64 * 128)
    flat: Any = torch.nn.Module()
    flat.experts = torch.nn.ParameterDict({name: torch.empty(*shape) for name, shape in DBRX_LIKE.items()})
    flat.experts["bias"] = torch.nn.Parameter(torch.empty(4, 128))
    flat.router = torch.nn.Linear(64, 4, bias=False)
    told = with_experts(flat)
    assert (told["expert_trainable"], told["matmul_trainable"]) == (3 * 4 * 128 * 64, 64 * 4)


def test_the_type_that_4_bit_weights_are_brought_to(precision: Any) -> None:
    import torch

    class Linear4bit(torch.nn.Linear):  # type: ignore[misc]
        """As bitsandbytes has it."""

        compute_dtype: Any = None

    model = torch.nn.Sequential(torch.nn.Embedding(4, 4), Linear4bit(4, 4))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(mixed_precision="no"))

    def told(mixed: str = "no") -> Any:
        trainer.accelerator.mixed_precision = mixed
        return describe_shape(model, count_roles(model), SimpleNamespace(), trainer)["compute_dtype"]

    assert told() == "float32"  # nobody has set it: bitsandbytes takes the type of what comes in
    Linear4bit.compute_dtype = torch.bfloat16
    assert told() == "bfloat16"
    Linear4bit.compute_dtype = torch.float32
    assert told() == "float32"
    assert told(mixed="bf16") == "bfloat16"  # autocast casts once more


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


@pytest.mark.parametrize("rank, size, place", [(0, 2, (0, 2)), (3, 2, (1, 2)), (3, 1, (0, 1)), (3, None, (0, 1))])
def test_ranks_that_see_slices_of_a_batch(rank: int, size: int | None, place: tuple[int, int]) -> None:
    """Sequence parallel: DeepSpeed makes the groups, accelerate no mesh.  Each slice is a share of its own."""
    config = SimpleNamespace(sp_size=size, sp_backend="deepspeed")
    accelerator = SimpleNamespace(
        process_index=rank, num_processes=4, torch_device_mesh=None, parallelism_config=config
    )
    trainer = SimpleNamespace(accelerator=accelerator)
    assert slices(trainer) == place
    assert data_place(trainer) == (rank, 4)
    assert slices(SimpleNamespace()) == (0, 1)


@pytest.mark.parametrize(
    "kind, optimizer, why",
    [
        ("DistributedType.MULTI_GPU", "adamw_torch_fused", None),
        ("DistributedType.DEEPSPEED", "adamw_torch", "DeepSpeed takes the optimizer's step within the backward"),
        ("DistributedType.NO", "galore_adamw_layerwise", "galore_adamw_layerwise takes the optimizer's step within"),
        ("DistributedType.NO", "lomo", "lomo takes the optimizer's step within the backward"),
    ],
)
def test_where_the_optimizer_steps_within_the_backward(kind: str, optimizer: str, why: str | None) -> None:
    trainer = SimpleNamespace(accelerator=SimpleNamespace(distributed_type=kind))
    said = why_not_split(SimpleNamespace(optim=optimizer), trainer)
    assert said == why or (why is not None and str(said).startswith(why))


def test_nobody_tells_of_the_data() -> None:
    assert data_place(None) == (None, None)
