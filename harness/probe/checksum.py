"""Tells whether training changed the parameters: sums over the bits of trainable tensors, on their device."""

from typing import Any

SAMPLED = 1 << 20  # elements of each tensor that are read: what training changes, it changes there too
_WRAP = 1 << 52  # what every JSON reader keeps exactly


def tensor_sums(model: Any) -> list[int]:
    """A number for each trainable tensor that this rank holds (its shard, where they are sharded), in order.

    Exact: any one changed bit of what is read changes it.
    """
    import torch

    with torch.no_grad():
        return [int(_sum(_local(p))) for p in model.parameters() if p.requires_grad]


def combined(sums: list[int]) -> int:
    """One number for all, to be compared between ranks."""
    return sum((position + 1) * value for position, value in enumerate(sums)) % _WRAP


def _local(parameter: Any) -> Any:
    shard = getattr(parameter, "ds_tensor", None)  # ZeRO-3 leaves an empty tensor in place of a shard
    if shard is not None:
        return shard.detach()
    return parameter.to_local().detach() if hasattr(parameter, "to_local") else parameter.detach()


def _sum(tensor: Any) -> Any:
    import torch

    sampled = tensor.reshape(-1)[:SAMPLED]
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(sampled.element_size(), torch.int64)
    return sampled.view(bits).sum(dtype=torch.int64)
