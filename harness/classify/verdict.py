"""From evidence to a verdict: the supervisor's knowledge, then the ranks' exceptions, the first cause in time.

Nothing decisive is `unknown`, never a guess."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.classify.evidence import JobEvidence
from harness.classify.signatures import Signature, match
from harness.journal import RankJournal
from harness.record import Evidence, Kind, Verdict

SIZE = r"([\d.]+ (?:bytes|[KMGT]i?B))"
# torch's CUDACachingAllocator, 2.1 on ("capacty" in 2.1); before that the figures stand in brackets.
ASKED = re.compile(rf"Tried to allocate {SIZE}")
FREE = re.compile(
    rf"total capac\w*ty of {SIZE} of which {SIZE} is free|{SIZE} total capacity;.*?{SIZE} free;", re.DOTALL
)
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGBUS, signal.SIGTRAP, signal.SIGSYS}


@dataclass(frozen=True)
class Finding:
    """An exception that a rank ended with, and the row it matched."""

    rank: int
    error: dict[str, Any]
    file: str
    line: int | None
    row: Signature | None

    @property
    def tier(self) -> int:
        """0: a cause; 1: a cause nobody knows; 2: a consequence of another rank's end."""
        if self.row is None:
            return 1
        return 2 if self.row.consequence else 0


def judge(evidence: JobEvidence) -> Verdict:
    """The verdict on an ended job."""
    findings = sorted(_findings(evidence), key=lambda f: (f.tier, f.error["t"], f.rank))
    return (
        _judge_success(evidence)
        or _judge_supervisor(evidence, findings)
        or _judge_causes(evidence, [f for f in findings if f.tier == 0])
        or _judge_silent_death(evidence)
        or _judge_findings(evidence, findings)
        or _unknown(evidence)
    )


def _judge_success(evidence: JobEvidence) -> Verdict | None:
    end = evidence.end
    if end is None or end.get("why") != "exit" or end.get("exit_code") != 0:
        return None
    if evidence.expects_steps and not any(_steps(rank) for rank in evidence.ranks):
        said = "the program ended with exit code 0 and no optimizer step was seen"
        return Verdict(kind=Kind.NO_TRAINING, reason=said, transient=False, evidence=[_end(evidence)])
    return Verdict(kind=Kind.NONE, reason="", evidence=[_end(evidence)])


def _judge_supervisor(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """What the supervisor did or was told.  An exception from before it ended the job says more than its deadline."""
    end = evidence.end
    if end is None:
        said = "the supervisor left no last word: it was killed, or the machine went down"
        return Verdict(kind=Kind.KILLED, reason=said, evidence=_place(evidence)) if not findings else None
    why = end.get("why")
    if why == "start_failed":
        said = f"the command could not be started: {end.get('error')}"
        return Verdict(kind=Kind.USER_ERROR, reason=said, transient=False, evidence=[_end(evidence)])
    if (end.get("oom_kill") or 0) > 0 and _killed_ranks(evidence):
        rank = _killed_ranks(evidence)[0]
        said = f"rank {rank} was killed: the control group counts {end['oom_kill']} kills for want of memory"
        return _at(evidence, rank, Kind.HOST_OOM, said, transient=False)
    if why not in ("time_limit", "signal", "parent_died", "supervisor_died"):
        return None
    if why == "time_limit" and any(_before_the_end(evidence, finding) for finding in findings):
        return None
    furthest, where = _furthest(evidence)
    if why == "time_limit":
        limit = evidence.time_limit_s
        said = f"time limit of {limit:g} s reached" if limit is not None else "time limit reached"
        return _at(evidence, furthest, Kind.TIMEOUT, said + where)
    told = {
        "signal": f"ended from outside by {end.get('signal')}",
        "parent_died": "ended because the harness died",
        "supervisor_died": "the supervisor was killed",
    }
    transient = {"SIGINT": False, "SIGTERM": True}.get(str(end.get("signal")))
    return _at(evidence, furthest, Kind.KILLED, told[why] + where, transient=transient)


def _before_the_end(evidence: JobEvidence, finding: Finding) -> bool:
    return evidence.ending_t is None or finding.error["t"] < evidence.ending_t


def _judge_causes(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    causes = [f for f in findings if _before_the_end(evidence, f)] or list(findings)
    return _verdict(causes[0]) if causes else None


def _judge_silent_death(evidence: JobEvidence) -> Verdict | None:
    """A rank that a signal ended says nothing; its peers tell of lost connections.  The launcher names the signal."""
    exits = {rank: code for rank, code in evidence.rank_exits.items() if code < 0 and code != -signal.SIGTERM}
    code = evidence.end.get("exit_code") if evidence.end else None
    if evidence.world_size == 1 and isinstance(code, int) and code < 0:
        exits = {0: code}
    if not exits:
        return None
    rank = min(exits)
    try:
        name = signal.Signals(-exits[rank])
    except ValueError:
        return None
    if name in CRASHES:
        return _at(evidence, rank, Kind.CRASH, f"rank {rank} died of {name.name}")
    said = f"rank {rank} was ended by {name.name}"
    if name == signal.SIGKILL:
        said += "; nothing shows that memory ran out"
    return _at(evidence, rank, Kind.KILLED, said)


def _judge_findings(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """Exceptions nobody knows, then consequences alone: a peer was lost and nothing says why."""
    if not findings:
        return None
    first = findings[0]
    return _verdict(first, rank=None if first.tier == 2 else first.rank)


def _unknown(evidence: JobEvidence) -> Verdict:
    code = evidence.end.get("exit_code") if evidence.end else None
    last = next((line for text in evidence.tails.values() for line in reversed(text.splitlines()) if line.strip()), "")
    if code == 2:
        said = f"exit code 2 (usage): {_last_line(evidence) or last}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=_place(evidence))
    said = f"exit code {code} and no exception was seen"
    return Verdict(kind=Kind.UNKNOWN, reason=said, evidence=_place(evidence))


def _findings(evidence: JobEvidence) -> list[Finding]:
    """A rank's error record; without one (killed by its launcher, os._exit), the last exception that left training."""
    findings = []
    for rank in evidence.ranks:
        error, file, line = rank.error, f"rank-{rank.rank}/error.json", None
        if error is None and not _ended_well(rank):
            seen = [(n, e) for n, e in rank.events if e["e"] == "exception" and e.get("where") in ("train", "main")]
            if seen and not _went_on(rank, seen[-1][1]):
                line, error = seen[-1]
                file = f"rank-{rank.rank}/events.jsonl"
        if error is None or not isinstance(error.get("t"), int | float):
            continue
        if error.get("type") in ("KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException"):
            continue
        if error.get("type") == "SystemExit" and not error.get("chain"):
            continue  # an exit code, not a reason
        findings.append(Finding(rank.rank, error, file, line, _match(error)))
    return findings


def _match(error: dict[str, Any]) -> Signature | None:
    """The row of the exception, or of the nearest cause that has one when its own type is not telling."""
    row = match(str(error.get("type")), list(error.get("bases") or []), str(error.get("message", "")))
    if row is not None and row.kind is not Kind.UNKNOWN and row.kind is not Kind.USER_ERROR:
        return row
    for cause in error.get("chain") or []:
        deeper = match(str(cause.get("type")), [], str(cause.get("message", "")))
        if deeper is not None and deeper.kind not in (Kind.USER_ERROR, Kind.UNKNOWN):
            return deeper
    return row if row is None or row.kind is not Kind.UNKNOWN else None


def _ended_well(rank: RankJournal) -> bool:
    end = rank.last("end")
    return end is not None and end.get("exit_code") == 0


def _went_on(rank: RankJournal, exception: dict[str, Any]) -> bool:
    """Whether steps came after an exception: the program had caught it."""
    return any(step["t"] > exception["t"] for step in rank.of("step"))


def _verdict(finding: Finding, rank: int | None = -1) -> Verdict:
    error = finding.error
    kind = finding.row.kind if finding.row else Kind.UNKNOWN
    place = _step_and_part(error)
    told = _memory_figures(str(error.get("message", ""))) if kind is Kind.GPU_OOM else None
    reason = f"rank {finding.rank} {told}{place}" if told else f"rank {finding.rank}{place}: {_told(error)}"
    return Verdict(
        kind=kind,
        reason=_one_line(reason),
        transient=finding.row.transient if finding.row else None,
        rank=finding.rank if rank == -1 else rank,
        step=error.get("step"),
        phase=error.get("phase"),
        part=error.get("part"),
        evidence=[Evidence(file=finding.file, line=finding.line, text=_one_line(_told(error)))],
    )


def _memory_figures(message: str) -> str | None:
    """`asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free`, as far as the allocator said."""
    asked = ASKED.search(message)
    if asked is None:
        return None
    told = f"asked for {asked[1]}"
    if free := FREE.search(message):
        total, left = (free[1], free[2]) if free[1] else (free[3], free[4])
        told += f", {left} of {total} free"
    return told


def _step_and_part(error: dict[str, Any]) -> str:
    place = f", step {error['step']}" if isinstance(error.get("step"), int) else f", {error.get('phase') or 'start'}"
    return place + (f", {error['part']}" if error.get("part") else "")


def _told(error: dict[str, Any]) -> str:
    name = str(error.get("type", "")).removeprefix("builtins.")
    return f"{name}: {error.get('message', '')}".rstrip(": ")


def _one_line(text: str, limit: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _steps(rank: RankJournal) -> int:
    end = rank.last("end") or {}
    return max(len(rank.of("step")), int(end.get("steps") or 0))


def _killed_ranks(evidence: JobEvidence) -> list[int]:
    code = evidence.end.get("exit_code") if evidence.end else None
    if evidence.world_size == 1 and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return [0]
    return sorted(rank for rank, code in evidence.rank_exits.items() if code == -signal.SIGKILL)


def _furthest(evidence: JobEvidence) -> tuple[int | None, str]:
    """The rank that came least far and where it was: `, step 12, steady`."""
    if not evidence.ranks:
        return None, " before any rank had started"
    rank = min(evidence.ranks, key=lambda r: (len(r.of("step")), r.rank))
    phase = (rank.last("phase") or {}).get("name", "start")
    steps = rank.of("step")
    return rank.rank, f", step {steps[-1]['step'] + 1}, {phase}" if steps else f", {phase}"


def _at(evidence: JobEvidence, rank: int | None, kind: Kind, reason: str, transient: bool | None = None) -> Verdict:
    journal = next((r for r in evidence.ranks if r.rank == rank), None)
    steps = journal.of("step") if journal else []
    phase = (journal.last("phase") or {}).get("name") if journal else None
    return Verdict(
        kind=kind,
        reason=_one_line(reason),
        transient=transient,
        rank=rank,
        step=steps[-1]["step"] + 1 if steps else None,
        phase=phase,
        evidence=_place(evidence),
    )


def _end(evidence: JobEvidence) -> Evidence:
    end = evidence.end or {}
    return Evidence(file="end.json", text=f"why {end.get('why')}, exit code {end.get('exit_code')}")


def _place(evidence: JobEvidence) -> list[Evidence]:
    found = [_end(evidence)] if evidence.end else []
    for file, text in evidence.tails.items():
        lines = [line for line in text.splitlines() if line.strip()]
        if lines and file.endswith(("stderr.log", "launcher.log")):
            found.append(Evidence(file=file, text=_one_line(lines[-1])))
    return found


def _last_line(evidence: JobEvidence) -> str:
    for file, text in evidence.tails.items():
        lines = [line for line in text.splitlines() if line.strip()]
        if lines and file.endswith("stderr.log"):
            return lines[-1]
    return ""
