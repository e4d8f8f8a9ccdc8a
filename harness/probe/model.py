"""Describes the model that trains: size, dtype, device and the versions it runs on."""

import sys
from typing import Any


def count_parameters(model: Any) -> dict[str, Any]:
    """Numbers of parameters of an unwrapped model: {parameters, trainable}.  Sharded and packed ones count whole."""
    total = trainable = 0
    for parameter in model.parameters():
        size = _size(parameter)
        total += size
        trainable += size if parameter.requires_grad else 0
    return {"parameters": total, "trainable": trainable}


def _size(parameter: Any) -> int:
    if hasattr(parameter, "ds_numel"):  # ZeRO-3 leaves an empty tensor in place of a shard
        return int(parameter.ds_numel)
    size = int(parameter.numel())
    if type(parameter).__name__ == "Params4bit":  # bitsandbytes packs two weights into a byte of its storage type
        storage = getattr(parameter, "quant_storage", None)
        return size * 2 * int(getattr(storage, "itemsize", 1))
    return size


def describe_model(model: Any, counted: dict[str, Any] | None) -> dict[str, Any]:
    """Fields of a `model` event.  `counted`: what `count_parameters` said before the model was wrapped and sharded."""
    import torch

    first = next(iter(model.parameters()), None)
    device = getattr(first, "device", None)
    on_gpu = device is not None and device.type == "cuda"
    return {
        "type": type(model).__name__,
        **(counted or count_parameters(model)),
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
