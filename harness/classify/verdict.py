"""From evidence to a verdict: outside knowledge, then the ranks' own errors, the first cause in time.

Nothing decisive is `unknown`, never a guess."""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from harness.classify import memory, outside
from harness.classify.collectives import Lag, find_lag
from harness.classify.evidence import JobEvidence
from harness.classify.findings import Finding, Tier, find
from harness.classify.lines import BACK_OFF, FINISHED, GOES_ON
from harness.classify.statement import (
    end_fact,
    exit_code_of,
    exits_told,
    killed_rank,
    last_line,
    launcher_signal,
    least_far,
    mute_rank,
    one_line,
    own_exits,
    place_facts,
    state_at,
    state_finding,
    with_secondary,
)
from harness.classify.success import judge_logged_loss, judge_success
from harness.probe.signatures import match
from harness.record import Evidence, Kind, Verdict

# SIGABRT last: a rank whose watchdog aborts it is often a victim.
CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP, signal.SIGABRT)
ENDED_FROM_OUTSIDE = {"SIGTERM": True, "SIGINT": False}  # whether a retry may pass
TIMED_OUT = 124  # coreutils timeout(1)
NOT_FOUND = (126, 127)  # a shell: not executable, not found
# A DataLoader's worker (torch 1.x-2.13), as far as the kernel may have done it.
WORKER_DIED = re.compile(r"is killed by signal: Killed|DataLoader worker .* exited unexpectedly")
WATCHDOG = re.compile(r"[Ww]atchdog (?:caught collective operation timeout|got stuck)|Heartbeat monitor timed out")


def judge(evidence: JobEvidence) -> Verdict:
    """The verdict on an ended job."""
    findings = find(evidence)
    lag = find_lag(evidence)
    verdict = (
        judge_success(evidence)
        or _judge_outside(evidence, findings, lag)
        or _judge_supervisor(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.CAUSE, Tier.UNKNOWN), lag)
        or _judge_deadline(evidence, findings, lag)
        or _judge_asked(evidence)
        or _judge_silent_death(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.HANDLED,), lag)
        or _judge_mute_rank(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.COLLECTIVE, Tier.CONSEQUENCE), lag)
        or _judge_exit(evidence, findings)
    )
    return verdict if verdict.kind is Kind.NONE else with_secondary(verdict, findings)


def _judge_outside(evidence: JobEvidence, findings: Sequence[Finding], lag: Lag | None) -> Verdict | None:
    """What the kernel, the cgroup's counter and the scheduler say."""
    killed = killed_rank(evidence)
    kill = outside.memory_kill(evidence)
    plain = [finding for finding in findings if finding.tier is Tier.CAUSE]
    worker = next((f for f in findings if WORKER_DIED.search(f.message)), None)
    if kill is not None and (
        killed is not None or worker is not None or (kill.certain and not plain) or _only_lost_peers(findings)
    ):
        rank = kill.rank if kill.rank is not None else killed[0] if killed else worker.rank if worker else None
        who = "rank" if kill.rank is not None or killed is not None else "a DataLoader worker of rank"
        said = kill.text if rank is None else f"{who} {rank} was killed: {kill.text}"
        if rank is None and killed is not None and evidence.supervised:
            said = f"the launcher was killed: {kill.text}"
        return state_at(evidence, rank, Kind.HOST_OOM, said, transient=kill.transient, facts=kill.facts)
    fault = outside.hardware_fault(evidence)
    if fault is not None and not any(f.kind not in (Kind.CUDA_ERROR, Kind.KILLED) for f in plain):
        return state_at(evidence, fault.rank, Kind.CUDA_ERROR, fault.text, transient=fault.transient, facts=fault.facts)
    first = next((finding for finding in findings if finding.tier is Tier.OUTSIDE), None)
    if first is None:
        return None
    if first.kind is Kind.TIMEOUT:
        cause = next((f for f in findings if f.tier in (Tier.CAUSE, Tier.UNKNOWN) and _before(f, first)), None)
        if cause is not None:
            return state_finding(evidence, cause)
        if any(_is_watchdog(f) and _before(f, first) for f in findings):
            return _judge_findings(evidence, findings, (Tier.COLLECTIVE,), lag)
        waiting = _judge_back_off(evidence, f"; {first.text}")
        if waiting is not None:
            return waiting
    if first.kind is Kind.HOST_OOM and first.rank is None:
        first = replace(first, rank=outside.task_out_of_memory(evidence))
    return state_finding(evidence, first)


def _only_lost_peers(findings: Sequence[Finding]) -> bool:
    """A process is gone without a word of its own, and its launcher did not come to name the signal."""
    return bool(findings) and all(finding.tier is Tier.CONSEQUENCE for finding in findings)


def _is_watchdog(finding: Finding) -> bool:
    """A collective's own time-out: a program that waits for others prints it before somebody ends it."""
    return finding.tier is Tier.COLLECTIVE and WATCHDOG.search(finding.message) is not None


def _before(finding: Finding, other: Finding) -> bool:
    return finding.file == other.file and (finding.line or 0) < (other.line or 0)


def _judge_supervisor(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """What the supervisor did or was told.  A cause from before it began to end the job says more than its reason."""
    end = evidence.end
    if end is None:
        if not evidence.supervised or findings:
            return None
        said = "the supervisor left no last word: it was killed, or the machine went down"
        return Verdict(kind=Kind.KILLED, reason=said, evidence=place_facts(evidence))
    why = end.get("why")
    if why == "start_failed":
        said = f"the command could not be started: {end.get('error')}"
        return Verdict(kind=Kind.USER_ERROR, reason=one_line(said), transient=False, evidence=[end_fact(evidence)])
    if why not in ("time_limit", "hang", "signal", "parent_died", "supervisor_died"):
        return None
    if any(finding.tier <= Tier.UNKNOWN and _before_the_end(evidence, finding) for finding in findings):
        return None
    rank, where = least_far(evidence)
    if why == "time_limit":
        limit = evidence.time_limit_s
        said = f"time limit of {limit:g} s reached" if limit is not None else "time limit reached"
        return _judge_back_off(evidence, f"; {said}") or state_at(evidence, rank, Kind.TIMEOUT, said + where)
    if why == "hang":
        return _judge_hang(evidence)
    told = {
        "signal": f"ended from outside by {end.get('signal')}",
        "parent_died": "ended because the harness died",
        "supervisor_died": str(end.get("error") or "the supervisor was killed"),
    }
    transient = ENDED_FROM_OUTSIDE.get(str(end.get("signal")))
    rank = rank if evidence.world_size == 1 else None  # none of several is the reason
    return state_at(evidence, rank, Kind.KILLED, told[why] + where, transient=transient)


def _judge_hang(evidence: JobEvidence) -> Verdict:
    """No rank got on.  Ranks that stand in a collective wait for the one that does not, or for the network."""
    hang = (evidence.end or {}).get("hang")
    hang = hang if isinstance(hang, dict) else {}
    ranks = {int(number): told for number, told in (hang.get("ranks") or {}).items()}
    waiting = sorted(rank for rank, told in ranks.items() if told.get("in_collective"))
    lagging = hang.get("lagging_rank")
    said = f"no rank got on for {hang['silent_s']:.0f} s" if "silent_s" in hang else "no rank got on"
    if back_off := _judge_back_off(evidence, f"; {said}"):
        return back_off
    if lagging is not None:
        told = ranks.get(lagging, {})
        said += f"; rank {lagging} lags" + (f" after step {told['step']}" if told.get("step") is not None else "")
        said += f", at {told['at']}" if told.get("at") else ""
    elif at := next((told["at"] for _, told in sorted(ranks.items()) if told.get("at")), None):
        said += f"; rank {min(ranks)} at {at}" if len(ranks) == 1 else f"; one of them at {at}"
    if waiting:
        said += f"; {_listed(waiting)} in a collective operation"
    kind = Kind.NCCL if waiting else Kind.TIMEOUT
    rank = lagging if lagging is not None else min(ranks) if len(ranks) == 1 else None
    stood = [each for each in sorted(ranks, key=lambda each: (each != lagging, each)) if ranks[each].get("at")]
    facts = [Evidence(file=f"rank-{each}/stacks.txt", text=f"at {ranks[each]['at']}") for each in stood[:3]]
    return state_at(evidence, rank, kind, said, facts=facts)


def _listed(ranks: Sequence[int]) -> str:
    """`rank 0 waits`, `ranks 0, 2 wait`; of many, the first."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    return f"ranks {', '.join(map(str, ranks[:4]))}{' and others' if len(ranks) > 4 else ''} wait"


def _before_the_end(evidence: JobEvidence, finding: Finding) -> bool:
    """What a log tells has no time: known reasons count; what nobody knows may be the ending itself."""
    if evidence.ending_t is None:
        return True
    return finding.t < evidence.ending_t if finding.t is not None else finding.tier <= Tier.CAUSE


def _judge_findings(
    evidence: JobEvidence, findings: Sequence[Finding], tiers: tuple[Tier, ...], lag: Lag | None
) -> Verdict | None:
    """The first error of these tiers; one that came while the job was being ended only for want of others."""
    among = [finding for finding in findings if finding.tier in tiers]
    if not among:
        return None
    asked = outside.asked_to_end(evidence)
    if asked is not None and asked.by_launcher and tiers[0] is Tier.CAUSE:
        among = [f for f in among if f.file != asked.file or (f.line or 0) < asked.line]  # what comes of being ended
    if tiers[0] is Tier.HANDLED and _finished(evidence):
        return None
    first = next((finding for finding in among if _before_the_end(evidence, finding)), among[0] if among else None)
    return state_finding(evidence, first, findings, lag) if first else None


def _finished(evidence: JobEvidence) -> bool:
    """A log of a Trainer that went through, where no exit code says otherwise."""
    code = exit_code_of(evidence)
    return code is None and any(FINISHED.search(line.text) for log in evidence.logs for line in log.tail)


def _judge_asked(evidence: JobEvidence) -> Verdict | None:
    """A launcher was told to end, or the user pressed Ctrl-C."""
    asked = outside.asked_to_end(evidence)
    if asked is None or (evidence.supervised and not asked.by_launcher):
        return None
    name = signal.Signals(asked.number).name if asked.number in set(signal.Signals) else f"signal {asked.number}"
    transient = ENDED_FROM_OUTSIDE.get(name)
    fact = Evidence(file=asked.file, line=asked.line, text=one_line(asked.text))
    return Verdict(kind=Kind.KILLED, reason=f"ended from outside by {name}", transient=transient, evidence=[fact])


def _judge_silent_death(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """A rank that a signal ended says nothing; its peers tell of lost connections.  The launcher names the signal."""
    exits = exits_told(evidence)
    aborted = {f.rank for f in findings if f.tier is Tier.COLLECTIVE or (f.tier is Tier.CONSEQUENCE and f.source != "")}
    for number in (signal.SIGKILL, signal.SIGBUS, *CRASHES):
        ranks = [rank for rank, code in exits if code == -number]
        if number == signal.SIGABRT:
            # A watchdog that gives up aborts its process: that rank has told why.
            ranks = [rank for rank in ranks if rank not in aborted and not (rank is None and aborted)]
            if aborted and not evidence.supervised and None in aborted:
                ranks = []
        if not ranks:
            continue
        rank = ranks[0]
        who = f"rank {rank}" if rank is not None else "the program"
        facts = outside.death_lines(evidence, -number)
        if number == signal.SIGKILL:
            said = f"{who} was ended by SIGKILL; nothing shows that memory ran out"
            return state_at(evidence, rank, Kind.KILLED, said, facts=facts)
        if number == signal.SIGBUS:
            said = f"{who} died of SIGBUS: shared memory (/dev/shm) that could not be backed, or a file that was cut"
            return state_at(evidence, rank, Kind.HOST_OOM, said, facts=facts)
        transient = False if number == signal.SIGILL else None
        return state_at(
            evidence, rank, Kind.CRASH, f"{who} died of {signal.Signals(number).name}", transient=transient, facts=facts
        )
    return _judge_ended_rank(evidence, findings)


def _judge_ended_rank(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """SIGTERM or SIGINT ended a process.  Launchers send them, too; ours, torchrun, names those it sent them to."""
    alone = evidence.world_size in (None, 1)
    decides = alone or (evidence.supervised and mute_rank(evidence, findings) is None)
    for name, transient in ENDED_FROM_OUTSIDE.items():
        number = signal.Signals[name]
        ended = [rank for rank, code in exits_told(evidence) if code == -number]
        ranks = [rank for rank in ended if (rank in (None, 0) if alone else rank is not None)]
        if ranks and decides:
            rank = 0 if evidence.world_size == 1 else None if alone else ranks[0]
            who = f"rank {rank}" if rank is not None else "the program"
            said = f"{who} was ended by {name}"
            facts = outside.death_lines(evidence, -number)
            return state_at(evidence, rank, Kind.KILLED, said, transient=transient, facts=facts)
    launcher = launcher_signal(evidence)
    if launcher is not None:
        return state_at(evidence, None, Kind.KILLED, f"the launcher of the ranks was ended by {launcher.name}")
    return None


def _judge_mute_rank(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """A rank whose probe would have told of an exception left by itself (os._exit, sys.exit); its peers lost it.

    Whether they come to say so before the launcher ends them is a matter of milliseconds, and changes nothing."""
    mute = mute_rank(evidence, findings) if evidence.supervised and _only_lost_peers(findings) else None
    if mute is None or mute[0] not in {rank.rank for rank in evidence.ranks}:
        return None
    return _judge_exit(evidence, findings)


def _judge_deadline(evidence: JobEvidence, findings: Sequence[Finding], lag: Lag | None) -> Verdict | None:
    """`timeout` ended the program: what it was waiting for at its end says why."""
    if evidence.supervised or exit_code_of(evidence) != TIMED_OUT:
        return None
    if any(_is_watchdog(finding) for finding in findings):
        return _judge_findings(evidence, findings, (Tier.COLLECTIVE,), lag)
    return _judge_back_off(evidence, "; ended by a time limit (exit code 124)") or state_at(
        evidence, None, Kind.TIMEOUT, "ended by a time limit (exit code 124 of timeout)"
    )


def _judge_back_off(evidence: JobEvidence, more: str) -> Verdict | None:
    """A client that waits for the network between two tries looks like a hang."""
    for log in evidence.logs:
        said = [line for line in log.tail if any(map(str.isalnum, line.text))]
        last = next((line for line in reversed(said) if not line.text.startswith(("slurmstepd", "srun"))), None)
        if last is None or not log.waited or not BACK_OFF.search(last.text):
            continue
        status = next(iter(sorted(log.statuses)), None)
        told = f"waiting to try again after HTTP status {status}" if status else "waiting to try again"
        fact = Evidence(file=log.file, line=last.number, text=one_line(last.text))
        return Verdict(kind=Kind.NETWORK, reason=one_line(told + more), transient=True, rank=last.rank, evidence=[fact])
    return None


def _judge_exit(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict:
    """Nothing but exit codes: 2 is what argparse and python itself say of a wrong command line."""
    code, codes = exit_code_of(evidence), own_exits(evidence)
    if 2 in (code, *codes.values()):
        said = f"exit code 2 (usage): {last_line(evidence)}"
        return Verdict(kind=Kind.USER_ERROR, reason=one_line(said), transient=False, evidence=place_facts(evidence))
    if code in NOT_FOUND:
        said = f"exit code {code} (no such command): {last_line(evidence)}"
        return Verdict(kind=Kind.USER_ERROR, reason=one_line(said), transient=False, evidence=place_facts(evidence))
    mentioned = _judge_mention(evidence) or (judge_logged_loss(evidence) if code != 0 else None)
    if mentioned is not None:
        return mentioned
    told = {finding.rank for finding in findings}
    silent = sorted(rank for rank, each in codes.items() if each > 0 and rank not in told)
    if silent:
        said = f"rank {silent[0]} ended with exit code {codes[silent[0]]} and no exception was seen"
        said += "; its peers lost it" if findings else ""
        return state_at(evidence, silent[0] if len(silent) == 1 else None, Kind.UNKNOWN, said)
    if evidence.end is None:
        return state_at(evidence, None, Kind.UNKNOWN, "nothing in the log says that or why it failed")
    return state_at(evidence, None, Kind.UNKNOWN, f"exit code {code} and no exception was seen")


def _judge_mention(evidence: JobEvidence) -> Verdict | None:
    """A program that swallows its exception and prints a word of it as the last it says."""
    candidates = []
    for log in evidence.logs:
        if log.mention is None or exit_code_of(evidence) in (None, 0):
            continue
        line, rank, text = log.mention
        after = [each for each in log.tail if each.number > line and GOES_ON.search(each.text)]
        quoted = re.search(r"[{\"'`].*out of memory|[{\"'`].*(?:NCCL error|No space left|allocate memory)", text)
        row = match("RuntimeError", [], text)
        if log.lines - line > 200 or len(after) > 1 or quoted or row is None:
            continue
        fact = Evidence(file=log.file, line=line, text=one_line(text))
        said = memory.told(text) if row.kind == Kind.GPU_OOM else None
        reason = f"the log's last word of an error: {said or text}"
        kind = Kind(row.kind)
        verdict = Verdict(kind=kind, reason=one_line(reason), transient=row.transient, rank=rank, evidence=[fact])
        candidates.append((row.consequence, kind is Kind.NCCL, verdict))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None  # of equals, the lowest rank
