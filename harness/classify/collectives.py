"""Which rank kept the others waiting: the watchdogs' counts of collectives, compared over all ranks; pure.

Formats: torch 1.13-2.13 (ProcessGroupNCCL.cpp), gloo's monitored barrier."""

import re
from collections import defaultdict
from dataclasses import dataclass

from harness.classify.evidence import JobEvidence
from harness.record import Evidence

_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_GLOO = re.compile(r"Timed out waiting (\d+)ms for (?:recv|send) operation")


@dataclass(frozen=True)
class Lag:
    """What the comparison shows; `rank` is None where nobody lags, or nobody can tell."""

    rank: int | None
    text: str
    facts: tuple[Evidence, ...] = ()
    mismatch: bool = False  # ranks were in different collectives: it would happen again


def find_lag(evidence: JobEvidence) -> Lag | None:
    """None when no collective timed out in any log."""
    return _by_culprit(evidence) or _by_barrier(evidence) or _by_watchdog(evidence) or _by_silence_of_gloo(evidence)


def _by_culprit(evidence: JobEvidence) -> Lag | None:
    """torch's desync report names them."""
    for log in evidence.logs:
        if log.culprits:
            rank, line, text = log.culprits[0]
            return Lag(rank, f"rank {rank} caused the desync", (Evidence(file=log.file, line=line, text=text.strip()),))
    return None


def _by_barrier(evidence: JobEvidence) -> Lag | None:
    for log in evidence.logs:
        for raised in log.raised:
            if found := _BARRIER.search(raised.message):
                ranks = sorted(int(rank) for rank in re.findall(r"\d+", found[1]))
                who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
                return Lag(ranks[0], f"{who} did not reach the barrier")
    return None


def _by_watchdog(evidence: JobEvidence) -> Lag | None:
    works = [work for log in evidence.logs for work in log.works]
    enqueued: dict[str, dict[int, tuple[int, Evidence]]] = defaultdict(dict)
    for log in evidence.logs:
        for (group, rank), (number, line, text) in log.enqueued.items():
            enqueued[group][rank] = (number, Evidence(file=log.file, line=line, text=text.strip()[:400]))
    if not works and not enqueued:
        return None
    first = min(works, key=lambda work: (work.number, work.rank if work.rank is not None else 0), default=None)
    said = (
        f"{first.operation}, sequence number {first.number}, timed out after {first.timeout_ms} ms"
        if first
        else "a collective timed out"
    )
    operations = {
        work.operation for work in works if first and (work.number, work.group) == (first.number, first.group)
    }
    if len(operations) > 1:
        return Lag(
            None, f"{said}: ranks were in different collectives ({', '.join(sorted(operations))})", mismatch=True
        )
    for by_rank in enqueued.values():
        numbers = {number for number, _ in by_rank.values()}
        if len(by_rank) > 1 and len(numbers) > 1:
            lowest, highest = min(numbers), max(numbers)
            rank = min(rank for rank, (number, _) in by_rank.items() if number == lowest)
            told = f"{said}; rank {rank} lags: last enqueued {lowest}, others {highest}"
            return Lag(rank, told, (by_rank[rank][1],))
    waited = {work.rank for work in works if work.rank is not None} | {rank for by in enqueued.values() for rank in by}
    silent = _silent(evidence, waited)
    if silent is not None:
        return Lag(silent, f"{said}; rank {silent} alone says nothing of it")
    return Lag(None, f"{said}; no rank is seen to lag")


def _by_silence_of_gloo(evidence: JobEvidence) -> Lag | None:
    waited: dict[int, str] = {}
    for log in evidence.logs:
        for raised in log.raised:
            if raised.rank is not None and (found := _GLOO.search(raised.message)):
                waited[raised.rank] = found[1]
    for journal in evidence.ranks:
        if journal.error is not None and (found := _GLOO.search(str(journal.error.get("message", "")))):
            waited[journal.rank] = found[1]
    silent = _silent(evidence, set(waited))
    if not waited or silent is None:
        return None
    rank = min(waited)
    return Lag(silent, f"rank {rank} waited {waited[rank]} ms in a collective that rank {silent} did not reach")


def _silent(evidence: JobEvidence, waited: set[int]) -> int | None:
    """The one rank of the job that did not wait, if there is exactly one."""
    if evidence.world_size is not None:
        everyone = set(range(evidence.world_size))
    else:
        everyone = {rank for log in evidence.logs for rank in log.ranks}
        everyone |= {death.rank for log in evidence.logs for death in log.launcher.deaths if death.rank is not None}
        if len(waited) > 1:
            everyone |= set(range(min(waited), max(waited) + 1))
    rest = everyone - waited
    return next(iter(rest)) if waited and len(rest) == 1 else None
