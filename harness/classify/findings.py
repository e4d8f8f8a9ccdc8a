"""The exceptions that ranks ended with, each with the row it matches and how far it can be a cause."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from harness.classify.evidence import JobEvidence
from harness.journal import Event, RankJournal
from harness.probe.signatures import Signature, match
from harness.record import Kind

# What ends a rank because somebody asked it to: no reason of its own.
ASKED_TO_END = {"KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException"}


class Tier(IntEnum):
    """The lowest tier that was seen holds the cause; within one, the earliest."""

    CAUSE = 0  # a known reason that is not about a peer
    UNKNOWN = 1  # an exception nobody knows: still the rank's own
    COLLECTIVE = 2  # a collective failed or waited in vain: often because another rank had ended
    CONSEQUENCE = 3  # tells of another rank's end


@dataclass(frozen=True)
class Finding:
    """One exception, and where it was read."""

    rank: int
    error: Event
    file: str
    line: int | None
    row: Signature | None

    @property
    def tier(self) -> Tier:
        if self.row is None:
            return Tier.UNKNOWN
        if self.row.consequence:
            return Tier.CONSEQUENCE
        return Tier.COLLECTIVE if self.kind is Kind.NCCL else Tier.CAUSE

    @property
    def kind(self) -> Kind:
        return Kind(self.row.kind) if self.row else Kind.UNKNOWN


def find(evidence: JobEvidence) -> list[Finding]:
    """What each rank ended with, the likeliest cause first."""
    found = [finding for rank in evidence.ranks if (finding := _of_rank(rank)) is not None]
    return sorted(found, key=lambda finding: (finding.tier, finding.error["t"], finding.rank))


def find_unfinished(evidence: JobEvidence) -> Finding | None:
    """An exception that left train() for good, short of the steps it was to take, in a job that ended well.

    A program that halves its batch and trains again went on; one that only logs the exception did not.
    """
    for rank in evidence.ranks:
        segment, left = rank.last("segment"), _last_exception(rank, ("train",))
        steps = rank.of("step")
        done = steps[-1]["step"] if steps else 0
        wanted = segment.get("max_steps") if segment else None
        if left is not None and isinstance(wanted, int) and done < wanted:
            return _finding(rank, left[1], f"rank-{rank.rank}/events.jsonl", left[0])
    return None


def _of_rank(rank: RankJournal) -> Finding | None:
    """A rank's error record; without one (killed by its launcher, os._exit), the last exception that left training."""
    if rank.error is not None:
        return _finding(rank, rank.error, f"rank-{rank.rank}/error.json", None)
    end = rank.last("end")
    if end is not None and end.get("exit_code") == 0:
        return None
    left = _last_exception(rank, ("train", "main"))
    return _finding(rank, left[1], f"rank-{rank.rank}/events.jsonl", left[0]) if left else None


def _last_exception(rank: RankJournal, where: tuple[str, ...]) -> tuple[int, Event] | None:
    """The last exception seen there, with its line; None when training went on after it: the program had caught it."""
    last = None
    for line, event in rank.events:
        if event["e"] == "exception" and event.get("where") in where and event.get("type") not in ASKED_TO_END:
            last = (line, event)
        elif event["e"] in ("segment", "step") and last is not None and event["t"] > last[1]["t"]:
            last = None
    return last


def _finding(rank: RankJournal, error: Event, file: str, line: int | None) -> Finding | None:
    name = str(error.get("type")).removeprefix("builtins.")
    if not isinstance(error.get("t"), int | float) or name in ASKED_TO_END:
        return None
    if name == "SystemExit" and not error.get("chain"):
        return None  # an exit code, not a reason
    row = match(name, list(error.get("bases") or []), str(error.get("message", "")))
    if row is not None and row.kind != Kind.USER_ERROR:
        return Finding(rank.rank, error, file, line, row)
    for link in _links(error, contexts=row is None):
        deeper = match(str(link.get("type")), [], str(link.get("message", "")))
        if deeper is not None and deeper.kind != Kind.USER_ERROR:
            return Finding(rank.rank, _as_seen(rank, error, link), file, line, deeper)
    return Finding(rank.rank, error, file, line, row)


def _links(error: Event, *, contexts: bool) -> Iterator[dict[str, Any]]:
    """The exceptions behind one.  Causes always; what was merely being handled only for an exception nobody knows.

    A NameError in the handler of an out-of-memory error is a NameError.
    """
    for link in error.get("chain") or []:
        if link.get("link") == "context" and not contexts:
            return
        yield link


def _as_seen(rank: RankJournal, error: Event, link: dict[str, Any]) -> Event:
    """The event of an exception that stands in another's chain: it knows the step and the part of it."""
    for event in reversed(rank.of("exception")):
        if event.get("type") == link.get("type") and event.get("message") == link.get("message"):
            return event
    return {**error, "type": link.get("type"), "message": link.get("message")}
