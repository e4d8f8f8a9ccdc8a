"""Reading journals: one JSON object a line, a torn last line is no error, unknown events pass through."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.probe.layout import JobPaths
from harness.probe.reading import Event, decode_event, open_regular, read_document

__all__ = [
    "Event",
    "RankJournal",
    "number_segments",
    "open_regular",
    "read_document",
    "read_events",
    "read_rank",
    "read_ranks",
]


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

    @property
    def end(self) -> Event | None:
        """The `end` of the process that was this rank last; None where it has not told of it."""
        last = next((event for _, event in reversed(self.events) if event["e"] in ("start", "end")), None)
        return last if last is not None and last["e"] == "end" else None

    def processes(self) -> list["RankJournal"]:
        """What each process told that was this rank in turn: a launcher starts a rank anew, a driver trains twice.

        The error record is the last one's."""
        begins = [place for place, (_, event) in enumerate(self.events) if event["e"] == "start"][1:]
        if not begins:
            return [self]
        cuts = zip([0, *begins], [*begins, len(self.events)], strict=True)
        parts = [self.events[begin:end] for begin, end in cuts]
        return [
            *(RankJournal(self.rank, part, None) for part in parts[:-1]),
            replace(self, events=parts[-1], _by_kind={}),
        ]


def read_ranks(job: JobPaths) -> list[RankJournal]:
    """The journals of all ranks that left a folder, by rank, their segments numbered on from process to process."""
    return number_segments([read_rank(job, rank) for rank in job.ranks()])


def number_segments(ranks: Sequence[RankJournal]) -> list[RankJournal]:
    """Have the segments of a rank's next process follow those of its last: each process counts from 0.

    What all ranks began together keeps one number, also where one of them ended before it trained."""
    processes = [rank.processes() for rank in ranks]
    if all(len(parts) == 1 for parts in processes):
        return list(ranks)
    offsets = [0]
    for turn in itertools.zip_longest(*processes):
        numbers = [_highest_segment(process) for process in turn if process is not None]
        offsets.append(offsets[-1] + max(numbers, default=-1) + 1)
    return [
        rank if len(parts) == 1 else _renumbered(rank, parts, offsets)
        for rank, parts in zip(ranks, processes, strict=True)
    ]


def _highest_segment(process: RankJournal) -> int:
    told = (event.get("segment") for _, event in process.events)
    return max((number for number in told if isinstance(number, int)), default=-1)


def _renumbered(rank: RankJournal, parts: Sequence[RankJournal], offsets: Sequence[int]) -> RankJournal:
    events = []
    for part, offset in zip(parts, offsets, strict=False):
        for line, event in part.events:
            number = event.get("segment")
            events.append((line, {**event, "segment": number + offset} if isinstance(number, int) else event))
    return replace(rank, events=tuple(events), _by_kind={})


def read_rank(job: JobPaths, rank: int) -> RankJournal:
    return RankJournal(rank, tuple(read_events(job.events(rank))), read_document(job.error(rank)))
