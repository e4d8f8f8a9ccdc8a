"""What torch.compile took and did, of the rank for which it took longest."""

from collections.abc import Sequence

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part, number

# figure -> field of a `compile` event
FIELDS = {
    "compile_s": "seconds",
    "compilations": "compilations",
    "recompiles": "recompiles",
    "graph_breaks": "graph_breaks",
}


def describe_compiling(ranks: Sequence[RankJournal]) -> Part:
    """The last word of each rank is of its whole process."""
    part = Part()
    told = [event for rank in ranks if (event := rank.last("compile")) is not None]
    if not told:
        part.nulls((*FIELDS, "compile_cache"), "nothing was compiled")
        return part
    longest = max(told, key=lambda event: number(event.get("seconds")) or 0.0)
    for name, field in FIELDS.items():
        part.put(name, longest.get(field), "this version of torch does not tell")
    part.put("compile_cache", _cache(longest), "no graph was looked up in a cache")
    return part


def _cache(event: Event) -> str | None:
    hits, misses = event.get("cache_hits"), event.get("cache_misses")
    if not hits and not misses:
        return None
    return "mixed" if hits and misses else "warm" if hits else "cold"
