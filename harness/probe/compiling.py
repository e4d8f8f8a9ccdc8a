"""What torch.compile did in this process, as torch counts it; read only where the target has loaded it itself."""

import sys
from collections.abc import Mapping
from typing import Any


def describe_compiling() -> dict[str, Any] | None:
    """Fields of a `compile` event over the whole process so far; None where nothing was compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters: Mapping[str, Mapping[str, int]] = getattr(utils, "counters", {})
    compiled = dict(counters.get("frames", {})).get("ok", 0)
    if not compiled:
        return None
    hits, misses = _cached(counters)
    return {
        "seconds": _seconds(utils),
        "compilations": compiled,
        "graphs": dict(counters.get("stats", {})).get("unique_graphs"),
        "recompiles": _recompiles(),
        "graph_breaks": _graph_breaks(counters),
        "cache_hits": hits,
        "cache_misses": misses,
    }


def _seconds(utils: Any) -> float | None:
    """Wall time in the compiler, forward and backward graphs; a part of a frame that is compiled in it counts once."""
    calculate = getattr(utils, "calculate_time_spent", None)
    spent = {} if calculate is None else calculate()
    seconds = spent.get("total_wall_time")
    return None if seconds is None else float(seconds)


def _recompiles() -> int | None:
    """How often code was compiled again because what it was compiled for no longer held."""
    times = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None)
    return None if times is None else sum(count - 1 for count in dict(times).values())


def _graph_breaks(counters: Mapping[str, Mapping[str, int]]) -> int:
    """torch counts a break by its reason in one of two tables, or in both."""
    breaks, unimplemented = dict(counters.get("graph_break", {})), dict(counters.get("unimplemented", {}))
    return sum(max(breaks.get(why, 0), unimplemented.get(why, 0)) for why in breaks.keys() | unimplemented.keys())


def _cached(counters: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """(graphs whose compiled code was found in a cache on disk, graphs whose code was not).

    A hit of autograd's cache, which lies above inductor's, is counted as one of inductor's, too, by torch 2.13 at
    least."""
    inductor, autograd = dict(counters.get("inductor", {})), dict(counters.get("aot_autograd", {}))
    hits = max(inductor.get("fxgraph_cache_hit", 0), autograd.get("autograd_cache_hit", 0))
    return hits, inductor.get("fxgraph_cache_miss", 0)
