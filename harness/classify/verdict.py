"""From evidence to a verdict: the supervisor's knowledge, then the ranks' exceptions, the first cause in time.

Nothing decisive is `unknown`, never a guess."""

import re
import signal
from collections.abc import Sequence
from typing import Any

from harness.classify.evidence import JobEvidence
from harness.classify.findings import Finding, Tier, find, find_unfinished
from harness.journal import Event, RankJournal
from harness.record import Evidence, Kind, Verdict

SIZE = r"([\d.]+ (?:bytes|[KMGT]i?B))"
# torch's CUDACachingAllocator, 2.1 on ("capacty" in 2.1); before that the figures stand in brackets.
ASKED = re.compile(rf"Tried to allocate {SIZE}")
FREE = re.compile(
    rf"total capac\w*ty of {SIZE} of which {SIZE} is free|{SIZE} total capacity;.*?{SIZE} free;", re.DOTALL
)
# SIGABRT last: a rank whose watchdog aborts it is often a victim.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP, signal.SIGABRT)


def judge(evidence: JobEvidence) -> Verdict:
    """The verdict on an ended job."""
    findings = find(evidence)
    return (
        _judge_success(evidence)
        or _judge_supervisor(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.CAUSE, Tier.UNKNOWN))
        or _judge_silent_death(evidence)
        or _judge_findings(evidence, findings, (Tier.COLLECTIVE, Tier.CONSEQUENCE))
        or _judge_exit(evidence)
    )


def _judge_success(evidence: JobEvidence) -> Verdict | None:
    end = evidence.end
    if end is None or end.get("why") != "exit" or end.get("exit_code") != 0:
        return None
    diverged = _judge_loss(evidence)
    if diverged is not None:
        return diverged
    unfinished = find_unfinished(evidence)
    if unfinished is not None:
        return _verdict(unfinished, more="; the program went on without training and ended with exit code 0")
    if evidence.expects_steps and not any(_steps(rank) for rank in evidence.ranks):
        said = "the program ended with exit code 0 and no optimizer step was seen"
        return Verdict(kind=Kind.NO_TRAINING, reason=said, transient=False, evidence=[_end(evidence)])
    return Verdict(kind=Kind.NONE, reason="", evidence=[_end(evidence)])


def _judge_loss(evidence: JobEvidence) -> Verdict | None:
    """A loss that is no number to the end: the job was fast and taught nothing."""
    for rank in evidence.ranks:
        steps = rank.of("step")
        if not steps or not isinstance(steps[-1].get("loss"), str):  # the journal writes NaN and Infinity as text
            continue
        first = next(n for n in range(len(steps), 0, -1) if n == 1 or not isinstance(steps[n - 2].get("loss"), str))
        step = steps[first - 1]["step"]
        said = f"rank {rank.rank}, step {step}: the loss is {steps[-1]['loss']} from here to the end"
        fact = Evidence(file=f"rank-{rank.rank}/events.jsonl", text=f"step {step}: loss {steps[first - 1]['loss']}")
        return Verdict(
            kind=Kind.NAN_LOSS, reason=said, transient=False, rank=rank.rank, step=step, phase="steady", evidence=[fact]
        )
    return None


def _judge_supervisor(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """What the supervisor did or was told.  A cause from before it began to end the job says more than its reason."""
    end = evidence.end
    if end is None:
        said = "the supervisor left no last word: it was killed, or the machine went down"
        return Verdict(kind=Kind.KILLED, reason=said, evidence=_place(evidence)) if not findings else None
    why = end.get("why")
    if why == "start_failed":
        said = f"the command could not be started: {end.get('error')}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=[_end(evidence)])
    killed = _killed_ranks(evidence)
    if (end.get("oom_kill") or 0) > 0 and killed:
        said = f"rank {killed[0]} was killed: the control group counts {end['oom_kill']} kills for want of memory"
        return _at(evidence, killed[0], Kind.HOST_OOM, said, transient=False)
    if (end.get("oom_kill") or 0) > 0 and _launcher_signal(evidence) == signal.SIGKILL:
        said = f"the launcher was killed: the control group counts {end['oom_kill']} kills for want of memory"
        return _at(evidence, None, Kind.HOST_OOM, said, transient=False)
    if why not in ("time_limit", "signal", "parent_died", "supervisor_died"):
        return None
    if any(finding.tier <= Tier.UNKNOWN and _before_the_end(evidence, finding) for finding in findings):
        return None
    rank, where = _least_far(evidence)
    if why == "time_limit":
        limit = evidence.time_limit_s
        said = f"time limit of {limit:g} s reached" if limit is not None else "time limit reached"
        return _at(evidence, rank, Kind.TIMEOUT, said + where)
    told = {
        "signal": f"ended from outside by {end.get('signal')}",
        "parent_died": "ended because the harness died",
        "supervisor_died": str(end.get("error") or "the supervisor was killed"),
    }
    transient = {"SIGINT": False, "SIGTERM": True}.get(str(end.get("signal")))
    return _at(evidence, rank, Kind.KILLED, told[why] + where, transient=transient)


def _before_the_end(evidence: JobEvidence, finding: Finding) -> bool:
    return evidence.ending_t is None or finding.error["t"] < evidence.ending_t


def _judge_findings(evidence: JobEvidence, findings: Sequence[Finding], tiers: tuple[Tier, Tier]) -> Verdict | None:
    """The first exception of these tiers; one that came while the job was being ended only for want of others."""
    among = [finding for finding in findings if finding.tier in tiers]
    first = next((finding for finding in among if _before_the_end(evidence, finding)), among[0] if among else None)
    return _verdict(first) if first else None


def _judge_silent_death(evidence: JobEvidence) -> Verdict | None:
    """A rank that a signal ended says nothing; its peers tell of lost connections.  The launcher names the signal."""
    code = evidence.end.get("exit_code") if evidence.end else None
    exits = dict(evidence.rank_exits)
    if evidence.world_size == 1 and isinstance(code, int):
        exits = {0: code}
    for number in (signal.SIGKILL, *CRASHES):
        ranks = sorted(rank for rank, code in exits.items() if code == -number)
        if ranks and number == signal.SIGKILL:
            said = f"rank {ranks[0]} was ended by SIGKILL; nothing shows that memory ran out"
            return _at(evidence, ranks[0], Kind.KILLED, said)
        if ranks:
            return _at(evidence, ranks[0], Kind.CRASH, f"rank {ranks[0]} died of {number.name}")
    if exits.get(0) == -signal.SIGTERM and evidence.world_size == 1:
        return _at(evidence, 0, Kind.KILLED, "rank 0 was ended by SIGTERM", transient=True)
    launcher = _launcher_signal(evidence)
    if launcher is not None:
        return _at(evidence, None, Kind.KILLED, f"the launcher of the ranks was ended by {launcher.name}")
    return None


def _launcher_signal(evidence: JobEvidence) -> signal.Signals | None:
    """The signal that ended the process which had started the ranks."""
    code = evidence.end.get("exit_code") if evidence.end else None
    if evidence.world_size > 1 and isinstance(code, int) and code < 0 and -code in set(signal.Signals):
        return signal.Signals(-code)
    return None


def _judge_exit(evidence: JobEvidence) -> Verdict:
    """Nothing but exit codes: 2 is what argparse and python itself say of a wrong command line."""
    code = evidence.end.get("exit_code") if evidence.end else None
    ends = [end.get("exit_code") for rank in evidence.ranks if (end := rank.last("end")) is not None]
    if 2 in (code, *evidence.rank_exits.values(), *ends):
        said = f"exit code 2 (usage): {_last_line(evidence)}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=_place(evidence))
    silent = sorted(rank for rank, rank_code in evidence.rank_exits.items() if rank_code > 0)
    if silent:
        said = f"rank {silent[0]} ended with exit code {evidence.rank_exits[silent[0]]} and no exception was seen"
        return _at(evidence, silent[0], Kind.UNKNOWN, said)
    return _at(evidence, None, Kind.UNKNOWN, f"exit code {code} and no exception was seen")


def _verdict(finding: Finding, more: str = "") -> Verdict:
    error = finding.error
    place = _step_and_part(error)
    told = _memory_figures(str(error.get("message", ""))) if finding.kind is Kind.GPU_OOM else None
    reason = f"rank {finding.rank} {told}{place}" if told else f"rank {finding.rank}{place}: {_told(error)}"
    return Verdict(
        kind=finding.kind,
        reason=_one_line(reason) + more,
        transient=finding.row.transient if finding.row else None,
        # A consequence names the rank that tells, not the one that ended first.
        rank=None if finding.tier is Tier.CONSEQUENCE else finding.rank,
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


def _step_and_part(error: Event) -> str:
    place = f", step {error['step']}" if isinstance(error.get("step"), int) else f", {error.get('phase') or 'start'}"
    return place + (f", {error['part']}" if error.get("part") else "")


def _told(error: Event) -> str:
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


def _least_far(evidence: JobEvidence) -> tuple[int | None, str]:
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
    phase: Any = (journal.last("phase") or {}).get("name") if journal else None
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
    """The supervisor's last word, and the last line of every log that has one."""
    found = [_end(evidence)] if evidence.end else []
    for file, text in evidence.tails.items():
        line = next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), None)
        if line is not None and file.endswith(("stderr.log", "launcher.log")):
            found.append(Evidence(file=file, text=_one_line(line)))
    return found


def _last_line(evidence: JobEvidence) -> str:
    """The last line that a rank wrote to stderr, else the launcher."""
    lines = [fact.text for fact in _place(evidence) if fact.file.endswith(".log")]
    return next(iter(sorted(lines, key=lambda line: "error" not in line.lower())), "it said nothing")
