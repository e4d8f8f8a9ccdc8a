"""Tells whether training changed the parameters: sums over the bits of trainable tensors, on their device."""

from typing import Any

WORD = 8  # bytes that are added as one number: an int64, which torch sums without a converted copy
PIECE = 1 << 20  # elements that are copied at a time where a tensor's memory has gaps
_WRAP = 1 << 52  # what every JSON reader keeps exactly


def tensor_sums(model: Any) -> list[int] | None:
    """A number for each trainable tensor of which this rank holds a part, in order; None: a part is not at hand now.

    Exact: any one changed bit changes it.  Waits once for each device, and allocates next to nothing."""
    import torch

    with torch.no_grad():
        shards = [_local(p) for p in model.parameters() if p.requires_grad]
        if any(shard is None for shard in shards):
            return None
        sums = [_sum(shard) for shard in shards if shard.numel()]
        read: dict[Any, list[int]] = {}
        for device in {each.device for each in sums}:
            read[device] = torch.stack([each for each in sums if each.device == device]).tolist()
    values = {device: iter(numbers) for device, numbers in read.items()}
    return [next(values[each.device]) for each in sums]


def combined(sums: list[int]) -> int:
    """One number for all, to be compared between ranks."""
    return sum((position + 1) * value for position, value in enumerate(sums)) % _WRAP


def _local(parameter: Any) -> Any:
    """What this rank holds of a parameter; None where it is elsewhere (ZeRO-3 that swaps it to a disk)."""
    shard = getattr(parameter, "ds_tensor", None)  # ZeRO-3 leaves an empty tensor in place of a shard
    if shard is not None:
        status = getattr(getattr(shard, "status", None), "name", "AVAILABLE")
        return shard.detach() if status == "AVAILABLE" else None
    return parameter.to_local().detach() if hasattr(parameter, "to_local") else parameter.detach()


def _sum(tensor: Any) -> Any:
    """The sum over the bits of a tensor that is not empty, 0-dim on its device."""
    if _is_dense(tensor):
        return _sum_flat(tensor.as_strided((tensor.numel(),), (1,)))
    longest = max(range(tensor.dim()), key=lambda dimension: tensor.shape[dimension])
    pieces = tensor.split(max(1, PIECE * tensor.shape[longest] // tensor.numel()), dim=longest)
    return sum(_sum_flat(piece.contiguous().view(-1)) for piece in pieces)


def _is_dense(tensor: Any) -> bool:
    """Whether the elements lie in memory without gaps, in whatever order of dimensions."""
    expected = 1
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in dimensions if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _sum_flat(flat: Any) -> Any:
    """Words where they can be read as such, the elements before the first and after the last one by one."""
    import torch

    size = flat.element_size()
    if size >= WORD:
        return flat.view(torch.int64).sum()
    narrow, per_word = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[size]), WORD // size
    head = min(-narrow.storage_offset() % per_word, narrow.numel())
    tail = head + (narrow.numel() - head) // per_word * per_word
    edges = narrow[:head].sum(dtype=torch.int64) + narrow[tail:].sum(dtype=torch.int64)
    return edges + narrow[head:tail].view(torch.int64).sum() if tail > head else edges
