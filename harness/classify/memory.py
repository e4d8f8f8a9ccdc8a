"""The figures in an out-of-memory message: for a reason, a hint, and whether a retry could help; pure.

Formats: torch's CUDACachingAllocator (1.x-2.0 in brackets, 2.1 with "capacty", 2.2-2.13), its XPU and MPS siblings,
alloc_cpu.cpp."""

import re
from dataclasses import dataclass

from harness.units import format_bytes, parse_bytes

SIZE = r"(\d+(?:\.\d+)? (?:bytes|[KMGT]i?B))"
ASKED = re.compile(rf"[Tt]ried to allocate {SIZE}")
FREE = re.compile(
    rf"total capac\w*ty\s+of {SIZE} of which {SIZE} is free|{SIZE} total capacity;.*?{SIZE} free;", re.DOTALL
)
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_OTHERS = re.compile(rf"Process \d+ has {SIZE} memory in use")
_ALLOCATED = re.compile(rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated")
_UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")
# Shares of the card: below them other processes may be mere contexts, or the figures rounded.
_OTHERS_MATTER = 0.1
_UNACCOUNTED_MATTERS = 0.5  # the older message does not count this process's own context and libraries
_FRAGMENTS_MATTER = 0.05


@dataclass(frozen=True)
class Memory:
    """Bytes; None where the message does not say."""

    asked: int | None
    free: int | None
    total: int | None
    own: int | None  # held by this process
    others: int | None  # held by other processes of the card
    unallocated: int | None  # reserved by the allocator, and not handed out


def read_figures(message: str) -> Memory:
    text = " ".join(message.split())
    capacity = FREE.search(text)
    total, free = (capacity[1] or capacity[3], capacity[2] or capacity[4]) if capacity else (None, None)
    reserved, allocated = _RESERVED.search(text), _ALLOCATED.search(text)
    unallocated = _bytes(_UNALLOCATED.search(text))
    if unallocated is None and reserved and allocated:
        unallocated = max(0, _number(reserved[1]) - _number(allocated[1] or allocated[2]))
    own = _bytes(_OWN.search(text))
    if own is None and reserved:
        own = _number(reserved[1])
    named = [_number(size) for size in _OTHERS.findall(text)]
    others = sum(named) if named else None
    figures = Memory(
        _bytes(ASKED.search(text)),
        _number(free) if free else None,
        _number(total) if total else None,
        own,
        others,
        unallocated,
    )
    if others is None and figures.total and figures.free is not None and own is not None:
        rest = figures.total - figures.free - own
        share = _UNACCOUNTED_MATTERS if reserved else _OTHERS_MATTER
        if rest > share * figures.total:
            return Memory(figures.asked, figures.free, figures.total, own, rest, unallocated)
    return figures


def others_hold_it(memory: Memory) -> bool:
    """Whether the request would have fitted without the other processes of the card."""
    if not memory.others or not memory.total:
        return bool(memory.others)
    if memory.asked is None or memory.asked > memory.total:
        return False
    return memory.others >= _OTHERS_MATTER * memory.total and memory.asked <= memory.others + (memory.free or 0)


def told(message: str) -> str | None:
    """`asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free`, as far as the allocator said."""
    text = " ".join(message.split())
    asked = ASKED.search(text)
    if asked is None:
        return None
    said = f"asked for {asked[1]}"
    if free := FREE.search(text):
        total, left = (free[1], free[2]) if free[1] else (free[3], free[4])
        said += f", {left} of {total} free"
    return said


def hint_of(message: str) -> str | None:
    """What the figures of a GPU's out-of-memory error show; None when they do not decide."""
    memory = read_figures(message)
    if memory.asked is None:
        return None
    asked = format_bytes(memory.asked)
    if memory.total and memory.asked > memory.total:
        return (
            f"one tensor of {asked} is larger than the card ({format_bytes(memory.total)}): no setting frees that much"
        )
    if others_hold_it(memory):
        return (
            f"other processes hold {format_bytes(memory.others or 0)} of the card: without them the {asked} asked for "
            "would have fitted"
        )
    free = memory.free or 0
    if (
        memory.unallocated is not None
        and memory.total
        and memory.unallocated >= _FRAGMENTS_MATTER * memory.total
        and memory.asked <= memory.unallocated + free
    ):
        return (
            f"{format_bytes(memory.unallocated)} are reserved but unallocated, {asked} were asked for: fragmented; "
            "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9) may make it fit"
        )
    if memory.own and memory.total and memory.free is not None and memory.own >= 0.8 * memory.total:
        lacking = memory.asked - free
        if lacking > 0:
            return (
                f"this process holds {format_bytes(memory.own)} of {format_bytes(memory.total)} and lacks another "
                f"{format_bytes(lacking)}: a smaller batch or sequence, checkpointing or sharding is needed"
            )
    return None


def _bytes(found: re.Match[str] | None) -> int | None:
    return _number(next(value for value in found.groups() if value)) if found else None


def _number(size: str) -> int:
    return parse_bytes(size.replace("bytes", "B"))
