"""Figures of GPUs, host and energy from the events of the sampler's journal.  Pure; one pass, in memory that does not
grow with the journal.

Times are seconds on the clock of `m`, as in the ranks' `ended_m`.  A figure is taken over a span: the whole job, and
the window of the steps that are measured.  Means weigh by time; between two samples further apart than three intervals
nothing is known, and `coverage` is the share of the span that is.  What is not known is None; `reasons` says why."""

from harness.telemetry.energy import joules_per_million
from harness.telemetry.reading import Reading, summarise
from harness.telemetry.values import (
    AllGpus,
    Energy,
    Event,
    GpuSpan,
    GpuTelemetry,
    HostSpan,
    Span,
    SpanFigures,
    Telemetry,
)

__all__ = [
    "AllGpus",
    "Energy",
    "Event",
    "GpuSpan",
    "GpuTelemetry",
    "HostSpan",
    "Reading",
    "Span",
    "SpanFigures",
    "Telemetry",
    "joules_per_million",
    "summarise",
]
