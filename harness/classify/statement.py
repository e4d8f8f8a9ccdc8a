"""Findings and facts put into the words of a verdict: which rank, where it was, what is set aside."""

import re
import signal
from collections.abc import Sequence
from typing import Any

from harness.classify import memory, outside
from harness.classify.collectives import Lag
from harness.classify.evidence import JobEvidence
from harness.classify.findings import Finding, Tier
from harness.journal import RankJournal
from harness.record import Evidence, Kind, Secondary, Verdict

SECONDARY_LISTED = 20
HALVED = re.compile(r"No executable batch size found")
TRACEBACK = re.compile(r"(?:Original )?Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
# A rank that waited in vain.
WAITED = re.compile(r"[Tt]imed? ?out|watchdog got stuck|Heartbeat monitor")


def state_finding(
    evidence: JobEvidence, finding: Finding, findings: Sequence[Finding] = (), lag: Lag | None = None, more: str = ""
) -> Verdict:
    rank = _rank_of(evidence, finding)
    transient, facts = finding.transient, []
    place = _place_of(finding)
    who = f"rank {rank if rank is not None else finding.rank}" if rank is not None or finding.rank is not None else ""
    message = finding.message
    if finding.kind is Kind.GPU_OOM and not memory.ASKED.search(message):
        message = next(
            (f.message for f in findings if f.kind is Kind.GPU_OOM and memory.ASKED.search(f.message)), message
        )
    told = memory.told(message) if finding.kind is Kind.GPU_OOM else None
    if told and HALVED.search(finding.message):
        told += " at first; no batch size fits"
    if told:
        reason = f"{who} {told}{place}" if who else f"{told}{place}"
    else:
        reason = f"{who}{place}: {finding.text}" if who or place else finding.text
    if finding.status is not None:
        reason = f"HTTP status {finding.status}; {reason}"
    if finding.tier is Tier.CONSEQUENCE:
        # It names the rank that tells, not the one that ended first.
        rank = None
        alone = outside.only_failure(evidence)
        if alone is not None and alone == finding.rank:
            rank, transient = alone, None
            reason += "; no other rank failed: its peers ended before it, after fewer steps"
        elif mute := mute_rank(evidence, findings):
            transient = None  # it left by itself: the network has lost nobody
            reason += f"; rank {mute[0]} ended with exit code {mute[1]} and told nothing"
    if finding.kind is Kind.NCCL and finding.tier is Tier.COLLECTIVE and finding.transient is None and lag is not None:
        rank, reason, facts = lag.rank, f"{lag.text}; {finding.text}", list(lag.facts)
        transient = False if lag.mismatch else None
    elif finding.tier is Tier.COLLECTIVE and finding.transient is not True and not _alone_told(finding, findings):
        rank = None  # all wait for each other: who tells of it is not who caused it
    return Verdict(
        kind=finding.kind,
        reason=one_line(reason) + more,
        transient=transient,
        rank=rank,
        step=finding.step,
        phase=finding.phase,
        part=finding.part,
        evidence=[Evidence(file=finding.file, line=finding.line, text=one_line(finding.counted)), *facts],
        hint=memory.hint_of(message) if finding.kind is Kind.GPU_OOM else None,
    )


def _alone_told(finding: Finding, findings: Sequence[Finding]) -> bool:
    ranks = {each.rank for each in findings if each.tier is Tier.COLLECTIVE}
    return len(ranks) == 1 and not WAITED.search(finding.message)


def mute_rank(evidence: JobEvidence, findings: Sequence[Finding]) -> tuple[int, int] | None:
    """(rank, exit code) of the first rank that failed by itself without a word."""
    told = {finding.rank for finding in findings}
    return next(((r, code) for r, code in sorted(own_exits(evidence).items()) if code > 0 and r not in told), None)


def own_exits(evidence: JobEvidence) -> dict[int, int]:
    """Exit codes by rank, as the launcher names them and as the ranks have written themselves."""
    written = {rank.rank: end.get("exit_code") for rank in evidence.ranks if (end := rank.end) is not None}
    return dict(evidence.rank_exits) | {rank: code for rank, code in written.items() if isinstance(code, int)}


def _rank_of(evidence: JobEvidence, finding: Finding) -> int | None:
    """The finding's rank; where its writer is not named, the one rank that the launcher saw fail by itself."""
    if finding.rank is not None or evidence.supervised:
        return finding.rank
    if finding.tier in (Tier.CAUSE, Tier.UNKNOWN):
        failed = sorted(rank for rank, code in evidence.rank_exits.items() if code > 0)
        if len(failed) == 1:
            return failed[0]
    return None


def _place_of(finding: Finding) -> str:
    if not finding.journalled:
        return ""
    place = f", step {finding.step}" if isinstance(finding.step, int) else f", {finding.phase or 'start'}"
    return place + (f", {finding.part}" if finding.part else "")


def with_secondary(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """The failures that the verdict's own explains."""
    told = {(fact.file, fact.line) for fact in verdict.evidence}
    rest = [f for f in findings if (f.file, f.line) not in told]
    listed = [
        Secondary(kind=f.kind, rank=f.rank, file=f.file, line=f.line, text=one_line(f.counted))
        for f in rest[:SECONDARY_LISTED]
    ]
    return verdict.model_copy(update={"secondary": listed}) if listed else verdict


def one_line(text: str, limit: int = 400) -> str:
    """The text in one line; of a traceback within it (a loader worker's, say) what it ends with."""
    line = " ".join(TRACEBACK.sub("", text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def state_at(
    evidence: JobEvidence,
    rank: int | None,
    kind: Kind,
    reason: str,
    transient: bool | None = None,
    facts: Sequence[Evidence] = (),
) -> Verdict:
    journal = next((r for r in evidence.ranks if r.rank == rank), None)
    steps = journal.of("step") if journal else []
    phase: Any = (journal.last("phase") or {}).get("name") if journal else None
    return Verdict(
        kind=kind,
        reason=one_line(reason),
        transient=transient,
        rank=rank,
        step=steps[-1]["step"] + 1 if steps else None,
        phase=phase,
        evidence=[*facts, *place_facts(evidence)],
    )


def end_fact(evidence: JobEvidence) -> Evidence:
    end = evidence.end or {}
    if not evidence.supervised:
        return Evidence(file="(exit code)", text=f"exit code {end.get('exit_code')}")
    return Evidence(file="end.json", text=f"why {end.get('why')}, exit code {end.get('exit_code')}")


def place_facts(evidence: JobEvidence) -> list[Evidence]:
    """The supervisor's last word, and the last line of every log that has one."""
    found = [end_fact(evidence)] if evidence.end else []
    for file, text in evidence.tails.items():
        line = next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), None)
        if line is not None and (file.endswith(("stderr.log", "launcher.log")) or not evidence.supervised):
            found.append(Evidence(file=file, text=one_line(line)))
    return found


def last_line(evidence: JobEvidence) -> str:
    """The last line that a rank wrote to stderr, else the launcher."""
    lines = [fact.text for fact in place_facts(evidence) if fact.file not in ("end.json", "(exit code)")]
    return next(iter(sorted(lines, key=lambda line: "error" not in line.lower())), "it said nothing")


def steps_of(rank: RankJournal) -> int:
    end = rank.end or {}
    return max(len(rank.of("step")), int(end.get("steps") or 0))


def exit_code_of(evidence: JobEvidence) -> int | None:
    code = evidence.end.get("exit_code") if evidence.end else None
    return code if isinstance(code, int) else None


def exits_told(evidence: JobEvidence) -> list[tuple[int | None, int]]:
    """(rank, exit code) by what the launcher says, then the command's own; lowest rank first."""
    exits: list[tuple[int | None, int]] = sorted(evidence.rank_exits.items())
    code = exit_code_of(evidence)
    if evidence.world_size == 1 and code is not None:
        code = outside.as_signal(code) if code > 128 else code
        return [(0, code if code <= 0 else _signal_told(evidence) or code)]
    nameless = [death for log in evidence.logs for death in log.launcher.deaths if death.rank is None]
    exits += [(None, death.code) for death in nameless]
    if evidence.world_size is None and code is not None:
        exits.append((None, outside.as_signal(code)))
    return exits


def _signal_told(evidence: JobEvidence) -> int | None:
    """The signal that ended the only rank, negative, where the target has started it and says so; a rank that has
    written its end was ended by none."""
    if any(rank.end is not None for rank in evidence.ranks):
        return None
    deaths = (death for log in evidence.logs if log.file.endswith("launcher.log") for death in log.launcher.deaths)
    return next((death.code for death in deaths if death.code < 0 and death.rank in (None, 0)), None)


def launcher_signal(evidence: JobEvidence) -> signal.Signals | None:
    """The signal that ended the process which had started the ranks."""
    code = exit_code_of(evidence)
    if (evidence.world_size or 0) > 1 and code is not None and code < 0 and -code in set(signal.Signals):
        return signal.Signals(-code)
    return None


def killed_rank(evidence: JobEvidence) -> tuple[int | None] | None:
    """A process of the job that SIGKILL ended: its rank, where it is known."""
    ranks = [rank for rank, code in exits_told(evidence) if code == -signal.SIGKILL]
    if ranks:
        return (ranks[0],)
    return (None,) if launcher_signal(evidence) == signal.SIGKILL else None


def least_far(evidence: JobEvidence) -> tuple[int | None, str]:
    """The rank that came least far, None where several did, and where it was: `, step 12, steady`."""
    if not evidence.ranks:
        return None, " before any rank had started"
    fewest = min(len(rank.of("step")) for rank in evidence.ranks)
    least = [rank for rank in evidence.ranks if len(rank.of("step")) == fewest]
    rank = min(least, key=lambda each: each.rank)
    phase = (rank.last("phase") or {}).get("name", "start")
    steps = rank.of("step")
    where = f", step {steps[-1]['step'] + 1}, {phase}" if steps else f", {phase}"
    return (rank.rank if len(least) == 1 else None), where
