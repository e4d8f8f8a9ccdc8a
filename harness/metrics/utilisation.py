"""FLOPs of a step, and what share of the devices' peak they are (MFU, HFU)."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.flops import Shape, Tokens, hardware_flops, model_flops, read_shape
from harness.journal import RankJournal
from harness.metrics.parts import Part
from harness.metrics.throughput import Counts
from harness.metrics.window import Window
from harness.peaks import Peak, find_peak

IMPOSSIBLE = "would be"  # how the reason of a share over 1 begins
SCENARIO = "the scenario's measure: {peak_flops: ...}"


def describe_utilisation(
    ranks: Sequence[RankJournal], counts: Counts, window: Window | None, scenario: Mapping[str, Any]
) -> Part:
    """FLOPs of the job's steps and of each device's second, beside the peak."""
    part = Part()
    shape = read_shape(ranks[0].last("shape"))
    model = _work(shape, counts, "non_pad", "non_pad_squares", window)
    hardware = _work(shape, counts, "padded", _computed_squares(shape), window)
    peak = _peak(ranks, scenario)
    part.put("peak_flops_per_s", peak.flops_per_s if isinstance(peak, Peak) else None, str(peak))
    part.put("peak_source", peak.source if isinstance(peak, Peak) else None, str(peak))
    for kind, work, share in (("model", model, "mfu"), ("hardware", hardware, "hfu")):
        _put(part, kind, work, share, peak, window, len(ranks))
    if part.reasons.get("hfu", "").startswith(IMPOSSIBLE) and part.values["mfu"] is not None:
        part.put("mfu", None, f"hfu {part.reasons['hfu']}")  # the same peak, or the same clock, is wrong for both
    return part


def _put(
    part: Part, kind: str, work: float | str, share: str, peak: Peak | str, window: Window | None, devices: int
) -> None:
    names = (f"{kind}_flops_per_step", f"{kind}_flops_per_s_per_device", share)
    if isinstance(work, str) or window is None or not window.seconds:
        part.nulls(names, work if isinstance(work, str) else "the measured steps took no time")
        return
    rate = work / window.seconds / devices
    part.values |= {names[0]: work / len(window.steps), names[1]: rate}
    if isinstance(peak, str):
        part.put(share, None, peak)
        return
    value = rate / peak.flops_per_s
    beyond = f"{IMPOSSIBLE} {value:.3g}: {rate:.4g} FLOP/s a device, {peak.flops_per_s:.4g} at most ({peak.source})"
    part.put(share, value if value <= 1 else None, beyond)


def _work(shape: Shape | str, counts: Counts, tokens: str, squares: str, window: Window | None) -> float | str:
    """FLOPs of the window, all devices together; or why they are not known."""
    if window is None:
        return "no step was measured"
    if isinstance(shape, str):
        return shape
    count, squared = counts.measured[tokens], counts.measured[squares]
    if count is None or squared is None:
        return counts.reasons[tokens if count is None else squares]
    seen = Tokens(count, squared)
    return model_flops(shape, seen) if tokens == "non_pad" else hardware_flops(shape, seen)


def _computed_squares(shape: Shape | str) -> str:
    """Flash attention of its own package skips padding and the borders between documents; the others compute all."""
    flash = isinstance(shape, Shape) and str(shape.attention).startswith("flash_attention")
    return "non_pad_squares" if flash else "padded_squares"


def _peak(ranks: Sequence[RankJournal], scenario: Mapping[str, Any]) -> Peak | str:
    """Of one device: what the scenario says, else the table's for its exact name."""
    given = scenario.get("peak_flops")
    if isinstance(given, int | float):
        return Peak(float(given), SCENARIO)
    models = [rank.last("model") or {} for rank in ranks]
    names = {model.get("device_name") for model in models}
    if len(names) > 1:
        return f"the ranks run on different devices: {', '.join(sorted(map(str, names)))}"
    name = names.pop()
    if name is None:
        if not any(models):
            return "no model was seen to train"
        return "the peak FLOP/s of a CPU are not known; give them as measure: {peak_flops: ...}"
    return find_peak(str(name), (ranks[0].last("shape") or {}).get("compute_dtype"))
