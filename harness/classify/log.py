"""Reads a log of any size as a stream and keeps what may say why a job ended: exceptions with their chains, reports of
libraries, words of launchers and schedulers; constant memory, pure.

Most lines of a log say nothing.  A block is searched for words that every line of interest holds, in C, and only the
lines around a hit are read."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from harness.classify import lines as rows
from harness.classify.launcher import Launcher
from harness.classify.text import Line, clean
from harness.probe.signatures import SIGNATURES

BLOCK = 1 << 20  # bytes read at once
TAIL = 1 << 18  # bytes of the end that are read line by line
LOOK_AHEAD = 30  # lines read after something was found: a message's other lines, a program that goes on
MESSAGE_LINES = 12
MESSAGE_LENGTH = 4000
FRAMES = 12  # of a traceback, its last
KEPT = 400  # different findings of a kind
DULL = 10_000  # shapes of lines that say nothing
STREAMS = 1000  # writers that are told apart
PATIENCE = 200  # lines in the middle of a traceback that are none of its own

# One of these stands in every line that is looked for in the middle of a log; what has none is found at the end.
# They begin with capitals that are rare in logs (no C, I, N, P: NCCL INFO fills logs), so that the search is fast.
TELLING = re.compile(
    rb"E(?:rr|xc|xited|RR|XC|\d{3}| P)|T(?:raceback|he above exc|ried to|imeout \(|ERM_)|Kill|Keyboard"
    rb"|W(?:atchdog caught|ARN|\d{3})|F(?:\d{3}| P|atal|AILED|ailures:)|S(?:egmentation f|ending process)"
    rb"|A(?:bort|ssertion)|Received|Xid|Memory (?:access|cgroup)|O(?:ut [oO]f|OMKilled|utOf)|DUE TO|Bus error"
)
CHAINED = b"The above exception"
# What else may be told in the lines around a hit.
TELLING_LOW = re.compile(
    rb"rror|terminate|fallen off|oom[-_]kill|not found|No such|[Pp]ython|loss scale|exit|signal|what\(\)|memory"
    rb"|Retrying|desync|limited|enqueued|not permitted|denied|NCCL|exceeded"
)

_TRACEBACK = re.compile(r"Traceback\s*\(most recent call last\)")
# fms-hf-tuning 3.x logs its tracebacks: the rank stands before the first line alone.
_RANK_BEFORE = re.compile(r"^Rank-(\d+) \[[A-Z]+\]:")
_FRAME = re.compile(r'^\s+File "([^"]*)", line \d+, in (\S+)')
_CAUSE = "direct cause of the following exception"
_CONTEXT = "During handling of the above exception"
_RESTART = re.compile(r"attempts left; will restart worker group")
_SPAWN = re.compile(r"^-- Process (\d+) terminated with the following error")
_NAME = r"[A-Za-z_][\w.]*"
# The last line of a traceback; any class may be raised.
_RAISED = re.compile(rf"^(?P<type>{_NAME}(?:\([\w.]+\))?)(?:: ?(?P<message>.*))?$")
# A class by its name: no log level, no program's name before a colon.
_CLASS = re.compile(r"(?:^|\.)_*[A-Z]\w*[a-z]\w*(?:\([\w.]+\))?$|\.(?:error|timeout|gaierror|herror)$")
# The same outside of one: only names that are an exception's beyond doubt.
_SURELY_RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|TimeoutExpired|OutOfResources))"
    r"(?:: (?P<message>.*))?$"
)
_DOUBLED = re.compile(r"([A-Z]\w*?(?:Error|Exception))\1$")
# NCCL's chatter: never of interest, and in the middle of everything.
_CHATTER = re.compile(rb"NCCL INFO ")
# Names that the tables know, however they end.
_KNOWN = frozenset(name for row in SIGNATURES for name in row.types if "." in name)
# What begins something new, and so ends a message of several lines.
_NEW = re.compile(
    r"^(?:\s*Traceback|\[?[EWIF]\d{4} |\[[EWIF]\d* |={5,}|-{5,}$|\[?(?:WARNING|ERROR|INFO|DEBUG)\b"
    r"|(?:srun|slurmstepd|wandb):|torch\.distributed\.[\w.]+: \[(?:INFO|WARNING|ERROR)\]"
    r"|\{'|\s*\d+%\||-- Process|Failures:|terminate called|Fatal Python|Exception raised from|frame #\d|\S+:\d+:\d+ \[)"
)


@dataclass(frozen=True)
class Raised:
    """An exception, or what a library reported in the words of one."""

    type: str
    message: str
    rank: int | None
    file: str
    line: int  # where it is told for the first time
    count: int = 1
    chain: tuple[tuple[str, str, str], ...] = ()  # (type, message, link), nearest first; link: cause or context
    frames: tuple[str, ...] = ()  # names of the innermost functions
    source: str = (
        "traceback"  # line: an exception's line alone; summary: torchrun's; c10d, warning (of it), nccl, abort
    )
    went_on: bool = False  # the same writer trained on afterwards
    t: float | None = None


@dataclass(frozen=True)
class Told:
    """A line that says something by itself."""

    row: rows.LineRow
    text: str
    rank: int | None
    file: str
    line: int
    count: int = 1


@dataclass(frozen=True)
class Work:
    """A collective that timed out, as a rank's watchdog says."""

    rank: int | None
    number: int
    operation: str
    timeout_ms: int
    group: str
    file: str
    line: int
    text: str


@dataclass
class Log:
    """What is left of a log."""

    file: str
    raised: list[Raised] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    # (group, rank) of the watchdogs -> (number last enqueued, line, text)
    enqueued: dict[tuple[str, int], tuple[int, int, str]] = field(default_factory=dict)
    culprits: list[tuple[int, int, str]] = field(default_factory=list)  # (rank, line, text) of a desync report
    kernel: list[tuple[int, str]] = field(default_factory=list)
    launcher: Launcher = field(default_factory=Launcher)
    ranks: set[int] = field(default_factory=set)
    mention: tuple[int, int | None, str] | None = None  # the last: (line, rank, text)
    waited: bool = False  # for the hub, between two tries
    statuses: set[str] = field(default_factory=set)  # HTTP statuses for which it waited
    interrupted: tuple[int, str] | None = None  # a KeyboardInterrupt
    tail: list[Line] = field(default_factory=list)
    lines: int = 0


@dataclass
class _Open:
    """A traceback that is being read."""

    line: int
    frames: deque[str]
    strangers: int = 0
    rank: int | None = None  # told by its first line alone


@dataclass
class _Stream:
    """What one writer was telling last."""

    open: _Open | None = None
    link: str | None = None
    told: Raised | None = None
    message: list[str] = field(default_factory=list)
    reading: bool = False  # the message may go on
    chain: tuple[tuple[str, str, str], ...] = ()
    progress: int = 0
    culprits: bool = False


class Reader:
    """Takes the lines of interest in order.  `busy` tells whether the next lines matter whatever they hold."""

    def __init__(self, file: str, rank: int | None = None) -> None:
        self.log = Log(file)
        self._rank = rank
        self._streams: dict[tuple[int | None, str | None], _Stream] = {}
        self._ahead = 0
        self._spawned: int | None = None
        self._reported: _Stream | None = None  # whose report of several lines may go on without its prefix
        self._telling = True  # whether the line may say something by itself
        self._told = 0  # things that were told so far
        self._dull: set[bytes] = set()  # lines that say nothing, without their figures

    @property
    def busy(self) -> bool:
        return self._ahead > 0 or self.log.launcher.in_summary

    def feed(self, raw: bytes, number: int, *, telling: bool = False) -> None:
        """Read the next line of interest; `telling`: whatever it holds."""
        if _CHATTER.search(raw):
            return
        busy = self.busy
        shape = b""
        if not busy:
            shape = raw.translate(None, b"0123456789")
            if shape in self._dull:
                return
        self._ahead -= 1
        self._telling = telling or bool(TELLING.search(raw) or TELLING_LOW.search(raw))
        told = self._told
        for line in clean(raw, number):
            self._read(line)
        # A line that said nothing says nothing when it comes again with other figures.
        if not busy and not self.busy and told == self._told and len(self._dull) < DULL and len(shape) < 1000:
            self._dull.add(shape)

    def finish(self) -> Log:
        for stream in self._streams.values():
            self._close(stream)
        self.log.raised = _merged(self.log.raised)
        return self.log

    def _read(self, line: Line) -> None:
        launcher = self.log.launcher
        if line.rank is None and self._rank is not None:
            line = replace(line, rank=self._rank)
        if self._telling or launcher.in_summary:
            self._told += launcher.feed(line)
        if self._telling and _RESTART.search(line.text):
            self._restart()
        text, rank, speaker = line.text, line.rank, line.speaker
        if launcher.in_summary and launcher.summary_rank is not None:
            rank, speaker = launcher.summary_rank, "summary"
            text = text[2:] if text.startswith("  ") else text
        if rank is None and line.text.startswith("[") and (found := rows.RANK_IN_TEXT.search(text[:200])):
            rank = int(found[1])
        if rank is not None and len(self.log.ranks) < 100_000:
            self.log.ranks.add(rank)
        key = (rank, speaker)
        if key not in self._streams:
            if len(self._streams) >= STREAMS:
                key = (None, None)
            self._streams.setdefault(key, _Stream())
        stream = self._streams[key]
        reported = self._reported
        if key == (None, None) and reported is not None and reported.reading and not (stream.open or stream.reading):
            stream = reported
        self._read_of(stream, replace(line, rank=rank, text=text))

    def _read_of(self, stream: _Stream, line: Line) -> None:
        text = line.text
        if found := _SPAWN.match(text):
            self._close(stream)
            self._spawned = int(found[1])
        elif _CAUSE in text or _CONTEXT in text:
            stream.reading = False
            stream.link = "cause" if _CAUSE in text else "context"
            self._look_ahead()
        elif _TRACEBACK.search(text):
            linked = stream.link
            if linked is None:
                self._close(stream)
            said = _RANK_BEFORE.match(text)
            stream.open = _Open(line.number, deque(maxlen=FRAMES), rank=int(said[1]) if said else None)
            self._look_ahead()
        elif (stream.open is not None and self._in_traceback(stream, stream.open, line)) or (
            stream.reading and self._continues(stream, line)
        ):
            pass
        else:
            self._apart(stream, line)

    def _in_traceback(self, stream: _Stream, open_: _Open, line: Line) -> bool:
        """Whether a line belongs to the traceback that is being read."""
        text = line.text
        if not text or text[0] in " \t" or text.startswith("[Previous line repeated"):
            if found := _FRAME.match(text):
                open_.frames.append(f"{found[1]}:{found[2]}")
            self._look_ahead()
            return True
        found = _RAISED.match(text)
        if found and (_surely_raised(text) or (_CLASS.search(found["type"]) and (found[2] is not None or "." in text))):
            told = line if line.rank is not None else replace(line, rank=open_.rank)
            self._raise(stream, told, found["type"], found["message"] or "", tuple(open_.frames), "traceback")
            stream.open = None
            return True
        open_.strangers += 1
        if open_.strangers > PATIENCE:
            stream.open = None
        else:
            self._look_ahead()
        return False

    def _raise(
        self, stream: _Stream, line: Line, name: str, message: str, frames: tuple[str, ...], source: str
    ) -> None:
        name, message = _undoubled(name, message)
        chain: tuple[tuple[str, str, str], ...] = ()
        if stream.link is not None and stream.told is not None:
            behind = stream.told
            chain = ((behind.type, _text(stream.message), stream.link), *stream.chain)[:8]
            stream.told, stream.message = None, []
        else:
            self._close(stream)
        rank = line.rank
        if rank is None and self._spawned is not None:
            rank = self._spawned
        stream.link, stream.chain, stream.progress = None, chain, 0
        stream.told = Raised(name, "", rank, self.log.file, line.number, chain=chain, frames=frames, source=source)
        stream.message, stream.reading = [message], True
        if line.speaker == "summary":
            stream.told = replace(stream.told, source="summary")
        if name == "KeyboardInterrupt" and self.log.interrupted is None:
            self.log.interrupted = (line.number, line.text)
        self._look_ahead()

    def _continues(self, stream: _Stream, line: Line) -> bool:
        """Whether a line is one more of the message that is being read."""
        text = line.text
        if _NEW.match(text) or _surely_raised(text) or rows.REPORT.match(text):
            stream.reading = False
            return False
        if len(stream.message) >= MESSAGE_LINES:
            stream.reading = False
            return False
        stream.message.append(text)
        self._look_ahead()
        # A message of several lines and whatever comes after it look alike: rows are tried on both.
        return not (
            rows.GOES_ON.search(text) or (self._telling and any(row.pattern.search(text) for row in rows.LINES))
        )

    def _apart(self, stream: _Stream, line: Line) -> None:
        text = line.text
        if not text:
            return
        if self.busy and rows.GOES_ON.search(text) and not _surely_raised(text):
            stream.progress += 1
        if not self._telling and not stream.culprits:
            return
        if rows.BACK_OFF.search(text):
            self._told += 1
            self.log.waited = True
            if (status := rows.BACK_OFF_STATUS.search(text)) and len(self.log.statuses) < 20:
                self.log.statuses.add(status[1])
            return
        if found := _surely_raised(text):
            self._raise(stream, line, found["type"], found["message"] or "", (), "line")
            return
        if found := rows.REPORT.match(text):
            self._report(stream, line, found)
            return
        self._watchdog(line)
        if (
            rows.XID.search(text)
            or rows.KERNEL_OOM.search(text)
            or "oom-kill:constraint=" in text
            or rows.KERNEL_LOST_GPU.search(text)
        ):
            if len(self.log.kernel) < KEPT:
                self.log.kernel.append((line.number, text))
            self._told += 1
            return
        if stream.culprits and (found := rows.CULPRIT.match(text)):
            stream.culprits = False
            self.log.culprits.append((int(found[1]), line.number, text))
        row = next((row for row in rows.LINES if row.pattern.search(text)), None)
        if row is not None:
            self._told += 1
            stream.culprits = "caused the desync are" in text
            self._tell(Told(row, text.strip(), line.rank, self.log.file, line.number))
        elif rows.MENTION.search(text):
            self._told += 1
            self.log.mention = (line.number, line.rank, text.strip())

    def _report(self, stream: _Stream, line: Line, found: re.Match[str]) -> None:
        source = "c10d" if found["c10d"] else "nccl" if found["nccl"] else "abort"
        said = next(value for name, value in found.groupdict().items() if name.endswith("_said") and value is not None)
        if found["bnb"]:
            said = f"Error{said}"
        self._watchdog(line)
        if rows.PROGRESS_OF_RANK.search(said) and not rows.WORK.search(said):
            return
        if ended := rows.WATCHDOG_ENDED.search(said):
            said = ended[1]
        if found["c10d"] and found["c10d"] != "ProcessGroupNCCL" and found["c10d"] != "ProcessGroupGloo":
            source = "nccl"  # the store's and the sockets' own complaints, which a later try may have made good
        if found["level"] == "W":
            source = "warning"
        self._raise(stream, line, "RuntimeError", said, (), source)
        if source in ("nccl", "warning"):
            stream.reading = False  # a warning is one line
        nobody = self._streams.get((None, None))
        if nobody is not None and nobody is not stream:
            nobody.reading = False  # lines without a prefix go on with this report
        self._reported = stream

    def _watchdog(self, line: Line) -> None:
        text = line.text
        if "work: " not in text and "WorkNCCL(" not in text:
            return
        self._told += 1
        named = rows.RANK_IN_TEXT.search(text)
        rank = int(named[1]) if named else line.rank
        group = rows.GROUP_IN_TEXT.search(text)
        timed_out = rows.WORK.search(text) if "raised the following async exception" not in text else None
        if timed_out is not None and len(self.log.works) < KEPT:
            number, operation, timeout = timed_out.groups()
            work = Work(
                rank,
                int(number),
                operation,
                int(timeout),
                group[1] if group else "",
                self.log.file,
                line.number,
                text,
            )
            self.log.works.append(work)
        if rank is not None and (found := rows.PROGRESS_OF_RANK.search(text)) and len(self.log.enqueued) < 10 * KEPT:
            self.log.enqueued[(group[1] if group else "", rank)] = (int(found[1]), line.number, text)

    def _tell(self, told: Told) -> None:
        for at, before in enumerate(self.log.told):
            if (
                before.row is told.row
                and before.rank == told.rank
                and (
                    before.text == told.text
                    or sum(b.row is told.row and b.rank == told.rank for b in self.log.told) >= 3
                )
            ):
                self.log.told[at] = replace(before, count=before.count + 1)
                return
        if len(self.log.told) < KEPT:
            self.log.told.append(told)

    def _restart(self) -> None:
        """torchrun starts all ranks again: what went before ended nothing."""
        for stream in self._streams.values():
            self._close(stream)
        self._streams.clear()
        self.log.raised = [replace(each, went_on=True) for each in self.log.raised]
        self.log.told = [each for each in self.log.told if each.row.weight is rows.Weight.SCHEDULER]
        self.log.works, self.log.enqueued, self.log.culprits = [], {}, []
        self.log.launcher = Launcher()

    def _close(self, stream: _Stream) -> None:
        """What was told is complete."""
        if stream.told is not None:
            whole = replace(stream.told, message=_text(stream.message), went_on=stream.progress >= 3)
            _keep(self.log.raised, whole)
        stream.told, stream.message, stream.reading, stream.chain = None, [], False, ()

    def _look_ahead(self) -> None:
        self._ahead = LOOK_AHEAD


def _undoubled(name: str, message: str) -> tuple[str, str]:
    """Two ranks that write the same line at once double its parts: `ValueErrorValueError: : text`."""
    found = _DOUBLED.search(name) if message.startswith(": ") else None
    return (found[1], message[2:]) if found else (name, message)


def _surely_raised(text: str) -> re.Match[str] | None:
    """The line of an exception, also outside of a traceback."""
    if found := _SURELY_RAISED.match(text):
        return found
    found = _RAISED.match(text) if text[:1].isalpha() else None
    return found if found is not None and found["type"] in _KNOWN else None


def _text(message: list[str]) -> str:
    return "\n".join(message).strip()[:MESSAGE_LENGTH]


_DIGITS = re.compile(r"\d+")


def _keep(raised: list[Raised], new: Raised) -> None:
    """Add an exception; one that is told over and over is counted."""
    same = [
        at
        for at, old in enumerate(raised)
        if (old.rank, old.type, old.source) == (new.rank, new.type, new.source)
        and _DIGITS.sub("", old.message[:200]) == _DIGITS.sub("", new.message[:200])
    ]
    if len(same) >= 2:
        old = raised[same[-1]]
        raised[same[-1]] = replace(old, count=old.count + 1, went_on=new.went_on)
    elif len(raised) < KEPT:
        raised.append(new)


def _merged(raised: list[Raised]) -> list[Raised]:
    """Without what torchrun's summary repeats of a rank's own log."""
    own = {(each.rank, each.type.rpartition(".")[2], each.message[:100]) for each in raised if each.source != "summary"}
    return [
        each
        for each in raised
        if each.source != "summary" or (each.rank, each.type.rpartition(".")[2], each.message[:100]) not in own
    ]


def scan(stream: BinaryIO, file: str, rank: int | None = None) -> Log:
    """Read a log to its end.  `rank`: whose it is, where the file says so; raises OSError as the stream does."""
    reader = Reader(file, rank)
    before = 0  # lines before what is held
    held: list[bytes] = []  # the last two blocks: if they are the log's end, every line of it is read
    for block in _blocks(stream):
        held.append(block)
        if len(held) > 2:
            before = _read_block(reader, held.pop(0), before)
    rest = b"".join(held)
    end = rest.rfind(b"\n", 0, max(0, len(rest) - TAIL)) + 1
    before = _read_block(reader, rest[:end], before)
    log = reader.log
    last = rest[end:].split(b"\n")
    if not last[-1]:
        last.pop()
    for number, raw in enumerate(last, before + 1):
        reader.feed(raw, number, telling=True)
        if not _CHATTER.search(raw):
            log.tail += clean(raw, number)
    log.lines = before + len(last)
    return reader.finish()


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Blocks that end with a line's end; a line that is longer than a block is cut."""
    while block := stream.read(BLOCK):
        yield block if block.endswith(b"\n") else block + stream.readline(BLOCK)


def _read_block(reader: Reader, block: bytes, before: int) -> int:
    """Feed the lines around every hit, in order; returns the number of lines up to the block's end."""
    at, number = 0, before + 1  # start of the next line that was not fed, and its number
    while at < len(block):
        if not reader.busy:
            hit = _next_hit(block, at)
            if hit is None:
                return number - 1 + block.count(b"\n", at)
            start = block.rfind(b"\n", 0, hit) + 1
            if block.startswith(CHAINED, hit):  # an exception that was never raised in a frame is one line before
                for _ in range(4):
                    start = block.rfind(b"\n", at, max(at, start - 1)) + 1 or at
            number += block.count(b"\n", at, start)
            at = start
        end = block.find(b"\n", at)
        if end < 0:  # a line that was cut: its rest comes with the next block, under the same number
            reader.feed(block[at:], number)
            break
        reader.feed(block[at:end], number)
        at, number = end + 1, number + 1
    return number - 1


def _next_hit(block: bytes, at: int) -> int | None:
    found = TELLING.search(block, at)
    return found.start() if found else None
