"""What the ranks of a job have done so far, as their files tell: events of progress in a journal, bytes in a log.

Looked at from outside once a second, by size; of a journal only what is new is read."""

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A rank that writes one of these has got on; `memory` comes with a phase, `probe_error` is the probe's own business.
PROGRESS = frozenset(["start", "phase", "segment", "step", "log", "eval", "save", "exception", "end"])
STEPS_OF_SILENCE = 10  # a job is as slow as its slowest step so far: that many of it pass before silence is a hang

_READ_BYTES = 1 << 20  # of one journal at one look; what is left comes with the next
_LINE_BYTES = 1 << 20  # a longer line is no event of ours
_LOOK_S = 1.0
_LONGEST_GAP_S = 5.0  # between two looks: more passed while nothing could run (a stopped machine, a frozen container)
_EQUAL_S = 2.0  # what one look at two journals cannot tell apart


@dataclass
class Rank:
    """How far a rank has come; times are on the clock of `Progress`."""

    rank: int
    since: float  # when it last got on, by its journal or its logs
    told: float  # the same by its journal alone
    pid: int | None = None
    event: str | None = None  # its last event of progress
    steps: int = 0  # steps seen
    step: int | None = None  # number of the last one
    sizes: dict[str, int] = field(default_factory=dict)
    rest: bytes = b""  # a line that is not whole yet


class Progress:
    """The progress of a job's ranks.  `limit_s` of silence of all of them is a hang; None: nothing is.

    `scales`: a job whose steps last long may be silent for longer, `STEPS_OF_SILENCE` of its longest step."""

    def __init__(self, folder: Path, limit_s: float | None, *, scales: bool) -> None:
        self.ranks: dict[int, Rank] = {}
        self.longest_step_s = 0.0
        self._folder, self._given_s, self._scales = folder, limit_s, scales
        self._clock = 0.0  # stands still while nobody looks
        self._looked: float | None = None
        self._since = 0.0  # when any of them last got on, the launcher included
        self._launcher = 0

    @property
    def limit_s(self) -> float | None:
        if self._given_s is None or not self._scales:
            return self._given_s
        return max(self._given_s, STEPS_OF_SILENCE * self.longest_step_s)

    @property
    def silent_s(self) -> float:
        """How long none of the ranks, nor their launcher, has got on."""
        return self._clock - self._since

    def hangs(self, now: float) -> bool:
        """Whether the job hangs at the monotonic time `now`.  Looks at the files, at most once a second."""
        if self._looked is None or now - self._looked >= _LOOK_S:
            self.look(now)
        limit = self.limit_s
        return limit is not None and self.silent_s >= limit

    def look(self, now: float) -> None:
        """Take in what the files tell."""
        gap = 0.0 if self._looked is None else now - self._looked
        self._clock += min(gap, _LONGEST_GAP_S)
        self._looked = now
        for number in _rank_folders(self._folder):
            rank = self.ranks.setdefault(number, Rank(number, since=self._clock, told=self._clock))
            if self._look_at(rank):
                rank.since = self._since = self._clock
        launcher = _size(self._folder / "node-0" / "launcher.log")
        if launcher != self._launcher:
            self._launcher, self._since = launcher, self._clock

    def _look_at(self, rank: Rank) -> bool:
        """Whether the rank has got on since the last look."""
        folder = self._folder / f"rank-{rank.rank}"
        got_on = False
        for name in ("stdout.log", "stderr.log"):
            size = _size(folder / name)
            if size != rank.sizes.get(name, 0):
                rank.sizes[name], got_on = size, True
        for event in self._events(rank, folder / "events.jsonl"):
            kind = event.get("e")
            if kind not in PROGRESS:
                continue
            got_on, rank.told, rank.event = True, self._clock, str(kind)
            if kind == "start" and isinstance(event.get("pid"), int):
                rank.pid = event["pid"]
            elif kind == "step":
                rank.steps += 1
                rank.step = event["step"] if isinstance(event.get("step"), int) else rank.step
                if isinstance(seconds := event.get("seconds"), int | float):
                    self.longest_step_s = max(self.longest_step_s, seconds)
        return got_on

    def _events(self, rank: Rank, path: Path) -> Iterator[dict[str, Any]]:
        """The events that are new in the journal.  A journal that was cut is read from its start again."""
        size, read = _size(path), rank.sizes.get("events.jsonl", 0)
        if size < read:
            read, rank.rest = 0, b""
        data = _read(path, read) if size > read else b""
        rank.sizes["events.jsonl"] = read + len(data)
        *lines, rest = (rank.rest + data).split(b"\n")
        rank.rest = rest if len(rest) <= _LINE_BYTES else b""
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event

    def describe(self, waiting: Mapping[int, bool | None], places: Mapping[int, str | None]) -> dict[str, Any]:
        """Fields of the `hang` event.

        `waiting`: which ranks stand in a collective operation; `places`: where they stand; as their stacks tell."""
        among = sorted(self.ranks.values(), key=lambda rank: rank.rank)
        return {
            "lagging_rank": lagging_rank(among, waiting, equal_s=max(_EQUAL_S, self.longest_step_s)),
            "silent_s": round(self.silent_s, 3),
            "limit_s": self.limit_s,
            "ranks": {
                str(rank.rank): {
                    "event": rank.event,
                    "step": rank.step,
                    "steps": rank.steps,
                    "silent_s": round(self._clock - rank.since, 3),
                    "in_collective": waiting.get(rank.rank),
                    "at": (places.get(rank.rank) or "")[:200] or None,
                }
                for rank in among
            },
        }


def lagging_rank(ranks: Iterable[Rank], waiting: Mapping[int, bool | None], *, equal_s: float) -> int | None:
    """The rank that the others wait for; None when nothing tells one from another.

    The one with the fewest steps; of several, the only one that does not stand in a collective operation while all
    others do; else the one whose journal has been silent longest, by more than `equal_s` seconds.  Logs do not count
    here: most programs have one rank alone write them."""
    among = list(ranks)
    if len(among) < 2:
        return None
    behind = [rank for rank in among if rank.steps == min(each.steps for each in among)]
    if len(behind) > 1:
        apart = [rank for rank in among if waiting.get(rank.rank) is False]
        waits = [rank for rank in among if waiting.get(rank.rank)]
        if len(apart) == 1 and len(waits) == len(among) - 1 and apart[0] in behind:
            behind = apart
    if len(behind) > 1:
        first, second = sorted(behind, key=lambda rank: rank.told)[:2]
        behind = [first] if second.told - first.told > equal_s else behind
    return behind[0].rank if len(behind) == 1 else None


def listed(hang: dict[str, Any], at_most: int) -> dict[str, Any]:
    """A description with at most so many ranks, those that came least far: the last word has a reserved place."""
    ranks: dict[str, dict[str, Any]] = hang["ranks"]
    order = sorted(ranks, key=lambda number: (number != str(hang["lagging_rank"]), ranks[number]["steps"], int(number)))
    return hang | {"ranks": {number: ranks[number] for number in sorted(order[:at_most], key=int)}}


def living(ranks: Iterable[Rank], alive: Collection[int]) -> dict[int, int]:
    """Process ids of the ranks that are among the job's living processes: an old number may be another's."""
    return {rank.rank: rank.pid for rank in ranks if rank.pid is not None and rank.pid in alive}


def _rank_folders(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:  # the program has removed it
        return []
    return sorted(int(name[5:]) for name in names if name.startswith("rank-") and name[5:].isdecimal())


def _size(path: Path) -> int:
    """0 for what is no regular file, or not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _read(path: Path, offset: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, _READ_BYTES, offset)
        finally:
            os.close(descriptor)
    except OSError:
        return b""
