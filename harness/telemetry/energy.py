"""Joules of a GPU and of a job: two figures, by how much they disagree, and what speaks against them."""

from collections.abc import Sequence
from dataclasses import replace

from harness.telemetry.gauges import Counter
from harness.telemetry.together import Part, put_together, whole_gpus
from harness.telemetry.values import Energy

DISAGREEMENT = 0.05  # between the energy counter and integrated power; beyond, one of them is wrong
SHORTEST_S = 10.0  # the counter moves each 100 ms, and A100 and H100 look at a quarter of the time (arXiv 2312.02741)
NEEDED_COVERAGE = 0.9  # below, an energy is not told; above, the rest counts at the mean of what is covered
FELL = "the counter fell: the driver was loaded anew"


def joules_per_million(joules: float | None, tokens: int | None) -> float | None:
    return joules / tokens * 1e6 if joules is not None and tokens else None


def of_gpu(counter: Counter, integral: tuple[float, float], seconds: float, unavailable: dict[str, str]) -> Energy:
    """The energy of a GPU over `seconds`; `integral`: joules by samples of power, and the seconds that they cover."""
    reasons: dict[str, str] = {}
    flags: list[str] = []
    values: dict[str, float | None] = {"counter_j": None, "integrated_j": None}
    for name, (joules, covered), column, fell in (
        ("counter_j", (counter.rose, counter.covered), "energy_j", counter.fell),
        ("integrated_j", integral, "power_w", False),
    ):
        if fell:
            reasons[name] = FELL
        elif not covered:
            reasons[name] = unavailable.get(column) or "there are no two samples of it in the span"
        elif covered < NEEDED_COVERAGE * seconds:
            reasons[name] = f"{covered:.1f} s of {seconds:.1f} s are covered by samples"
        else:
            values[name] = joules * seconds / covered
            if covered < 0.99 * seconds:
                flags.append(f"{name}: {1 - covered / seconds:.1%} of the span is not covered, taken at the mean")
    return _compared(values["counter_j"], values["integrated_j"], seconds, flags, reasons)


def _compared(
    counter: float | None, integrated: float | None, seconds: float, flags: list[str], reasons: dict[str, str]
) -> Energy:
    disagreement = None
    if counter is not None and integrated is not None and (larger := max(counter, integrated)) > 0:
        disagreement = abs(counter - integrated) / larger
        if disagreement > DISAGREEMENT:
            flags = [*flags, f"the energy counter and integrated power disagree by {disagreement:.1%}"]
    if disagreement is None:
        reasons = reasons | {"disagreement": "there are no two figures to compare"}
    if seconds < SHORTEST_S:
        flags = [*flags, f"{seconds:.1f} s are too short for an energy: at least {SHORTEST_S:.0f} s"]
    return Energy(counter, integrated, disagreement, seconds, tuple(flags), reasons)


def of_job(gpus: Sequence[Part]) -> Energy:
    """The energy of all GPUs; each whole GPU once, whatever MIG devices of it the job has."""
    wholes = whole_gpus(gpus)
    spans = [span.energy for _, span in wholes if span is not None]
    flags = list(dict.fromkeys(flag for energy in spans for flag in energy.flags))
    if any(gpu.shared for gpu, _ in gpus):
        flags.append("the figures of MIG devices are of whole GPUs, other jobs' share included")
    reasons: dict[str, str] = {}
    totals: dict[str, float | None] = {}
    for name in ("counter_j", "integrated_j"):
        totals[name], why = put_together(wholes, name, sum, lambda span: span.energy)
        if why is not None:
            reasons[name] = why
    seconds = max((energy.seconds for energy in spans), default=0.0)
    summed = _compared(totals["counter_j"], totals["integrated_j"], seconds, [], reasons)
    return replace(summed, flags=tuple(dict.fromkeys([*flags, *summed.flags])))
