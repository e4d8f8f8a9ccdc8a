"""Reading journals: one JSON object a line, a torn last line is no error, unknown events pass through."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.probe.layout import JobPaths

Event = dict[str, Any]


def read_events(path: Path) -> Iterator[tuple[int, Event]]:
    """Yield (line number from 1, event) of a journal; nothing when the file is not there.

    A line that is no JSON object (torn by a crash, or by a full disk) is left out.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                event = _decode(line)
                if event is not None:
                    yield number, event
    except FileNotFoundError:
        return


def last_event(path: Path, block_bytes: int = 16384) -> Event | None:
    """The newest whole event, from the end of the file: cheap enough to poll a live job."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - block_bytes))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    return next((event for line in reversed(lines) if (event := _decode(line)) is not None), None)


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("e"), str) else None


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


def read_document(path: Path) -> dict[str, Any] | None:
    """A file that is one JSON object; None when it is absent, cut or something else."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
