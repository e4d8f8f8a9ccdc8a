"""What torch.compile is said to have done, from counters as torch keeps them."""

import sys
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe.compiling import describe_compiling


def torch_that_counted(monkeypatch: pytest.MonkeyPatch, times: dict[int, int] | None = None, **tables: Any) -> None:
    counters: Any = defaultdict(Counter)
    for table, counts in tables.items():
        counters[table].update(counts)
    spent = {"entire_frame_compile": 2.0, "entire_backward_compile": 0.5, "total_wall_time": 2.5}
    utils = SimpleNamespace(counters=counters, calculate_time_spent=lambda: spent)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    frames = SimpleNamespace() if times is None else SimpleNamespace(FRAME_COMPILE_COUNTER=Counter(times))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", frames)


def test_a_program_that_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert describe_compiling() is None
    assert "torch._dynamo.utils" not in sys.modules  # never loaded by us
    torch_that_counted(monkeypatch, frames={"total": 1})
    assert describe_compiling() is None


def test_counts_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_that_counted(
        monkeypatch,
        {0: 3, 1: 1, 2: 1},
        frames={"total": 6, "ok": 5},
        stats={"unique_graphs": 4},
        graph_break={"print": 2, "both": 1},
        unimplemented={"branch": 3, "both": 1},
        inductor={"fxgraph_cache_miss": 7, "fxgraph_cache_hit": 1},
    )
    assert describe_compiling() == {
        "seconds": 2.5,
        "compilations": 5,
        "graphs": 4,
        "recompiles": 2,
        "graph_breaks": 6,
        "cache_hits": 1,
        "cache_misses": 7,
    }


def test_a_torch_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_that_counted(monkeypatch, frames={"ok": 1})
    monkeypatch.delattr(sys.modules["torch._dynamo.utils"], "calculate_time_spent")
    told = describe_compiling()
    assert told is not None
    assert (told["seconds"], told["recompiles"], told["graphs"]) == (None, None, None)
