"""Peaks by exact name: a card that is not in the table has none."""

import re

import pytest

from harness.peaks import TABLE, Peak, find_peak


@pytest.mark.parametrize(
    "name, dtype, tflops",
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H100 NVL", "float16", 835.5),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("NVIDIA B200", "bfloat16", 2250),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla T4", "float16", 65),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        # Trap: a name that holds another's.
        pytest.param("NVIDIA L4", "bfloat16", 121, id="trap-substring-L4"),
        pytest.param("NVIDIA L40", "bfloat16", 181.05, id="trap-substring-L40"),
        pytest.param("NVIDIA L40S", "bfloat16", 362.05, id="trap-substring-L40S"),
        pytest.param("NVIDIA H20", "bfloat16", 148, id="trap-substring-H20"),
        pytest.param("NVIDIA A10", "bfloat16", 125, id="trap-substring-A10"),
        # Trap: 242 and 1979 stand in the data sheets, for sparse matrices.
        pytest.param("NVIDIA L4", "float16", 121, id="trap-sparse-L4"),
        pytest.param("NVIDIA H100 80GB HBM3", "float16", 989.4, id="trap-sparse-H100"),
        # Trap: a torch device is one die.
        pytest.param("AMD Instinct MI250X", "bfloat16", 191.5, id="trap-MI250X-per-die"),
    ],
)
def test_known_cards(name: str, dtype: str, tflops: float) -> None:
    peak = find_peak(name, dtype)
    assert isinstance(peak, Peak)
    assert peak.flops_per_s == tflops * 1e12
    assert peak.source


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("NVIDIA A10G", "bfloat16"),
        ("NVIDIA GB200", "bfloat16"),
        ("NVIDIA H800", "bfloat16"),
        ("nvidia l40s", "bfloat16"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bfloat16"),
        ("AMD Instinct MI250X / MI250", "bfloat16"),
        ("NVIDIA H100 SXM5 64GB", "bfloat16"),
        ("AMD Radeon Graphics", "bfloat16"),
        ("", "bfloat16"),
        ("Tesla V100-SXM2-16GB", "bfloat16"),
        ("NVIDIA A100-SXM4-80GB", "float32"),
        pytest.param("NVIDIA H100 80GB HBM3", "float8", id="trap-mfu-with-fp8"),
        ("NVIDIA H100 80GB HBM3", None),
        (None, "bfloat16"),
    ],
)
def test_what_is_not_known_is_not_guessed(name: str | None, dtype: str | None) -> None:
    assert isinstance(find_peak(name, dtype), str)


def test_no_name_fits_two_rows() -> None:
    names = ["L4", "L40", "L40S", "L20", "A10", "A100-SXM4-80GB", "A30", "A40", "H100 PCIe", "H100 NVL", "H20", "H200"]
    names += ["B200", "GH200 480GB", "H100 80GB HBM3", "T4", "Tesla T4", "RTX A6000", "Instinct MI250X"]
    for name in names:
        assert len([row for row in TABLE if re.fullmatch(row.name, name)]) == 1, name
