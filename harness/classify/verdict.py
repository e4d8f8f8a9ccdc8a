"""From evidence to a verdict: outside knowledge, then the ranks' own errors, the first cause in time.

Nothing decisive is `unknown`, never a guess."""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.classify import memory, outside
from harness.classify.collectives import Lag, find_lag
from harness.classify.evidence import JobEvidence
from harness.classify.findings import Finding, Tier, find, find_unfinished, of_rank
from harness.classify.lines import BACK_OFF, FINISHED, GOES_ON, GRAD_NORM, LOSS
from harness.journal import RankJournal
from harness.metrics import did_it_train
from harness.probe.signatures import match
from harness.record import Evidence, Kind, Secondary, Verdict

# SIGABRT last: a rank whose watchdog aborts it is often a victim.
CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP, signal.SIGABRT)
ENDED_FROM_OUTSIDE = {"SIGTERM": True, "SIGINT": False}  # whether a retry may pass
TIMED_OUT = 124  # coreutils timeout(1)
NOT_FOUND = (126, 127)  # a shell: not executable, not found
SECONDARY_LISTED = 20
HALVED = re.compile(r"No executable batch size found")
# A DataLoader's worker (torch 1.x-2.13), as far as the kernel may have done it.
TRACEBACK = re.compile(r"(?:Original )?Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
WORKER_DIED = re.compile(r"is killed by signal: Killed|DataLoader worker .* exited unexpectedly")
# A rank that waited in vain.
WAITED = re.compile(r"[Tt]imed? ?out|watchdog got stuck|Heartbeat monitor")
WATCHDOG = re.compile(r"[Ww]atchdog (?:caught collective operation timeout|got stuck)|Heartbeat monitor timed out")


def judge(evidence: JobEvidence) -> Verdict:
    """The verdict on an ended job."""
    findings = find(evidence)
    lag = find_lag(evidence)
    verdict = (
        _judge_success(evidence)
        or _judge_outside(evidence, findings, lag)
        or _judge_supervisor(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.CAUSE, Tier.UNKNOWN), lag)
        or _judge_deadline(evidence, findings, lag)
        or _judge_asked(evidence)
        or _judge_silent_death(evidence, findings)
        or _judge_findings(evidence, findings, (Tier.HANDLED,), lag)
        or _judge_findings(evidence, findings, (Tier.COLLECTIVE, Tier.CONSEQUENCE), lag)
        or _judge_exit(evidence)
    )
    return verdict if verdict.kind is Kind.NONE else _with_secondary(verdict, findings)


def _judge_success(evidence: JobEvidence) -> Verdict | None:
    end = evidence.end
    if end is None or end.get("why") != "exit" or end.get("exit_code") != 0:
        return None
    diverged = _judge_training(evidence, [Kind.NAN_LOSS]) or _judge_logged_loss(evidence)
    if diverged is not None:
        return diverged
    unfinished = find_unfinished(evidence)
    if unfinished is not None:
        return _verdict(evidence, unfinished, more="; the program went on without training and ended with exit code 0")
    failed = _judge_failed_rank(evidence)
    if failed is not None:
        return failed
    if evidence.expects_steps and not any(_steps(rank) for rank in evidence.ranks):
        said = "the program ended with exit code 0 and no optimizer step was seen"
        return Verdict(kind=Kind.NO_TRAINING, reason=said, transient=False, evidence=[_end(evidence)])
    taught_nothing = _judge_training(evidence, [Kind.NO_TRAINING]) if evidence.expects_steps else None
    if taught_nothing is not None:
        return taught_nothing
    return Verdict(kind=Kind.NONE, reason="", evidence=[_end(evidence)])


def _judge_failed_rank(evidence: JobEvidence) -> Verdict | None:
    """A rank that failed under a launcher or a shell that does not pass exit codes on."""
    farthest = max((_steps(rank) for rank in evidence.ranks), default=0)
    for rank in evidence.ranks:
        steps, wanted = _steps(rank), (rank.last("segment") or {}).get("max_steps")
        end = _end_of(rank)
        code = None if end is None else end.get("exit_code")
        if isinstance(code, int) and code != 0:
            ended = f"ended with exit code {code}"
        elif end is None and isinstance(wanted, int) and steps < min(farthest, wanted):
            ended = f"stopped without a word after step {steps}, and another took {farthest}"
        else:
            continue
        finding, zero = of_rank(rank), "the command ended with exit code 0 all the same"
        if finding is not None:
            return _verdict(evidence, finding, more=f"; the rank {ended}, and {zero}")
        return _at(evidence, rank.rank, Kind.UNKNOWN, f"rank {rank.rank} {ended}; {zero}")
    return None


def _end_of(rank: RankJournal) -> dict[str, Any] | None:
    """The end of the process that was this rank last: an elastic launcher may have started it anew."""
    last = next((event for _, event in reversed(rank.events) if event["e"] in ("start", "end")), None)
    return last if last is not None and last["e"] == "end" else None


def _judge_training(evidence: JobEvidence, kinds: Sequence[Kind]) -> Verdict | None:
    """What speaks against it that a job which ended well has trained, as far as it is of these kinds."""
    finding = did_it_train(evidence.ranks)
    if finding is None or finding.kind not in kinds:
        return None
    fact = Evidence(file=f"rank-{finding.rank}/events.jsonl", text=finding.reason)
    return Verdict(
        kind=finding.kind,
        reason=finding.reason,
        transient=False,
        rank=finding.rank,
        step=finding.step,
        phase="steady",
        evidence=[fact, _end(evidence)],
    )


def _judge_logged_loss(evidence: JobEvidence) -> Verdict | None:
    """The same by what a Trainer logs, where no probe saw the steps.  One NaN norm may be a skipped step of fp16."""
    if any(rank.of("step") for rank in evidence.ranks):
        return None
    for log in evidence.logs:
        metrics = [line for line in log.tail if LOSS.search(line.text) or GRAD_NORM.search(line.text)]
        bad = 0
        for line in reversed(metrics):
            loss, norm = LOSS.search(line.text), GRAD_NORM.search(line.text)
            lost = loss is not None and not _is_number(loss[2])
            if not lost and not (norm is not None and not _is_number(norm[2])):
                break
            bad += 1
        if bad and (bad == len(metrics) or bad >= 3):
            first = metrics[-bad]
            said = f"the last {bad} logged losses or gradient norms are no numbers: {first.text.strip()}"
            fact = Evidence(file=log.file, line=first.number, text=_one_line(first.text))
            return Verdict(
                kind=Kind.NAN_LOSS, reason=_one_line(said), transient=False, rank=first.rank, evidence=[fact]
            )
    return None


def _is_number(text: str) -> bool:
    return text.lower().lstrip("-") not in ("nan", "inf", "infinity")


def _judge_outside(evidence: JobEvidence, findings: Sequence[Finding], lag: Lag | None) -> Verdict | None:
    """What the kernel, the cgroup's counter and the scheduler say."""
    killed = _killed(evidence)
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
        return _at(evidence, rank, Kind.HOST_OOM, said, transient=kill.transient, facts=kill.facts)
    fault = outside.hardware_fault(evidence)
    if fault is not None and not any(f.kind not in (Kind.CUDA_ERROR, Kind.KILLED) for f in plain):
        return _at(evidence, fault.rank, Kind.CUDA_ERROR, fault.text, transient=fault.transient, facts=fault.facts)
    first = next((finding for finding in findings if finding.tier is Tier.OUTSIDE), None)
    if first is None:
        return None
    if first.kind is Kind.TIMEOUT:
        cause = next((f for f in findings if f.tier in (Tier.CAUSE, Tier.UNKNOWN) and _before(f, first)), None)
        if cause is not None:
            return _verdict(evidence, cause)
        if any(_is_watchdog(f) and _before(f, first) for f in findings):
            return _judge_findings(evidence, findings, (Tier.COLLECTIVE,), lag)
        waiting = _judge_back_off(evidence, f"; {first.text}")
        if waiting is not None:
            return waiting
    if first.kind is Kind.HOST_OOM and first.rank is None:
        first = replace(first, rank=outside.task_out_of_memory(evidence))
    return _verdict(evidence, first)


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
        return Verdict(kind=Kind.KILLED, reason=said, evidence=_place(evidence))
    why = end.get("why")
    if why == "start_failed":
        said = f"the command could not be started: {end.get('error')}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=[_end(evidence)])
    if why not in ("time_limit", "hang", "signal", "parent_died", "supervisor_died"):
        return None
    if any(finding.tier <= Tier.UNKNOWN and _before_the_end(evidence, finding) for finding in findings):
        return None
    rank, where = _least_far(evidence)
    if why == "time_limit":
        limit = evidence.time_limit_s
        said = f"time limit of {limit:g} s reached" if limit is not None else "time limit reached"
        return _judge_back_off(evidence, f"; {said}") or _at(evidence, rank, Kind.TIMEOUT, said + where)
    if why == "hang":
        return _judge_hang(evidence)
    told = {
        "signal": f"ended from outside by {end.get('signal')}",
        "parent_died": "ended because the harness died",
        "supervisor_died": str(end.get("error") or "the supervisor was killed"),
    }
    transient = ENDED_FROM_OUTSIDE.get(str(end.get("signal")))
    rank = rank if evidence.world_size == 1 else None  # none of several is the reason
    return _at(evidence, rank, Kind.KILLED, told[why] + where, transient=transient)


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
    return _at(evidence, rank, kind, said, facts=facts)


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
    return _verdict(evidence, first, findings, lag) if first else None


def _finished(evidence: JobEvidence) -> bool:
    """A log of a Trainer that went through, where no exit code says otherwise."""
    code = _exit_code(evidence)
    return code is None and any(FINISHED.search(line.text) for log in evidence.logs for line in log.tail)


def _judge_asked(evidence: JobEvidence) -> Verdict | None:
    """A launcher was told to end, or the user pressed Ctrl-C."""
    asked = outside.asked_to_end(evidence)
    if asked is None or (evidence.supervised and not asked.by_launcher):
        return None
    name = signal.Signals(asked.number).name if asked.number in set(signal.Signals) else f"signal {asked.number}"
    transient = ENDED_FROM_OUTSIDE.get(name)
    fact = Evidence(file=asked.file, line=asked.line, text=_one_line(asked.text))
    return Verdict(kind=Kind.KILLED, reason=f"ended from outside by {name}", transient=transient, evidence=[fact])


def _judge_silent_death(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """A rank that a signal ended says nothing; its peers tell of lost connections.  The launcher names the signal."""
    exits = _exits(evidence)
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
            return _at(evidence, rank, Kind.KILLED, said, facts=facts)
        if number == signal.SIGBUS:
            said = f"{who} died of SIGBUS: shared memory (/dev/shm) that could not be backed, or a file that was cut"
            return _at(evidence, rank, Kind.HOST_OOM, said, facts=facts)
        transient = False if number == signal.SIGILL else None
        return _at(
            evidence, rank, Kind.CRASH, f"{who} died of {signal.Signals(number).name}", transient=transient, facts=facts
        )
    return _judge_ended_rank(evidence, findings)


def _judge_ended_rank(evidence: JobEvidence, findings: Sequence[Finding]) -> Verdict | None:
    """SIGTERM or SIGINT ended a process.  Launchers send them, too; ours, torchrun, names those it sent them to."""
    alone = evidence.world_size in (None, 1)
    decides = alone or (evidence.supervised and _mute(evidence, findings) is None)
    for name, transient in ENDED_FROM_OUTSIDE.items():
        number = signal.Signals[name]
        ended = [rank for rank, code in _exits(evidence) if code == -number]
        ranks = [rank for rank in ended if (rank in (None, 0) if alone else rank is not None)]
        if ranks and decides:
            rank = 0 if evidence.world_size == 1 else None if alone else ranks[0]
            who = f"rank {rank}" if rank is not None else "the program"
            said = f"{who} was ended by {name}"
            facts = outside.death_lines(evidence, -number)
            return _at(evidence, rank, Kind.KILLED, said, transient=transient, facts=facts)
    launcher = _launcher_signal(evidence)
    if launcher is not None:
        return _at(evidence, None, Kind.KILLED, f"the launcher of the ranks was ended by {launcher.name}")
    return None


def _judge_deadline(evidence: JobEvidence, findings: Sequence[Finding], lag: Lag | None) -> Verdict | None:
    """`timeout` ended the program: what it was waiting for at its end says why."""
    if evidence.supervised or _exit_code(evidence) != TIMED_OUT:
        return None
    if any(_is_watchdog(finding) for finding in findings):
        return _judge_findings(evidence, findings, (Tier.COLLECTIVE,), lag)
    return _judge_back_off(evidence, "; ended by a time limit (exit code 124)") or _at(
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
        fact = Evidence(file=log.file, line=last.number, text=_one_line(last.text))
        return Verdict(
            kind=Kind.NETWORK, reason=_one_line(told + more), transient=True, rank=last.rank, evidence=[fact]
        )
    return None


def _launcher_signal(evidence: JobEvidence) -> signal.Signals | None:
    """The signal that ended the process which had started the ranks."""
    code = evidence.end.get("exit_code") if evidence.end else None
    if (evidence.world_size or 0) > 1 and isinstance(code, int) and code < 0 and -code in set(signal.Signals):
        return signal.Signals(-code)
    return None


def _judge_exit(evidence: JobEvidence) -> Verdict:
    """Nothing but exit codes: 2 is what argparse and python itself say of a wrong command line."""
    code = _exit_code(evidence)
    told = {rank.rank: end.get("exit_code") for rank in evidence.ranks if (end := rank.last("end")) is not None}
    if 2 in (code, *evidence.rank_exits.values(), *told.values()):
        said = f"exit code 2 (usage): {_last_line(evidence)}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=_place(evidence))
    if code in NOT_FOUND:
        said = f"exit code {code} (no such command): {_last_line(evidence)}"
        return Verdict(kind=Kind.USER_ERROR, reason=_one_line(said), transient=False, evidence=_place(evidence))
    mentioned = _judge_mention(evidence) or (_judge_logged_loss(evidence) if code != 0 else None)
    if mentioned is not None:
        return mentioned
    codes = dict(evidence.rank_exits) | {rank: each for rank, each in told.items() if isinstance(each, int)}
    silent = sorted(rank for rank, each in codes.items() if each > 0)
    if silent:
        said = f"rank {silent[0]} ended with exit code {codes[silent[0]]} and no exception was seen"
        return _at(evidence, silent[0] if len(silent) == 1 else None, Kind.UNKNOWN, said)
    if evidence.end is None:
        return _at(evidence, None, Kind.UNKNOWN, "nothing in the log says that or why it failed")
    return _at(evidence, None, Kind.UNKNOWN, f"exit code {code} and no exception was seen")


def _judge_mention(evidence: JobEvidence) -> Verdict | None:
    """A program that swallows its exception and prints a word of it as the last it says."""
    candidates = []
    for log in evidence.logs:
        if log.mention is None or _exit_code(evidence) in (None, 0):
            continue
        line, rank, text = log.mention
        after = [each for each in log.tail if each.number > line and GOES_ON.search(each.text)]
        quoted = re.search(r"[{\"'`].*out of memory|[{\"'`].*(?:NCCL error|No space left|allocate memory)", text)
        row = match("RuntimeError", [], text)
        if log.lines - line > 200 or len(after) > 1 or quoted or row is None:
            continue
        fact = Evidence(file=log.file, line=line, text=_one_line(text))
        said = memory.told(text) if row.kind == Kind.GPU_OOM else None
        reason = f"the log's last word of an error: {said or text}"
        kind = Kind(row.kind)
        verdict = Verdict(kind=kind, reason=_one_line(reason), transient=row.transient, rank=rank, evidence=[fact])
        candidates.append((row.consequence, kind is Kind.NCCL, verdict))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None  # of equals, the lowest rank


def _alone_told(finding: Finding, findings: Sequence[Finding]) -> bool:
    ranks = {each.rank for each in findings if each.tier is Tier.COLLECTIVE}
    return len(ranks) == 1 and not WAITED.search(finding.message)


def _verdict(
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
        elif mute := _mute(evidence, findings):
            transient = None  # it left by itself: the network has lost nobody
            reason += f"; rank {mute[0]} ended with exit code {mute[1]} and told nothing"
    if finding.kind is Kind.NCCL and finding.tier is Tier.COLLECTIVE and finding.transient is None and lag is not None:
        rank, reason, facts = lag.rank, f"{lag.text}; {finding.text}", list(lag.facts)
        transient = False if lag.mismatch else None
    elif finding.tier is Tier.COLLECTIVE and finding.transient is not True and not _alone_told(finding, findings):
        rank = None  # all wait for each other: who tells of it is not who caused it
    return Verdict(
        kind=finding.kind,
        reason=_one_line(reason) + more,
        transient=transient,
        rank=rank,
        step=finding.step,
        phase=finding.phase,
        part=finding.part,
        evidence=[Evidence(file=finding.file, line=finding.line, text=_one_line(finding.counted)), *facts],
        hint=memory.hint_of(message) if finding.kind is Kind.GPU_OOM else None,
    )


def _mute(evidence: JobEvidence, findings: Sequence[Finding]) -> tuple[int, int] | None:
    """The first rank that failed by itself without a word."""
    told = {finding.rank for finding in findings}
    return next(((r, code) for r, code in sorted(evidence.rank_exits.items()) if code > 0 and r not in told), None)


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


def _with_secondary(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """The failures that the verdict's own explains."""
    told = {(fact.file, fact.line) for fact in verdict.evidence}
    rest = [f for f in findings if (f.file, f.line) not in told]
    listed = [
        Secondary(kind=f.kind, rank=f.rank, file=f.file, line=f.line, text=_one_line(f.counted))
        for f in rest[:SECONDARY_LISTED]
    ]
    return verdict.model_copy(update={"secondary": listed}) if listed else verdict


def _one_line(text: str, limit: int = 400) -> str:
    """The text in one line; of a traceback within it (a loader worker's, say) what it ends with."""
    line = " ".join(TRACEBACK.sub("", text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _steps(rank: RankJournal) -> int:
    end = rank.last("end") or {}
    return max(len(rank.of("step")), int(end.get("steps") or 0))


def _exit_code(evidence: JobEvidence) -> int | None:
    code = evidence.end.get("exit_code") if evidence.end else None
    return code if isinstance(code, int) else None


def _exits(evidence: JobEvidence) -> list[tuple[int | None, int]]:
    """(rank, exit code) by what the launcher says, then the command's own; lowest rank first."""
    exits: list[tuple[int | None, int]] = sorted(evidence.rank_exits.items())
    code = _exit_code(evidence)
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
    if any(rank.last("end") is not None for rank in evidence.ranks):
        return None
    deaths = (death for log in evidence.logs if log.file.endswith("launcher.log") for death in log.launcher.deaths)
    return next((death.code for death in deaths if death.code < 0 and death.rank in (None, 0)), None)


def _killed(evidence: JobEvidence) -> tuple[int | None] | None:
    """A process of the job that SIGKILL ended: its rank, where it is known."""
    ranks = [rank for rank, code in _exits(evidence) if code == -signal.SIGKILL]
    if ranks:
        return (ranks[0],)
    return (None,) if _launcher_signal(evidence) == signal.SIGKILL else None


def _least_far(evidence: JobEvidence) -> tuple[int | None, str]:
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


def _at(
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
        reason=_one_line(reason),
        transient=transient,
        rank=rank,
        step=steps[-1]["step"] + 1 if steps else None,
        phase=phase,
        evidence=[*facts, *_place(evidence)],
    )


def _end(evidence: JobEvidence) -> Evidence:
    end = evidence.end or {}
    if not evidence.supervised:
        return Evidence(file="(exit code)", text=f"exit code {end.get('exit_code')}")
    return Evidence(file="end.json", text=f"why {end.get('why')}, exit code {end.get('exit_code')}")


def _place(evidence: JobEvidence) -> list[Evidence]:
    """The supervisor's last word, and the last line of every log that has one."""
    found = [_end(evidence)] if evidence.end else []
    for file, text in evidence.tails.items():
        line = next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), None)
        if line is not None and (file.endswith(("stderr.log", "launcher.log")) or not evidence.supervised):
            found.append(Evidence(file=file, text=_one_line(line)))
    return found


def _last_line(evidence: JobEvidence) -> str:
    """The last line that a rank wrote to stderr, else the launcher."""
    lines = [fact.text for fact in _place(evidence) if fact.file not in ("end.json", "(exit code)")]
    return next(iter(sorted(lines, key=lambda line: "error" not in line.lower())), "it said nothing")
