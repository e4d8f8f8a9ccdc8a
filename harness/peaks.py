"""Peak dense FLOP/s of GPUs by their exact name and the type of the numbers, with the source of each.  Pure.

A name that is not here is not guessed at: a wrong peak makes a wrong MFU (figures of 152 % and 563 % were seen where a
harness fell back to another card's).  Left out for that reason: cards for which published tables differ by more than
1 % (GB200, GB300, MI300X, MI325X), variants that no table names (A10G, H800, A800), and slices of a card (MIG).
"""

import re
from dataclasses import dataclass

# Where the figures were read.
TORCHTITAN = "torchtitan, tools/utils.py get_peak_flops"
COMPOSER = "Composer, callbacks/speed_monitor.py"
LIGHTNING = "Lightning, fabric/utilities/throughput.py"
VERL = "verl, utils/flops_counter.py"
LLM_ROOFLINE = "LLMRoofline's table of GPUs"


@dataclass(frozen=True)
class Peak:
    """What a GPU can do at most, in FLOP/s; dense, so half of what data sheets print for sparse matrices."""

    flops_per_s: float
    source: str


@dataclass(frozen=True)
class Row:
    """A card: a pattern that its whole name must match, and TFLOP/s by type of number."""

    name: str
    tflops: dict[str, float]
    source: str


_16_BIT = ("bfloat16", "float16")


def _half(tflops: float, **others: float) -> dict[str, float]:
    """The same for both 16-bit types."""
    return dict.fromkeys(_16_BIT, tflops) | others


# Names as NVML and torch tell them, without the maker's.
TABLE: tuple[Row, ...] = (
    Row(r"B200", _half(2250), TORCHTITAN),
    Row(r"H200", _half(989.4, tf32=494.7), f"{TORCHTITAN}; {COMPOSER}"),
    Row(r"H100 80GB HBM3", _half(989.4, tf32=494.7), f"{TORCHTITAN}; {COMPOSER}"),
    Row(r"GH200 (\d+GB|144G HBM3e)", _half(989.4, tf32=494.7), LLM_ROOFLINE),
    Row(r"H100 PCIe", _half(756), f"{TORCHTITAN}; {COMPOSER}"),
    Row(r"H100 NVL", _half(835.5), f"{TORCHTITAN}; {LIGHTNING}"),
    Row(r"H20", _half(148), f"{TORCHTITAN}; {VERL}"),
    Row(r"A100-(SXM4|PCIE|PCIe)-\d+GB|A100 \d+GB PCIe", _half(312, tf32=156), f"{TORCHTITAN}; {COMPOSER}"),
    Row(r"A40", _half(149.7), f"{LIGHTNING}; {VERL}"),
    Row(r"A30", _half(165), f"{LLM_ROOFLINE}; {COMPOSER}"),
    Row(r"A10", _half(125, tf32=62.5), COMPOSER),
    Row(r"RTX A6000", _half(154.85), TORCHTITAN),
    Row(r"L40S", _half(362.05), f"{TORCHTITAN}; {VERL}"),
    Row(r"L40", _half(181.05), f"{LIGHTNING}; {VERL}"),
    Row(r"L20", _half(119.5), LLM_ROOFLINE),
    Row(r"L4", _half(121, tf32=60), f"{LIGHTNING}; half of the data sheet's 242, which is sparse"),
    Row(r"GeForce RTX 4090", _half(165.2), "karpathy/autoresearch #5: with accumulation in float32, as torch does"),
    Row(r"(Tesla )?V100-SXM[23]-\d+GB(-LS)?", {"float16": 125}, f"{LIGHTNING}; {COMPOSER}"),
    Row(r"(Tesla )?V100-PCIE-\d+GB", {"float16": 112}, f"{LIGHTNING}; {COMPOSER}"),
    Row(r"(Tesla )?T4", {"float16": 65}, f"{LIGHTNING}; {COMPOSER}"),
    # A torch device is one of the two dies of an MI250X; "MI250X / MI250", as some drivers say, may be either card.
    Row(r"Instinct MI250X", _half(191.5), f"{TORCHTITAN}: 383 for the card's two dies"),
)
_MAKER = re.compile(r"^(NVIDIA|AMD) ")


def find_peak(name: str | None, dtype: str | None) -> Peak | str:
    """The peak of a GPU for a type of number; a text says why it is not known."""
    if name is None:
        return "no GPU is known"
    card = _MAKER.sub("", name.strip())
    row = next((row for row in TABLE if re.fullmatch(row.name, card)), None)
    if row is None:
        return f"the peak FLOP/s of {name!r} are not known; give them as measure: {{peak_flops: ...}}"
    if dtype is None or dtype not in row.tflops:
        return f"the peak FLOP/s of {name!r} in {dtype} are not known; give them as measure: {{peak_flops: ...}}"
    return Peak(row.tflops[dtype] * 1e12, row.source)
