"""What ended training where the scenario lets it go on until the median step time is known well enough."""

from collections.abc import Mapping
from typing import Any

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part


def describe_stop(rank: RankJournal) -> Part:
    """`rank` is rank 0, which decides."""
    part, stop = Part(), _stop(rank)
    part.put("stopped_by", stop.get("why"), "the scenario has no measure: until, or training did not end well")
    few = f"{stop.get('measured')} measured steps are too few to tell" if stop else part.reasons["stopped_by"]
    part.put("stop_interval", stop.get("interval"), few)
    return part


def not_reached(rank: RankJournal, scenario: Mapping[str, Any]) -> str | None:
    """Where a bound came before the interval that the scenario asks for."""
    stop, until = _stop(rank), scenario.get("until")
    if stop.get("why") in (None, "interval") or not isinstance(until, Mapping):
        return None
    got = "is not known" if stop.get("interval") is None else f"is {100 * stop['interval']:.3g} % wide"
    asked = f"{100 * until['interval']:.3g} % was asked for"
    return f"{stop['why']} ended training at step {stop['step']}: the median's interval {got}, {asked}"


def _stop(rank: RankJournal) -> Event:
    """Of the last segment; nothing where training did not end by it."""
    stops, segments = rank.of("stop"), rank.of("segment")
    return stops[-1] if stops and (not segments or stops[-1]["m"] >= segments[-1]["m"]) else {}
