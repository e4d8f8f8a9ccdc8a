"""Checksums of parameters: every change is seen, in every type."""

from typing import Any

import pytest

from harness.probe.checksum import SAMPLED, combined, tensor_sums


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
    assert tensor_sums(model(dtype)) == before
    with torch.no_grad():
        weight = changed[1].weight
        weight[0, 1] = torch.nextafter(weight[0, 1], torch.tensor(9.0, dtype=weight.dtype))
    after = tensor_sums(changed)
    assert [a != b for a, b in zip(before, after, strict=True)] == [False, False, True, False]
    assert combined(before) != combined(after)


def test_frozen_tensors_are_left_out() -> None:
    frozen = model()
    frozen[0].requires_grad_(False)
    assert len(tensor_sums(frozen)) == 2


def test_large_tensors_are_sampled() -> None:
    import torch

    large = torch.nn.Module()
    large.weight = torch.nn.Parameter(torch.zeros(SAMPLED + 1))
    before = tensor_sums(large)
    with torch.no_grad():
        large.weight[SAMPLED] = 1
    assert tensor_sums(large) == before
    with torch.no_grad():
        large.weight[SAMPLED - 1] = 1
    assert tensor_sums(large) != before


def test_a_number_that_every_json_reader_keeps() -> None:
    assert 0 <= combined([2**60, -(2**61), 3]) < 2**53
