"""Figures of torch's CUDA allocator for a `memory` event, read only where the target has initialised CUDA itself."""

import sys
from typing import Any

FIGURES = ("allocated_peak_bytes", "active_peak_bytes", "reserved_peak_bytes", "total_bytes", "alloc_retries", "ooms")


def cuda_in_use() -> Any:
    """torch.cuda when the target has initialised it; None otherwise.  Asking must not create a context of our own."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized() else None


def read_memory(phase: str, *, reset: bool) -> dict[str, Any] | None:
    """Fields of a `memory` event for the current device; None where CUDA is not in use.

    `reset` starts the peaks anew, so that the next event tells the next phase alone; a foreign program may read the
    same peaks itself, so only the built-in target's are reset.
    """
    cuda = cuda_in_use()
    if cuda is None:
        return None
    stats = cuda.memory_stats()
    fields = {
        "phase": phase,
        "allocated_peak_bytes": stats.get("allocated_bytes.all.peak", 0),
        "active_peak_bytes": stats.get("active_bytes.all.peak", 0),
        "reserved_peak_bytes": stats.get("reserved_bytes.all.peak", 0),
        "total_bytes": cuda.get_device_properties(cuda.current_device()).total_memory,
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
        "since": "phase" if reset else "process",
        "reason": None,
    }
    if reset:
        cuda.reset_peak_memory_stats()
    return fields


def no_memory(phase: str) -> dict[str, Any]:
    """The `memory` event of a rank that used no GPU."""
    return {"phase": phase, **dict.fromkeys(FIGURES), "since": None, "reason": "the rank used no CUDA device"}
