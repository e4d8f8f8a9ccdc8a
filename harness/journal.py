"""Reading journals: one JSON object a line, a torn last line is no error, unknown events pass through."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.probe.layout import JobPaths

Event = dict[str, Any]


def open_regular(path: Path) -> BinaryIO:
    """Open what a job left, for reading: never through a link, never waiting for the other end of a pipe.

    Raises OSError for anything but a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_events(path: Path) -> Iterator[tuple[int, Event]]:
    """Yield (line number from 1, event) of a journal; nothing when there is no such file to read.

    A line that is no JSON object (torn by a crash, or by a full disk) is left out.
    """
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, 1):
                event = _decode(line)
                if event is not None:
                    yield number, event
    except OSError:
        return


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
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
        with open_regular(path) as file:
            document = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
