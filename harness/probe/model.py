"""Describes the model that trains: size, dtype, device and the versions it runs on."""

import sys
from typing import Any

_FSDP, _FLAT = "_fsdp_wrapped_module", "_flat_param"  # in names, by torch's FullyShardedDataParallel
_WRAPPERS = {_FSDP, "_orig_mod", "_checkpoint_wrapped_module", "module"}


def count_parameters(model: Any) -> dict[str, Any]:
    """Numbers of parameters of an unwrapped model: {parameters, trainable}.  Sharded and packed ones count whole."""
    total = trainable = 0
    for parameter in model.parameters():
        size = _size(parameter)
        total += size
        trainable += size if parameter.requires_grad else 0
    return {"parameters": total, "trainable": trainable}


def is_whole(model: Any) -> bool:
    """Whether all parameters are here in their own shapes: not partitioned (ZeRO-3), sharded, or flattened (FSDP)."""
    return not any(
        hasattr(parameter, "ds_numel") or hasattr(parameter, "to_local") or _FSDP in name or _FLAT in name
        for name, parameter in model.named_parameters()
    )


def trainable_names(model: Any) -> frozenset[str] | None:
    """Which parameters train, by the names that they have without wrappers; None: flattened, so that nobody knows."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if any(_FLAT in name for name, _ in model.named_parameters()):
        return None
    return frozenset(".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in names)


def _size(parameter: Any) -> int:
    if hasattr(parameter, "ds_numel"):  # ZeRO-3 leaves an empty tensor in place of a shard
        return int(parameter.ds_numel)
    size = int(parameter.numel())
    if type(parameter).__name__ == "Params4bit":  # bitsandbytes packs two weights into a byte of its storage type
        storage = getattr(parameter, "quant_storage", None)
        return size * 2 * int(getattr(storage, "itemsize", 1))
    return size


def describe_model(model: Any, counted: dict[str, Any] | None, device: Any = None) -> dict[str, Any]:
    """Fields of a `model` event.  `counted`: what `count_parameters` said before the model was wrapped and sharded.

    `device`: the Trainer's; where it is a GPU the model trains there, though its parameters wait elsewhere."""
    import torch

    first = next(iter(model.parameters()), None)
    if not isinstance(device, torch.device) or device.type != "cuda":
        device = getattr(first, "device", None)
    on_gpu = device is not None and device.type == "cuda"
    return {
        "type": type(model).__name__,
        **(counted or count_parameters(model)),
        "whole": is_whole(model),
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "device": None if device is None else str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else None,
        "device_uuid": _uuid(torch.cuda.get_device_properties(device)) if on_gpu else None,
        "torch": str(torch.__version__),
        "transformers": getattr(sys.modules.get("transformers"), "__version__", None),
    }


def _uuid(properties: Any) -> str | None:
    """As NVML writes it; torch tells it from 2.4 on, without the prefix."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    return str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
