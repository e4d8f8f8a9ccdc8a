"""After the job: what it left is read, judged and measured."""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import classify, metrics
from harness.attempt.hidden import secrets_of
from harness.attempt.settings import Settings
from harness.attempt.stack import STACK_LOG
from harness.classify.evidence import log_tail
from harness.journal import RankJournal, read_document, read_events, read_ranks
from harness.probe.layout import JobPaths
from harness.probe.redact import redact, redact_tree
from harness.probe.series import labels_of
from harness.record import Attempt, Kind, Measurements, Record, Verdict
from harness.scenario import Case
from harness.telemetry import Telemetry, summarise

TAIL_LINES = 60


def finish(case: Case, settings: Settings, job: JobPaths, record: Record) -> Record:
    """Read what the job left and judge it.  Returns the finished record."""
    scenario = case.scenario
    evidence = classify.collect(
        job,
        world_size=scenario.world_size,
        expects_steps=scenario.measure_steps,
        time_limit_s=case.scenario.time_limit_within(settings.time_limit_s),
    )
    secrets = secrets_of(case)
    verdict = redacted(classify.judge(evidence), secrets)
    end = read_document(job.end)
    ended = end["ended"] if end and isinstance(end.get("ended"), int | float) else time.time()
    last = record.attempts[-1].model_copy(update={"ended": ended, "end": end, "verdict": verdict})
    samples = [event for _, event in read_events(job.system_journal()) if event["e"] == "sample"]
    measured = metrics.measure(evidence.ranks, samples, metrics.Job(_wall(last), record.scenario))
    return record.model_copy(
        update={
            "state": "finished",
            "labels": _labels(job, record.labels, evidence.ranks),
            "attempts": [*record.attempts[:-1], last],
            "verdict": verdict,
            "measurements": measured,
            "telemetry": _telemetry(job, evidence.ranks, measured),
            "artifacts": artifacts(job, outputs=scenario.keep_outputs),
            "tail": "" if verdict.kind is Kind.NONE else failure_tail(job, verdict.rank, secrets),
        }
    )


def _telemetry(job: JobPaths, ranks: Sequence[RankJournal], measured: Measurements | None) -> Telemetry:
    """What the sampler saw, over the job and over the measured window; the journal is read as a stream."""
    span = metrics.find_span(ranks)
    tokens = measured.tokens.get("non_pad") if measured is not None and len(measured.segments) == 1 else None
    return summarise(
        (event for _, event in read_events(job.system_journal())),
        window=None if span is None else (span.begin_m, span.end_m),
        window_tokens=None if span is None else span.non_pad_tokens,
        tokens=tokens,
    )


def _wall(attempt: Attempt) -> metrics.Wall:
    return metrics.Wall(attempt.started, attempt.ended, attempt.lease.wait_s)


def _labels(job: JobPaths, launched: Mapping[str, str], ranks: Sequence[RankJournal]) -> dict[str, str]:
    """The job's, with those that the program has given itself; a value that is no text is told as JSON."""
    program: dict[str, Any] = {}
    for event in (event for rank in ranks for event in rank.of("labels")):
        program |= event["labels"] if isinstance(event.get("labels"), dict) else {}
    labels = labels_of({**(read_document(job.job) or {}), "labels": dict(launched)}, program)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in labels.items()}


def redacted(verdict: Verdict, secrets: Collection[str]) -> Verdict:
    """The verdict with the secrets taken out of what it quotes of logs."""
    return Verdict.model_validate(redact_tree(verdict.model_dump(), secrets))


def artifacts(job: JobPaths, *, outputs: bool) -> dict[str, str]:
    """The files of a job that are there, as paths relative to the record's folder."""
    files = {
        "job": job.job,
        "end": job.end,
        "supervisor": job.supervisor_journal(),
        "system": job.system_journal(),
        "launcher_log": job.launcher_log(),
        "kernel_log": job.kernel_log(),
        "termination_log": job.termination_log,
        "stack_log": job.root.parent / STACK_LOG,
    }
    if outputs:
        files["outputs"] = job.outputs
    for rank in job.ranks():
        files |= {
            f"rank-{rank}/events": job.events(rank),
            f"rank-{rank}/stdout": job.stdout(rank),
            f"rank-{rank}/stderr": job.stderr(rank),
            f"rank-{rank}/error": job.error(rank),
            f"rank-{rank}/py-spy": job.py_spy(rank),
            f"rank-{rank}/memory": job.memory(rank),
            f"rank-{rank}/memory_snapshot": job.memory_snapshot(rank),
        }
        if job.stacks(rank).exists() and job.stacks(rank).stat().st_size:  # there from the start, and most often empty
            files[f"rank-{rank}/stacks"] = job.stacks(rank)
    for path in sorted([*job.node().glob("nccl.*.log"), *job.node().glob(f"{job.flight_recorder().name}*[0-9]")]):
        files[path.name.removesuffix(".log")] = path
    return {name: str(path.relative_to(job.root.parent)) for name, path in files.items() if path.exists()}


def failure_tail(job: JobPaths, rank: int | None, secrets: Collection[str]) -> str:
    """The last lines of the logs that tell most, secrets redacted: the failed rank's, and the launcher's."""
    ranks = [rank] if rank is not None else job.ranks()[:1]
    parts = []
    for path in [p for r in ranks for p in (job.stdout(r), job.stderr(r))] + [job.launcher_log()]:
        lines = [line for line in log_tail(path).splitlines() if line.strip()][-TAIL_LINES:]
        if lines:
            parts.append(f"--- {path.relative_to(job.root)}\n" + "\n".join(lines))
    return redact("\n".join(parts), secrets)


def step_times(record: Record, case_dir: Path) -> list[float]:
    """Seconds of the measured steps of the last attempt; empty when none was measured."""
    if not record.attempts:
        return []
    return metrics.step_times(read_ranks(JobPaths(case_dir / record.attempts[-1].directory)))
