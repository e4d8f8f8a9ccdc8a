"""Memory as the sampler saw it, of the host and of GPUs: peaks, and whether it rises over the measured steps."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.journal import Event, RankJournal
from harness.metrics.span import Span
from harness.units import format_bytes

RISE = 0.05  # of memory over the window that counts as drift
RISE_BYTES = 64 * 2**20
FEWEST = 8  # samples of the window below which nothing can be said
Held = list[tuple[float, int]]  # (monotonic seconds, bytes), in order


@dataclass
class Sampled:
    """What is kept of the sampler's journal, which may be long."""

    rss_peak_bytes: int | None = None  # of the job's processes, a shared page counted for each
    pss_peak_bytes: int | None = None
    host: Held = field(default_factory=list)
    gpus: dict[str, Held] = field(default_factory=dict)  # memory in use, of whatever process, by UUID


def read_samples(events: Iterable[Event]) -> Sampled:
    """One pass over the events of the sampler's journal."""
    seen = Sampled()
    for event in events:
        m = event.get("m")
        if not isinstance(m, int | float):
            continue
        if event["e"] == "sample" and isinstance(tree := event.get("tree"), dict):
            rss, pss = tree.get("rss_bytes"), tree.get("pss_bytes")
            if isinstance(rss, int):
                seen.rss_peak_bytes = max(rss, seen.rss_peak_bytes or 0)
                seen.host.append((m, rss))
            if isinstance(pss, int):
                seen.pss_peak_bytes = max(pss, seen.pss_peak_bytes or 0)
        elif event["e"] == "gpu_sample" and isinstance(used := event.get("memory_used_bytes"), int):
            seen.gpus.setdefault(str(event.get("uuid")), []).append((m, used))
    return seen


def memory_drift(seen: Sampled, ranks: Sequence[RankJournal], span: Span | None) -> str | None:
    """What memory rises over the measured steps, in words: something is kept that should not be."""
    if span is None:
        return None
    held = {"the host's": seen.host} | {f"{uuid}'s": seen.gpus[uuid] for uuid in _gpus_of(seen, ranks)}
    return "; ".join(rise for whose, series in held.items() if (rise := _rise(whose, series, span))) or None


def _gpus_of(seen: Sampled, ranks: Sequence[RankJournal]) -> list[str]:
    """The GPUs that the ranks train on; all that were sampled where that is not told."""
    told = {str((rank.last("model") or {}).get("device_uuid")) for rank in ranks}
    return sorted(told & set(seen.gpus)) or sorted(seen.gpus)


def _rise(whose: str, series: Held, span: Span) -> str | None:
    held = [count for m, count in series if span.begin_m <= m <= span.end_m]
    half = len(held) // 2
    if len(held) < FEWEST:
        return None
    first, second = statistics.median(held[:half]), statistics.median(held[-half:])
    if second - first <= max(RISE_BYTES, RISE * first):
        return None
    return f"{whose} memory rose from {format_bytes(first)} to {format_bytes(second)} (medians of the halves)"
