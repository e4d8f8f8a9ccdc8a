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
MOST = 4096  # values of a series that are kept; at one a second an hour goes by before any two become one


class Series:
    """Memory over time, kept small however long the job lasts: neighbours become one, which holds the larger."""

    def __init__(self) -> None:
        self.held: list[tuple[float, int]] = []  # (monotonic seconds, bytes), in order
        self._every = 1  # values that become one
        self._taken = 0

    def take(self, m: float, count: int) -> None:
        if self._taken % self._every == 0:
            self.held.append((m, count))
        else:
            began, largest = self.held[-1]
            self.held[-1] = (began, max(largest, count))
        self._taken += 1
        if len(self.held) > MOST:
            pairs = zip(self.held[::2], [*self.held[1::2], self.held[-1]], strict=False)  # an odd one is its own
            self.held = [(began, max(first, second)) for (began, first), (_, second) in pairs]
            self._every *= 2


@dataclass
class Sampled:
    """What is kept of the sampler's journal, which may be long."""

    rss_peak_bytes: int | None = None  # of the job's processes, a shared page counted for each
    pss_peak_bytes: int | None = None
    host: Series = field(default_factory=Series)
    gpus: dict[str, Series] = field(default_factory=dict)  # memory in use, of whatever process, by UUID


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
                seen.host.take(m, rss)
            if isinstance(pss, int):
                seen.pss_peak_bytes = max(pss, seen.pss_peak_bytes or 0)
        elif event["e"] == "gpu_sample" and isinstance(used := event.get("memory_used_bytes"), int):
            seen.gpus.setdefault(str(event.get("uuid")), Series()).take(m, used)
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


def _rise(whose: str, series: Series, span: Span) -> str | None:
    held = [count for m, count in series.held if span.begin_m <= m <= span.end_m]
    half = len(held) // 2
    if len(held) < FEWEST:
        return None
    first, second = statistics.median(held[:half]), statistics.median(held[-half:])
    if second - first <= max(RISE_BYTES, RISE * first):
        return None
    return f"{whose} memory rose from {format_bytes(first)} to {format_bytes(second)} (medians of the halves)"
