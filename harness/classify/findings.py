"""What went wrong by the ranks' own words, from journals and logs, each with the row it matches and how far it can be a
cause."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from harness.classify import memory
from harness.classify.evidence import JobEvidence
from harness.classify.lines import FULL_CARD, Weight
from harness.classify.log import Log, Raised, Told
from harness.journal import Event, RankJournal
from harness.probe.signatures import COLLECTIVES, Signature, match, row_of
from harness.record import Kind
from harness.units import parse_bytes

# What ends a rank because somebody asked it to: no reason of its own.
ASKED_TO_END = {"KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException"}
# What launchers raise over the exceptions of those they had started: their words are read as facts, or repeat others'.
WRAPPERS = re.compile(
    r"^(?:SystemExit|GeneratorExit|(?:.*\.)?(?:ChildFailedError|SignalException|ProcessRaisedException"
    r"|ProcessExitedException|CalledProcessError)|ray\.exceptions\.Ray\w+(?:\(\w+\))?|ray\.train\..*)$"
)
# Where the first call into CUDA happens: without memory for that, somebody else holds it.
CONTEXT_CREATION = re.compile(r":(?:set_device|_cuda_setDevice|_lazy_init|_cuda_init|init)$")
RAW_CUDA = re.compile(r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation")
NOT_INITIALIZED = re.compile(r"(?:CUDNN|CUBLAS)_STATUS_NOT_INITIALIZED")
DEVICE_ASSERT = re.compile(r"device-side assert triggered")
STATUS = re.compile(
    r"\b([45]\d\d)\b(?= (?:Client|Server|Too Many|Not Found|Unauthorized|Forbidden|Service|Bad|Gateway|Internal))"
)
PYTHON = ("traceback", "line", "summary")  # sources that are exceptions of Python
UNRAISED = ("c10d", "warning", "nccl", "abort")  # sources that are no exception of Python


class Tier(IntEnum):
    """The lowest tier that was seen holds the cause; within one, the earliest, then the lowest rank."""

    OUTSIDE = 0  # the kernel's or the scheduler's word
    CAUSE = 1  # a known reason that is not about a peer
    UNKNOWN = 2  # an exception nobody knows: still the rank's own
    HANDLED = 3  # told, and the writer trained on: a cause only where peers tell of nothing but each other
    COLLECTIVE = 4  # a collective or the meeting before it failed or waited in vain: often another rank had ended
    CONSEQUENCE = 5  # tells of another rank's end
    CAUGHT = 6  # in the log of a rank that the probe saw go on, or that was ended by others: no cause


@dataclass(frozen=True)
class Finding:
    """One reason, and where it was read."""

    rank: int | None
    kind: Kind
    tier: Tier
    transient: bool | None
    type: str  # of the exception; "" for a line that says it by itself
    message: str
    file: str
    line: int | None
    t: float | None = None  # seconds since the epoch
    step: int | None = None
    phase: str | None = None
    part: str | None = None
    journalled: bool = False  # the probe saw it, and knows where
    source: str = ""
    status: str | None = None  # of an HTTP answer behind it
    count: int = 1

    @property
    def text(self) -> str:
        name = self.type.removeprefix("builtins.")
        return f"{name}: {self.message}".rstrip(": ") if name else self.message

    @property
    def counted(self) -> str:
        return self.text if self.count == 1 else f"({self.count} times) {self.text}"

    @property
    def order(self) -> tuple[float, ...]:
        """By tier, time, rank.  An interleaving of ranks is no time: lines count within one writer only."""
        none = float("inf")
        return (
            self.tier,
            self.t if self.t is not None else none,
            # An error of the link says more than the time-outs that follow it everywhere.
            self.tier is Tier.COLLECTIVE and self.transient is None,
            none if self.rank is None else self.rank,
            not self.journalled,
            self.line or 0,
        )


def find(evidence: JobEvidence) -> list[Finding]:
    """What each rank told, the likeliest cause first."""
    found = [finding for rank in evidence.ranks if (finding := of_rank(rank)) is not None]
    followed = [finding for rank in evidence.ranks for finding in _of_followed(rank)]
    known = {finding.rank for finding in (*found, *followed)}
    for log in evidence.logs:
        found += _of_log(log, known, followed)
    found += followed
    found += [finding for each in evidence.raised if (finding := _of_raised(each, found)) is not None]
    found = [_caught(evidence, finding) for finding in _explained(evidence, found)]
    return sorted(found, key=lambda finding: finding.order)


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
            return _of_event(rank, left[1], f"rank-{rank.rank}/events.jsonl", left[0])
    return None


def find_in(error: Event) -> Finding | None:
    """What an exception tells that belongs to no rank; None where it is none (Ctrl-C)."""
    finding = _of_event(RankJournal(0, (), None), {"t": 0.0, **error}, "", None)
    return None if finding is None else replace(finding, rank=None, t=None)


# --- the probe's journals


def of_rank(rank: RankJournal) -> Finding | None:
    """A rank's error record; without one (killed by its launcher, os._exit), the last exception that left training."""
    if rank.error is not None:
        return _of_event(rank, rank.error, f"rank-{rank.rank}/error.json", None)
    return _of_process(rank.processes()[-1])


def _of_process(rank: RankJournal) -> Finding | None:
    if rank.end is not None and rank.end.get("exit_code") == 0:
        return None
    left = _last_exception(rank, ("train", "main"))
    return _of_event(rank, left[1], f"rank-{rank.rank}/events.jsonl", left[0]) if left else None


def _of_followed(rank: RankJournal) -> Iterator[Finding]:
    """What ended processes that another has followed as this rank: the job went on after it."""
    for process in rank.processes()[:-1]:
        finding = _of_process(process)
        if finding is not None:
            yield replace(finding, tier=Tier.HANDLED)


def _last_exception(rank: RankJournal, where: tuple[str, ...]) -> tuple[int, Event] | None:
    """The last exception seen there, with its line; None when training went on after it: the program had caught it."""
    last = None
    for line, event in rank.events:
        if event["e"] == "exception" and event.get("where") in where and event.get("type") not in ASKED_TO_END:
            last = (line, event)
        elif event["e"] in ("segment", "step") and last is not None and event["t"] > last[1]["t"]:
            last = None
    return last


def _of_event(rank: RankJournal, error: Event, file: str, line: int | None) -> Finding | None:
    name = str(error.get("type")).removeprefix("builtins.")
    if not isinstance(error.get("t"), int | float) or name in ASKED_TO_END:
        return None
    if name == "SystemExit" and not error.get("chain"):
        return None  # an exit code, not a reason
    chain = [
        (str(link.get("type")), str(link.get("message", "")), str(link.get("link")))
        for link in error.get("chain") or []
    ]
    bases = [str(base) for base in error.get("bases") or []]
    row, depth = row_of(name, bases, str(error.get("message", "")), chain)
    seen = error if depth == 0 else _as_seen(rank, error, chain[depth - 1])
    finding = _finding(
        rank.rank,
        str(seen.get("type", "")),
        str(seen.get("message", "")),
        row,
        file,
        line,
        transient=_transient(row, [(name, str(error.get("message", ""))), *((t, m) for t, m, _ in chain)], ()),
    )
    return replace(
        finding,
        status=_status(row, [str(error.get("message", "")), *(message for _, message, _ in chain)]),
        t=float(seen["t"]) if isinstance(seen.get("t"), int | float) else None,
        step=seen.get("step"),
        phase=seen.get("phase"),
        part=seen.get("part"),
        journalled=True,
        **_first_asked(rank, finding),
    )


def _first_asked(rank: RankJournal, finding: Finding) -> dict[str, Any]:
    """A program that halves its batch until none fits says how much it asked for only where it first failed."""
    if finding.kind is not Kind.GPU_OOM or memory.ASKED.search(finding.message):
        return {}
    first = next(
        (
            str(event.get("message"))
            for event in rank.of("exception")
            if memory.ASKED.search(str(event.get("message", "")))
        ),
        None,
    )
    return {} if first is None else {"message": f"{finding.message} First: {first}"}


def _as_seen(rank: RankJournal, error: Event, link: tuple[str, str, str]) -> Event:
    """The event of an exception that stands in another's chain: it knows the step and the part of it."""
    for event in reversed(rank.of("exception")):
        if event.get("type") == link[0] and event.get("message") == link[1]:
            return event
    return {**error, "type": link[0], "message": link[1]}


# --- logs


def _of_log(log: Log, known: set[int | None], followed: Sequence[Finding]) -> Iterator[Finding]:
    """What a log tells; of ranks whose last exception the probe knows, only what Python does not see.

    `followed`: what ended processes that others have followed; told again here, it is no other reason."""
    for raised in log.raised:
        unseen = raised.source in UNRAISED
        if (raised.rank is None or raised.rank not in known or unseen) and not WRAPPERS.match(raised.type):
            finding = _of_raised(raised, followed)
            if finding is not None:
                yield finding
    for told in log.told:
        yield _of_line(told)


def _of_line(told: Told) -> Finding:
    tiers = {
        Weight.SCHEDULER: Tier.OUTSIDE,
        Weight.CAUSE: Tier.CAUSE,
        Weight.OWN_END: Tier.HANDLED,
        Weight.COLLECTIVE: Tier.COLLECTIVE,
    }
    kind = Kind(told.row.kind)
    return Finding(
        told.rank,
        kind,
        tiers[told.row.weight],
        told.row.transient,
        "",
        told.text,
        told.file,
        told.line,
        source="row",
        count=told.count,
    )


def _of_raised(raised: Raised, others: Iterable[Finding]) -> Finding | None:
    if raised.type in ASKED_TO_END or WRAPPERS.match(raised.type):
        return None
    if any(
        _bare(other.type) == _bare(raised.type) and (not raised.message or raised.message == other.message)
        for other in others
    ):
        return None  # told in two ways
    row, depth = row_of(raised.type, [], raised.message, raised.chain)
    if raised.source in UNRAISED and row is None:
        return None  # chatter
    if raised.source == "warning" and row is not None and not row.consequence:
        return None  # a later try may have made it good
    name, message = (raised.type, raised.message) if depth == 0 else raised.chain[depth - 1][:2]
    links = [(raised.type, raised.message), *((t, m) for t, m, _ in raised.chain)]
    finding = _finding(
        raised.rank,
        "" if raised.source in UNRAISED else name,
        message,
        row,
        raised.file,
        raised.line,
        transient=_transient(row, links, raised.frames),
    )
    status = _status(row, [message for _, message in links])
    finding = replace(finding, t=raised.t, source=raised.source, status=status, count=raised.count)
    # A line without a traceback may be a warning of something optional that is not there.
    alone = raised.source == "line" and finding.kind in (Kind.USER_ERROR, Kind.UNKNOWN)
    if (raised.went_on or alone) and finding.tier in (Tier.CAUSE, Tier.UNKNOWN):
        return replace(finding, tier=Tier.HANDLED)
    if (
        raised.source == "nccl"
        and finding.tier is Tier.CAUSE
        and finding.kind not in (Kind.GPU_OOM, Kind.HOST_OOM, Kind.CUDA_ERROR)
    ):
        return None  # what a warning says of files, say
    return finding


def _finding(
    rank: int | None,
    name: str,
    message: str,
    row: Signature | None,
    file: str,
    line: int | None,
    *,
    transient: bool | None,
) -> Finding:
    kind = Kind(row.kind) if row else Kind.UNKNOWN
    if row is not None and row.consequence:
        tier = Tier.CONSEQUENCE
    elif kind is Kind.UNKNOWN:
        tier = Tier.UNKNOWN
    else:
        tier = Tier.COLLECTIVE if kind in COLLECTIVES else Tier.CAUSE
    return Finding(rank, kind, tier, transient, name, message, file, line)


def _transient(row: Signature | None, links: Sequence[tuple[str, str]], frames: Sequence[str]) -> bool | None:
    if row is None:
        return None
    if row.kind == Kind.NETWORK:
        return _network_transient(links)
    if row.kind == Kind.GPU_OOM and row.transient is False:
        text = links[0][1]
        if memory.others_hold_it(memory.read_figures(text)):
            return None
        if RAW_CUDA.search(text) and any(CONTEXT_CREATION.search(frame) for frame in frames):
            return None
    return row.transient


def _status(row: Signature | None, messages: Sequence[str]) -> str | None:
    """The HTTP status of the deepest cause that has one."""
    if row is None or row.kind != Kind.NETWORK:
        return None
    return next((found[1] for message in reversed(messages) if (found := STATUS.search(message)) is not None), None)


def _network_transient(links: Sequence[tuple[str, str]]) -> bool | None:
    """The deepest cause that decides: a status, no answer, or offline mode."""
    for name, message in reversed(links):
        row = match(name, [], message)
        if row is not None and row.kind == Kind.NETWORK and row.transient is not None:
            return row.transient
    return None


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def _caught(evidence: JobEvidence, finding: Finding) -> Finding:
    """What Python raised and the probe of that rank did not see leave the program counts only if the rank failed."""
    if finding.journalled or finding.source not in PYTHON or finding.tier is Tier.CAUGHT:
        return finding
    rank = next((rank for rank in evidence.ranks if rank.rank == finding.rank and rank.last("start")), None)
    if rank is None:
        return finding
    codes = [(rank.end or {}).get("exit_code"), evidence.rank_exits.get(rank.rank)]
    if evidence.world_size == 1:
        codes.append((evidence.end or {}).get("exit_code"))
    failed = any(isinstance(code, int) and code > 0 for code in codes)
    return finding if failed else replace(finding, tier=Tier.CAUGHT)


# --- what only several facts together say


def _explained(evidence: JobEvidence, found: list[Finding]) -> list[Finding]:
    """Exceptions whose text does not decide, decided by what else the logs hold."""
    asserted = next((each for each in found if each.source == "row" and "Assertion" in each.message), None)
    nan_asserted = any(each.kind is Kind.NAN_LOSS and each.source == "row" for each in found)
    full = _card_is_full(evidence)
    out = []
    for each in found:
        if (
            asserted is not None
            and nan_asserted
            and each.kind is Kind.CUDA_ERROR
            and (DEVICE_ASSERT.search(each.message) or each.source == "row")
        ):
            each = replace(each, kind=Kind.NAN_LOSS, transient=False)
        if each.kind is Kind.CUDA_ERROR and NOT_INITIALIZED.search(each.message) and full:
            each = replace(each, kind=Kind.GPU_OOM, transient=False)
        if each.kind is Kind.NETWORK and each.transient is None:
            statuses = {status for log in evidence.logs for status in log.statuses}
            if statuses:
                each = replace(each, transient=any(status == "429" or status.startswith("5") for status in statuses))
        out.append(each)
    return out


def _card_is_full(evidence: JobEvidence) -> bool:
    for log in evidence.logs:
        for line in log.tail:
            found = FULL_CARD.search(line.text)
            if found is None:
                continue
            if found["free"] and parse_bytes(found["free"]) > 0.02 * parse_bytes(found["total"]):
                continue
            if found["used"] and int(found["used"]) < 0.97 * int(found["of"]):
                continue
            return True
    return False
