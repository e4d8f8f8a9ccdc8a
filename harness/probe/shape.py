"""What the FLOPs of a model follow from: its parameters by role, its config's numbers, and how it is run."""

import math
from typing import Any

from .model import _size

# Fields of a `shape` event that the model's config tells, and the names that configs have for them.
CONFIG_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("qk_head_dim", "head_dim"),  # with latent attention (MLA) the second is the rotated part alone
    "value_head_dim": ("v_head_dim",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k"),
    "window": ("sliding_window",),
}
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


def count_roles(model: Any) -> dict[str, Any]:
    """Parameters of an unwrapped model by what a token does with them; part of a `shape` event.

    A matrix multiplies every token, but for an embedding, which is looked up, and an expert's, which multiplies those
    that are routed to it.
    """
    import torch

    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    output = getattr(_call(model, "get_output_embeddings"), "weight", None)
    tied = output is not None and id(output) in looked_up
    sums = dict.fromkeys(("matmul_frozen", "matmul_trainable", "expert_frozen", "expert_trainable"), 0)
    trained_layers: list[int] = []
    trained_norms: set[int] = set()  # blocks that have one
    trained_before = False
    last_linear = 0
    experts = Experts(model)
    for name, parameter in model.named_parameters():
        dimensions = len(getattr(parameter, "ds_shape", parameter.shape))
        layer, trains = _layer_of(name), parameter.requires_grad
        if trains and layer is not None:
            trained_layers.append(layer)
            if dimensions < 2 and ("norm" in name or ".ln_" in name):
                trained_norms.add(layer)
        trained_before = trained_before or (trains and id(parameter) in looked_up)
        if ".original_module." in name or dimensions < 2 or (id(parameter) in looked_up and parameter is not output):
            continue  # peft keeps the module that it trains a copy of
        expert = experts.hold(name, parameter)
        if expert is None:
            continue
        size = _size(parameter)
        sums[f"{'expert' if expert else 'matmul'}_{'trainable' if trains else 'frozen'}"] += size
        if layer == 0:
            last_linear = 0 if expert else size
    return {
        **sums,
        "head": 0 if output is None else _size(output),
        "last_linear": last_linear,
        "tied": tied,
        "first_trainable_layer": min(trained_layers, default=None),
        "first_norm_trained": min(trained_layers, default=None) in trained_norms,
        "trainable_embedding": trained_before,
    }


def _layer_of(name: str) -> int | None:
    """The index of the block that a parameter belongs to, from its name: `model.layers.3.mlp...`."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


class Experts:
    """Which parameters are an expert's: those that a token multiplies only where it is routed to them.

    Found by the number of experts that the model's config tells: a list of so many modules within a block, each an
    expert, or a tensor of so many matrices, wherever it lies.  By the name `experts` where the config tells none.
    A shared expert sees every token, and is none."""

    def __init__(self, model: Any) -> None:
        self._count = _first_number(_text_config(model), CONFIG_FIELDS["experts"]) or 0
        self._lists = [f"{name}." for name, module in model.named_modules() if self._is_list(name, module)]

    def _is_list(self, name: str, module: Any) -> bool:
        within_block = self._count > 1 and _layer_of(name) is not None
        return within_block and _kind(module) == "ModuleList" and len(module) == self._count

    def hold(self, name: str, parameter: Any) -> bool | None:
        """Whether a parameter of two dimensions or more is an expert's; None for all experts' biases in one tensor."""
        if any(name.startswith(prefix) for prefix in self._lists):
            return True
        shape = getattr(parameter, "ds_shape", parameter.shape)
        if self._count > 1 and len(shape) > 2 and shape[0] == self._count:
            return True
        parts = name.split(".")
        if "experts" not in parts:
            return False
        if parts[parts.index("experts") + 1].isdigit() or len(shape) > 2:
            return True
        if self._count < 2:
            return False
        if shape[0] == self._count:
            return None
        return any(size % self._count == 0 for size in shape)  # matrices of all experts, side by side in one


def _kind(module: Any) -> str:
    return type(module).__name__


def describe_shape(model: Any, roles: dict[str, Any] | None, args: Any, trainer: Any) -> dict[str, Any]:
    """Fields of a `shape` event.  `roles`: what `count_roles` said before the model was wrapped and sharded, and a
    `reason` where that holds no more."""
    roles = dict(roles or count_roles(model))
    config = _text_config(model)
    fields = {field: _first_number(config, names) for field, names in CONFIG_FIELDS.items()}
    embedding, no_roles = roles.pop("trainable_embedding"), roles.pop("reason", None)
    hooks = getattr(model, "_require_grads_hooks", None) or getattr(model, "_require_grads_hook", None)
    types = getattr(config, "layer_types", None)
    types = list(types) if isinstance(types, (list, tuple)) else None
    try:
        compute_dtype = _compute_dtype(model, args, trainer)
    except Exception:  # it costs the peak alone: FLOPs do not follow from it
        compute_dtype = None
    return {
        **fields,
        **roles,
        "window_layers": _window_layers(fields, types),
        "input_gradient": bool(embedding or hooks),
        "checkpointing": _checkpointing(model),
        "attention": getattr(config, "_attn_implementation", None),
        "compute_dtype": compute_dtype,
        "reason": no_roles or _why_not(model, config, types),
    }


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", None)
    get = getattr(config, "get_text_config", None)
    return config if get is None else get()


def _first_number(config: Any, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def _window_layers(fields: dict[str, Any], types: list[Any] | None) -> int | None:
    """How many layers see a window of tokens only."""
    if fields["window"] is None:
        return 0
    return fields["layers"] if types is None else types.count("sliding_attention")


def _checkpointing(model: Any) -> str | None:
    """How activations are computed again: `reentrant` (whole blocks), `non_reentrant` (until the last saved tensor)."""
    for module in model.modules():
        if type(module).__name__ == "CheckpointWrapper":  # torch's, which FSDP configurations use
            reentrant = getattr(getattr(module, "checkpoint_impl", None), "name", None) == "REENTRANT"
            return "reentrant" if reentrant else "non_reentrant"
        if getattr(module, "gradient_checkpointing", False) is True:
            given = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", None) or {}
            return "reentrant" if given.get("use_reentrant", True) else "non_reentrant"
    return None


def _compute_dtype(model: Any, args: Any, trainer: Any) -> str | None:
    """The type that matrices are multiplied in: what autocast says, else what 4-bit weights are brought to, else the
    weights' own."""
    mixed = getattr(getattr(trainer, "accelerator", None), "mixed_precision", None)
    cast = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}.get(str(mixed))
    if cast is None and mixed is None:
        cast = "bfloat16" if getattr(args, "bf16", False) else "float16" if getattr(args, "fp16", False) else None
    if cast is not None:
        return cast
    packed = (getattr(module, "compute_dtype", None) for module in model.modules() if _kind(module) == "Linear4bit")
    told = next((dtype for dtype in packed if dtype is not None), None)  # peft's class of that name has none
    if told is not None:
        return _matmul_type(told)
    matrix = next((p for p in model.parameters() if p.is_floating_point() and p.dim() > 0), None)
    if matrix is None:
        return None
    return _matmul_type(matrix.dtype)


def _matmul_type(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "tf32" if name == "float32" and _allows_tf32() else name


def _allows_tf32() -> bool:
    """Whether float32 matrices are multiplied in TF32.

    torch 2.9 added `fp32_precision`; the older function raises RuntimeError once somebody has set that."""
    import torch

    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision == "none":  # nobody has set it: the one for all operations holds
        precision = getattr(torch.backends, "fp32_precision", None)
    if precision is not None:
        return str(precision) == "tf32"
    return bool(torch.get_float32_matmul_precision() != "highest")


def why_not_split(args: Any, trainer: Any) -> str | None:
    """Why the optimizer's part of a Trainer's step cannot be told from the backward's; None when it can."""
    kind = str(getattr(getattr(trainer, "accelerator", None), "distributed_type", ""))
    if kind.upper().endswith("DEEPSPEED"):
        return "DeepSpeed takes the optimizer's step within the backward"
    optimizer = str(getattr(getattr(args, "optim", None), "value", getattr(args, "optim", "")))
    if "layerwise" in optimizer or "lomo" in optimizer:
        return f"{optimizer} takes the optimizer's step within the backward"
    return None


def _why_not(model: Any, config: Any, types: list[Any] | None) -> str | None:
    if config is None:
        return "the model has no config"
    whole = getattr(model, "config", None)
    if getattr(whole, "is_encoder_decoder", False):
        return "an encoder and a decoder see different tokens"
    method = _quantised_by(whole)
    if method is not None and "bitsandbytes" not in method:
        return f"weights quantised by {method} are no parameters that could be counted"
    towers = [name for name in ("vision_config", "audio_config") if getattr(whole, name, None) is not None]
    if towers:
        return f"not all inputs are tokens: the model's config has {' and '.join(towers)}"
    if getattr(config, "num_hidden_groups", None) is not None:
        return "layers share their parameters"  # as ALBERT's
    other = sorted({str(kind) for kind in types or ()} - ATTENTION_LAYERS)
    return f"layers of type {', '.join(other)} are not counted" if other else None


def _quantised_by(config: Any) -> str | None:
    """The method of transformers' quantization_config; its values are enums or text."""
    found = getattr(config, "quantization_config", None)
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def data_place(trainer: Any) -> tuple[int | None, int | None]:
    """(which share of the data this rank sees, how many shares there are); (None, None) where nobody tells.

    Ranks of a tensor- or context-parallel group are fed the same batches (accelerate's prepare_data_loader).  Those of
    a sequence-parallel group are fed slices of one, whose tokens add up: each has a share of its own.
    """
    accelerator = getattr(trainer, "accelerator", None)
    index, ranks = getattr(accelerator, "process_index", None), getattr(accelerator, "num_processes", None)
    if not isinstance(index, int) or not isinstance(ranks, int):
        return None, None
    mesh: Any = getattr(accelerator, "torch_device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    sharing = math.prod(mesh.size(n) for n, name in enumerate(names) if name in ("tp", "cp"))
    return index // sharing, ranks // sharing


def slices(trainer: Any) -> tuple[int, int]:
    """(which slice of its batches' sequences this rank sees, how many slices there are); (0, 1) for whole sequences.

    DeepSpeed's Ulysses, as accelerate prepares it, cuts each batch along the sequence (UlyssesSPDataLoaderAdapter); the
    ranks of a group follow each other."""
    accelerator = getattr(trainer, "accelerator", None)
    index = getattr(accelerator, "process_index", None)
    size = getattr(getattr(accelerator, "parallelism_config", None), "sp_size", None)
    if not isinstance(index, int) or not isinstance(size, int) or size < 2:
        return 0, 1
    return index % size, size


def _call(model: Any, name: str) -> Any:
    method = getattr(model, name, None)
    try:
        return None if method is None else method()
    except (AttributeError, NotImplementedError):  # a model without an output head
        return None
