"""Figures of a whole job from those of its GPUs and of the host."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.telemetry import energy
from harness.telemetry.together import Part, put_together, whole_gpus
from harness.telemetry.values import AllGpus, HostSpan, SpanFigures


def of_span(host: HostSpan | None, gpus: Sequence[Part], tokens: int | None) -> SpanFigures:
    """All figures of a span; `tokens`: the non-pad ones of the span, all ranks."""
    joules = energy.of_job(gpus) if gpus else None
    per_million = energy.joules_per_million(joules.joules if joules else None, tokens)
    reasons: dict[str, str] = {}
    if host is None:
        reasons["host"] = "the sampler left no sample"
    if not gpus:
        reasons["gpus"] = reasons["energy"] = "the job had no GPU"
    if per_million is None:
        known = joules is not None and joules.joules is not None
        reasons["joules_per_million_tokens"] = "the tokens are not known" if known else "the energy is not known"
    return SpanFigures(host, of_all(gpus) if gpus else None, joules, per_million, reasons)


def of_all(gpus: Sequence[Part]) -> AllGpus:
    """One figure for all GPUs; None where one of them does not tell it, with its reason."""
    figures: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, (how, parts) in _together(gpus, whole_gpus(gpus)).items():
        figures[name], why = put_together(parts, name, how)
        if why is not None:
            reasons[name] = why
    return AllGpus(
        gpus=len(gpus),
        samples=min(0 if span is None else span.samples for _, span in gpus),
        coverage=min(0.0 if span is None else span.coverage for _, span in gpus),
        reasons=reasons,
        **figures,
    )


def _together(
    gpus: Sequence[Part], wholes: Sequence[Part]
) -> dict[str, tuple[Callable[[Sequence[Any]], Any], Sequence[Part]]]:
    """Figure -> how it is put together, and of which: what is the whole GPU's counts once for its MIG devices."""
    return {
        "utilization_mean_percent": (_mean, gpus),
        "sm_active_mean_percent": (_mean, gpus),
        "tensor_active_mean_percent": (_mean, gpus),
        "memory_used_mean_bytes": (sum, gpus),
        "memory_used_peak_bytes": (max, gpus),
        "power_mean_w": (sum, wholes),
        "temperature_peak_c": (max, wholes),
        "throttled_share": (max, wholes),
        "throttled_power_s": (max, wholes),
        "throttled_thermal_s": (max, wholes),
        **dict.fromkeys(("pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes", "nvlink_rx_bytes"), (sum, wholes)),
        "ecc_uncorrected": (sum, wholes),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
