"""Where an attempt's wall time went: by phase, adding up to the whole."""

from dataclasses import dataclass
from itertools import pairwise

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part


@dataclass(frozen=True)
class Wall:
    """When an attempt was; seconds since the epoch.  `assets_s` and `lease_wait_s` came before `started`."""

    started: float | None = None
    ended: float | None = None
    lease_wait_s: float | None = None
    command_started: float | None = None  # out of the engine's queue; None: nobody told
    assets_s: float | None = None  # None: nothing was to make or fetch


def describe_phases(rank: RankJournal, wall: Wall) -> Part:
    """`assets`, `lease`, `queue`, `launch` before rank 0's process, its own phases, `shutdown` after its end, `other`.

    A phase that would be negative (a clock was set meanwhile) is null, and so is what follows from it."""
    part = Part()
    spans: dict[str, float | None] = {}
    if wall.assets_s is not None:
        spans["assets"] = wall.assets_s
    if wall.lease_wait_s is not None:
        spans["lease"] = wall.lease_wait_s
    began = _began(rank)
    if wall.started is not None and began is not None:
        launched = wall.started
        if wall.command_started is not None:
            launched = min(wall.command_started, began)  # of a single rank they are one moment, told by two clocks
            _add(part, spans, "queue", wall.started, launched)
        _add(part, spans, "launch", launched, began)
    _add_own(part, spans, rank, wall.ended)
    end = rank.end
    if end is not None and wall.ended is not None:
        _add(part, spans, "shutdown", end["t"], wall.ended)
    total = None
    if wall.started is not None and wall.ended is not None:
        total = wall.ended - wall.started + (wall.lease_wait_s or 0.0) + (wall.assets_s or 0.0)
        known = [seconds for seconds in spans.values() if seconds is not None]
        rest = total - sum(known)
        if len(known) < len(spans):
            spans["other"] = None
            part.reasons["phases_s.other"] = "another phase is not known"
        elif rest < -0.02 * total:
            spans["other"] = None
            part.reasons["phases_s.other"] = f"would be {rest:.3f} s: the phases take {sum(known):.3f} s of {total:.3f}"
        else:
            spans["other"] = max(0.0, rest)
    part.values["phases_s"] = spans
    part.put("wall_s", total, "it is not known when the attempt began and ended")
    return part


def rank_phases(rank: RankJournal, ended: float | None) -> dict[str, float | None]:
    """Seconds by phase: each lasts until the next begins, the last until the rank's `end` or `ended` (epoch seconds).

    A phase that comes again (a second call of train()) adds up.  `import` begins when the process was created.
    """
    spans: dict[str, float | None] = {}
    _add_own(Part(), spans, rank, ended)
    return spans


def _add_own(part: Part, spans: dict[str, float | None], rank: RankJournal, ended: float | None) -> None:
    marks = rank.of("phase")
    if not marks:
        return
    began = _began(rank)
    if began is not None and began < marks[0]["t"]:
        _add(part, spans, str(marks[0]["name"]), began, marks[0]["t"])
    for mark, following in pairwise(marks):
        _add(part, spans, str(mark["name"]), *_between(mark, following))
    last, end = marks[-1], rank.end
    if end is not None:
        _add(part, spans, str(last["name"]), *_between(last, end))
    elif ended is not None:
        _add(part, spans, str(last["name"]), last["t"], ended)


def _between(mark: Event, following: Event) -> tuple[float, float]:
    """On the monotonic clock, which nobody sets."""
    return mark["m"], following["m"]


def _began(rank: RankJournal) -> float | None:
    """When the rank's process was created, on the wall clock; where /proc does not tell, its first phase."""
    starts, marks = rank.of("start"), rank.of("phase")
    created = starts[0].get("process_started") if starts else None
    first = marks[0]["t"] if marks else None
    if isinstance(created, int | float):
        return float(created) if first is None else min(float(created), first)
    return None if first is None else float(first)


def _add(part: Part, spans: dict[str, float | None], name: str, since: float, until: float) -> None:
    before = spans.get(name, 0.0)
    if until < since or before is None:
        spans[name] = None
        part.reasons.setdefault(f"phases_s.{name}", f"would be {until - since:.3f} s: from {since:.3f} to {until:.3f}")
    else:
        spans[name] = before + until - since
