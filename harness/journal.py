"""Reading journals: one JSON object a line, a torn last line is no error, unknown events pass through."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.probe.layout import JobPaths
from harness.probe.reading import Event, decode_event, open_regular, read_document

__all__ = ["Event", "RankJournal", "open_regular", "read_document", "read_events", "read_rank", "read_ranks"]


def read_events(path: Path) -> Iterator[tuple[int, Event]]:
    """Yield (line number from 1, event) of a journal; nothing when there is no such file to read.

    A line that is no JSON object (torn by a crash, or by a full disk) is left out.
    """
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, 1):
                event = decode_event(line)
                if event is not None:
                    yield number, event
    except OSError:
        return


@dataclass(frozen=True)
class RankJournal:
    """All that one rank left: its events in the order of writing, by kind, and its error record."""

    rank: int
    events: tuple[tuple[int, Event], ...]
    error: Event | None
    _by_kind: dict[str, list[Event]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        if not self._by_kind and self.events:
            for _, event in self.events:
                self._by_kind.setdefault(event["e"], []).append(event)
        return self._by_kind.get(kind, [])

    def last(self, kind: str) -> Event | None:
        events = self.of(kind)
        return events[-1] if events else None


def read_ranks(job: JobPaths) -> list[RankJournal]:
    """The journals of all ranks that left a folder, by rank."""
    return [read_rank(job, rank) for rank in job.ranks()]


def read_rank(job: JobPaths, rank: int) -> RankJournal:
    return RankJournal(rank, tuple(read_events(job.events(rank))), read_document(job.error(rank)))
