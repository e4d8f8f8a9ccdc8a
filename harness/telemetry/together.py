"""One figure of several GPUs."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.telemetry.values import GpuSpan, GpuTelemetry

Part = tuple[GpuTelemetry, GpuSpan | None]  # a GPU, and what was seen of it over the span


def whole_gpus(gpus: Sequence[Part]) -> list[Part]:
    """Each whole GPU once, whatever MIG devices of it the job has."""
    return list({gpu.whole_uuid or gpu.uuid: (gpu, span) for gpu, span in gpus}.values())


def put_together(
    gpus: Sequence[Part],
    name: str,
    how: Callable[[Sequence[Any]], Any],
    of: Callable[[GpuSpan], Any] = lambda span: span,
) -> tuple[Any, str | None]:
    """(the figure, None); (None, whose is missing and why) where one of the GPUs does not tell it.

    `of`: the part of a span that holds the figure, and `reasons`."""
    holders = [None if span is None else of(span) for _, span in gpus]
    values = [None if holder is None else getattr(holder, name) for holder in holders]
    if None not in values:
        return how(values), None
    lacking = values.index(None)
    gpu, holder = gpus[lacking][0], holders[lacking]
    return None, f"GPU {gpu.uuid}: {gpu.reason if holder is None else holder.reasons.get(name)}"
