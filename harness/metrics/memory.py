"""Memory: torch's allocator by rank and phase, and the host's by the sampler.  The two are never mixed."""

from collections.abc import Sequence

from harness.journal import RankJournal
from harness.metrics.parts import Part
from harness.metrics.sampled import Sampled
from harness.record import RankMemory

PEAKS = {
    "peak_allocated_bytes": "allocated_peak_bytes",
    "peak_active_bytes": "active_peak_bytes",
    "peak_reserved_bytes": "reserved_peak_bytes",
}


def describe_memory(ranks: Sequence[RankJournal], sampled: Sampled) -> Part:
    """Peaks of the largest rank, those of every rank by phase, and the host's."""
    part = Part()
    tables = [_of_rank(rank) for rank in ranks]
    part.values["memory"] = tables
    told = next((table.reason for table in tables if table.reason), "no rank reported its allocator")
    for figure, kind in PEAKS.items():
        peaks = [max(peak.values()) for table in tables if (peak := getattr(table, kind))]
        part.put(figure, max(peaks, default=None), told)
    holding = [table for table in tables if table.allocated_peak_bytes]
    largest = max(holding, key=lambda table: max(table.allocated_peak_bytes.values()), default=None)
    part.put("largest_memory_rank", largest.rank if largest else None, told)
    for figure, kind in (("alloc_retries", "alloc_retries"), ("allocator_ooms", "ooms")):
        counts = [count for table in tables if (count := getattr(table, kind)) is not None]
        part.put(figure, sum(counts) if counts else None, told)
    why = "the sampler saw no process of the job, or may not read its memory map"
    part.put("host_peak_rss_bytes", sampled.rss_peak_bytes, why)
    part.put("host_peak_pss_bytes", sampled.pss_peak_bytes, why)
    return part


def retries_in_steady(ranks: Sequence[RankJournal]) -> int:
    """Allocations tried again while the ranks stepped: what loading and the first step did costs the others no time."""
    total = 0
    for rank in ranks:
        before = 0
        for event in rank.of("memory"):
            count = event.get("alloc_retries")
            if isinstance(count, int):  # since the process began, which another may have followed
                total += count - (before if count >= before else 0) if event.get("phase") == "steady" else 0
                before = count
    return total


def _of_rank(rank: RankJournal) -> RankMemory:
    """A phase that comes again has the larger of its peaks."""
    events = rank.of("memory")
    peaks: dict[str, dict[str, int]] = {kind: {} for kind in PEAKS.values()}
    for event in events:
        for kind, of_phase in peaks.items():
            if isinstance(event.get(kind), int):
                phase = str(event.get("phase"))
                of_phase[phase] = max(event[kind], of_phase.get(phase, 0))
    read = [event for event in events if isinstance(event.get("allocated_peak_bytes"), int)]
    last = read[-1] if read else {}
    told = next((str(event["reason"]) for event in events if event.get("reason")), "the rank reported no memory")
    return RankMemory(
        rank=rank.rank,
        total_bytes=last.get("total_bytes"),
        **peaks,
        covers=last.get("since"),
        alloc_retries=last.get("alloc_retries"),
        ooms=last.get("ooms"),
        reason=None if read else told,
    )
