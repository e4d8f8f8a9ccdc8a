"""Whether a job whose command ended with exit code 0 was a success: its ranks ended well, and it has trained."""

from collections.abc import Sequence

from harness.classify.evidence import JobEvidence
from harness.classify.findings import find_unfinished, of_rank
from harness.classify.lines import GRAD_NORM, LOSS
from harness.classify.statement import end_fact, one_line, state_at, state_finding, steps_of
from harness.metrics import did_it_train
from harness.record import Evidence, Kind, Verdict


def judge_success(evidence: JobEvidence) -> Verdict | None:
    end = evidence.end
    if end is None or end.get("why") != "exit" or end.get("exit_code") != 0:
        return None
    diverged = _judge_training(evidence, [Kind.NAN_LOSS]) or judge_logged_loss(evidence)
    if diverged is not None:
        return diverged
    unfinished = find_unfinished(evidence)
    if unfinished is not None:
        return state_finding(
            evidence, unfinished, more="; the program went on without training and ended with exit code 0"
        )
    failed = _judge_failed_rank(evidence)
    if failed is not None:
        return failed
    if evidence.expects_steps and not any(steps_of(rank) for rank in evidence.ranks):
        said = "the program ended with exit code 0 and no optimizer step was seen"
        return Verdict(kind=Kind.NO_TRAINING, reason=said, transient=False, evidence=[end_fact(evidence)])
    taught_nothing = _judge_training(evidence, [Kind.NO_TRAINING]) if evidence.expects_steps else None
    if taught_nothing is not None:
        return taught_nothing
    return Verdict(kind=Kind.NONE, reason="", evidence=[end_fact(evidence)])


def _judge_failed_rank(evidence: JobEvidence) -> Verdict | None:
    """A rank that failed under a launcher or a shell that does not pass exit codes on."""
    farthest = max((steps_of(rank) for rank in evidence.ranks), default=0)
    for rank in evidence.ranks:
        steps, wanted = steps_of(rank), (rank.last("segment") or {}).get("max_steps")
        end = rank.end
        code = None if end is None else end.get("exit_code")
        if isinstance(code, int) and code != 0:
            ended = f"ended with exit code {code}"
        elif end is None and isinstance(wanted, int) and steps < min(farthest, wanted):
            ended = f"stopped without a word after step {steps}, and another took {farthest}"
        else:
            continue
        finding, zero = of_rank(rank), "the command ended with exit code 0 all the same"
        if finding is not None:
            return state_finding(evidence, finding, more=f"; the rank {ended}, and {zero}")
        return state_at(evidence, rank.rank, Kind.UNKNOWN, f"rank {rank.rank} {ended}; {zero}")
    return None


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
        evidence=[fact, end_fact(evidence)],
    )


def judge_logged_loss(evidence: JobEvidence) -> Verdict | None:
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
            fact = Evidence(file=log.file, line=first.number, text=one_line(first.text))
            return Verdict(kind=Kind.NAN_LOSS, reason=one_line(said), transient=False, rank=first.rank, evidence=[fact])
    return None


def _is_number(text: str) -> bool:
    return text.lower().lstrip("-") not in ("nan", "inf", "infinity")
