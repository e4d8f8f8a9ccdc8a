"""Checksums of parameters: every change is seen, in every type."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe import checksum
from harness.probe.checksum import PIECE, combined, tensor_sums


def model(dtype: str = "float32") -> Any:
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    return layers.to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_least_change_is_seen(dtype: str) -> None:
    import torch

    changed = model(dtype)
    before = tensor_sums(changed)
    assert before is not None
    assert tensor_sums(model(dtype)) == before
    with torch.no_grad():
        weight = changed[1].weight
        weight[0, 1] = torch.nextafter(weight[0, 1], torch.tensor(9.0, dtype=weight.dtype))
    after = tensor_sums(changed)
    assert after is not None
    assert [a != b for a, b in zip(before, after, strict=True)] == [False, False, True, False]
    assert combined(before) != combined(after)


def test_frozen_tensors_are_left_out() -> None:
    frozen = model()
    frozen[0].requires_grad_(False)
    assert len(tensor_sums(frozen) or ()) == 2


@pytest.mark.parametrize("place", [0, 1, PIECE - 1, PIECE, PIECE + 2])
@pytest.mark.parametrize("dtype", ["float8_e5m2", "bfloat16", "float32", "complex128"])
def test_every_element_of_a_large_tensor_counts(dtype: str, place: int) -> None:
    """A new token's row of an embedding may be the last."""
    import torch

    large = torch.nn.Module()
    large.weight = torch.nn.Parameter(torch.zeros(PIECE + 3, dtype=getattr(torch, dtype)))
    before = tensor_sums(large)
    with torch.no_grad():
        large.weight[place] = 1
    assert tensor_sums(large) != before


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda base: base.t(),
    "columns": lambda base: base[:, 1::2],
    "rows-of-columns": lambda base: base[3:, :50],
    "odd-offset": lambda base: base.flatten()[3:-2],
    "one-element": lambda base: base[1, 1],
    "expanded": lambda base: base[:1].expand(64, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_every_element_counts_however_it_lies_in_memory(dtype: str, layout: str) -> None:
    import torch

    shard = LAYOUTS[layout](torch.zeros(64, 101, dtype=getattr(torch, dtype)))
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(shard)
    before = tensor_sums(module)
    index = torch.arange(shard.numel()).reshape(shard.shape)
    for place in (0, shard.numel() // 2, shard.numel() - 1):
        at = torch.nonzero(index == place)[0].tolist()
        with torch.no_grad():
            module.weight[tuple(at)] = 1 + place
            assert tensor_sums(module) != before
            module.weight[tuple(at)] = 0
        assert tensor_sums(module) == before


def test_a_tensor_with_gaps_is_not_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(checksum, "PIECE", 64)
    wide = torch.nn.Module()
    wide.weight = torch.nn.Parameter(torch.ones(100, 8, dtype=torch.bfloat16)[:, ::2])
    sizes: list[int] = []
    whole = checksum._sum_flat

    def noting(flat: Any) -> Any:
        sizes.append(flat.numel())
        return whole(flat)

    monkeypatch.setattr(checksum, "_sum_flat", noting)
    tensor_sums(wide)
    assert (sum(sizes), max(sizes)) == (400, 64)


def test_a_shard_that_is_empty_is_none() -> None:
    import torch

    ranks_part = model()
    ranks_part[0].weight = torch.nn.Parameter(torch.empty(0))
    sums = tensor_sums(ranks_part)
    assert sums is not None
    assert len(sums) == 3


@pytest.mark.parametrize("status, known", [("AVAILABLE", True), ("NOT_AVAILABLE", False), ("INFLIGHT", False)])
def test_a_shard_that_is_not_at_hand(status: str, known: bool) -> None:
    """As DeepSpeed's ZeRO-3 marks a shard that it has swapped to a disk."""
    import torch

    partitioned = model()
    shard: Any = torch.ones(4)
    shard.status = SimpleNamespace(name=status)
    partitioned[0].weight.ds_tensor = shard
    assert (tensor_sums(partitioned) is not None) == known


def test_a_number_that_every_json_reader_keeps() -> None:
    assert 0 <= combined([2**60, -(2**61), 3]) < 2**53
