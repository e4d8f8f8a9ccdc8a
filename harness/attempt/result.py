"""After the job: what it left is read, judged and measured."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import classify, metrics
from harness.attempt.hidden import secrets_of
from harness.attempt.settings import Settings
from harness.attempt.stack import STACK_LOG
from harness.classify.evidence import log_tail
from harness.journal import Event, RankJournal, read_document, read_events, read_ranks
from harness.probe.layout import JobPaths
from harness.probe.redact import redact, redact_tree
from harness.probe.series import labels_of
from harness.record import Attempt, Kind, Measurements, Record, Verdict
from harness.scenario import Case, Scenario
from harness.telemetry import Reading, Telemetry

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
    verdict = _hinted(redacted(classify.judge(evidence), secrets), scenario, evidence.ranks)
    end = read_document(job.end)
    ended = end["ended"] if end and isinstance(end.get("ended"), int | float) else time.time()
    last = record.attempts[-1].model_copy(update={"ended": ended, "end": end, "verdict": verdict})
    measured, telemetry = measure(job, evidence.ranks, metrics.Job(_wall(last, job), record.scenario))
    return record.model_copy(
        update={
            "state": "finished",
            "labels": _labels(job, record.labels, evidence.ranks),
            "attempts": [*record.attempts[:-1], last],
            "verdict": verdict,
            "measurements": measured,
            "telemetry": telemetry,
            "artifacts": artifacts(job, outputs=scenario.keep_outputs),
            "tail": "" if verdict.kind is Kind.NONE else failure_tail(job, verdict.rank, secrets),
        }
    )


def _hinted(verdict: Verdict, scenario: Scenario, ranks: Sequence[RankJournal]) -> Verdict:
    """Where a target that starts its ranks itself has left no journal, that is told, unless it told its own error."""
    if scenario.trainer.launcher != "own" or ranks or verdict.hint or verdict.kind in (Kind.NONE, Kind.USER_ERROR):
        return verdict
    hint = "no process of the target was recognised as a rank, which docs/foreign-programs.md explains"
    return verdict.model_copy(update={"hint": hint})


def measure(job: JobPaths, ranks: Sequence[RankJournal], known: metrics.Job) -> tuple[Measurements | None, Telemetry]:
    """The figures of the steps, and what the sampler saw over the job and over the measured window.

    The sampler's journal is read once, as a stream: a day of it is hundreds of megabytes."""
    steps = metrics.find_steps(ranks)
    span = steps.span
    reading = Reading(None if span is None else (span.begin_m, span.end_m))
    samples = _passed_on((event for _, event in read_events(job.system_journal())), reading)
    measured = metrics.measure(ranks, samples, known, steps)
    tokens = measured.tokens.get("non_pad") if measured is not None and len(measured.segments) == 1 else None
    window_tokens = None if span is None else span.non_pad_tokens
    return measured, reading.told(window_tokens=window_tokens, tokens=tokens, ranks=_ranks_by_gpu(ranks))


def _passed_on(events: Iterable[Event], reading: Reading) -> Iterator[Event]:
    for event in events:
        reading.take(event)
        yield event


def _ranks_by_gpu(ranks: Sequence[RankJournal]) -> dict[str, list[int]]:
    """Which ranks trained on a GPU, by its UUID."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        uuid = (rank.last("model") or {}).get("device_uuid")
        if isinstance(uuid, str):
            found.setdefault(uuid, []).append(rank.rank)
    return found


def _wall(attempt: Attempt, job: JobPaths) -> metrics.Wall:
    begun = (event["t"] for _, event in read_events(job.supervisor_journal()) if event["e"] == "command_started")
    return metrics.Wall(attempt.started, attempt.ended, attempt.lease.wait_s, next(begun, None), attempt.assets_s)


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
