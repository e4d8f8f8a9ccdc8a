"""The order of a case's stages: check, make or fetch what it reads, lease, prepare, launch, read, judge; and again
where it may be retried."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness import assets, environment
from harness.attempt.hidden import secrets_of, shown
from harness.attempt.job import Job, prepare, refuse
from harness.attempt.machine import Machine, examined, leased
from harness.attempt.outstanding import Outstanding
from harness.attempt.result import TAIL_LINES, finish, redacted
from harness.attempt.retries import is_retried, retry_wait_s
from harness.attempt.settings import Settings
from harness.attempt.stack import STACK_LOG, stack_of, verdict_of
from harness.engines import local
from harness.environment import Stack
from harness.forward.start import Forwarder
from harness.leases import BusyError
from harness.probe.layout import JobPaths
from harness.probe.redact import redact, redact_argv, redact_tree
from harness.record import Attempt, Kind, Record, Verdict, read_record, write_record
from harness.scenario import Case, expected_kind
from harness.stacks import StackFailure
from harness.units import format_seconds

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_case(
    case: Case,
    settings: Settings,
    machine: Machine,
    *,
    case_dir: Path,
    nodeid: str | None = None,
    on_wait: Callable[[str], None] | None = None,
    on_start: Callable[[JobPaths, local.LocalJob], None] | None = None,
) -> Record:
    """Run a case, again where its scenario says so, and return its record, which also lies at `case_dir/record.json`
    from the first launch on.

    `on_wait` is told who holds what the case waits for, of an environment that is made, and of a retry, `on_start` of
    each job once it runs; what they raise ends it.

    A failure of the job is a verdict, never an exception.  KeyboardInterrupt passes, after everything of the job has
    ended and the record is written.  Raises OSError when the results folder cannot be written or the job not be
    started, StackError when the interpreter has gone since `missing` was asked, LeaseError when the lock folder is not
    fit, BusyError when other people's processes do not leave the GPUs for the first attempt.
    """

    def attempt() -> Record:
        draft = _draft(case, settings, machine, nodeid, _earlier_attempts(case_dir))
        try:
            try:
                with _told_if_interrupted(draft, case_dir, "its stack was looked at or made"):
                    stack = stack_of(case, on_wait)
            except StackFailure as failure:
                return _without_stack(case, failure, draft, case_dir)
            found = environment.describe_stack(stack) | {"doctor": examined(settings.session_dir, stack.executable)}
            draft = draft.model_copy(update={"environment": draft.environment | found})
            return _run(case, settings, machine, stack, draft, case_dir, on_wait, on_start)
        except OSError as error:
            if error.errno not in FULL:
                raise
            said = f"the results cannot be written: {error}"
            verdict = Verdict(kind=Kind.DISK_FULL, reason=said, transient=False)
            return draft.model_copy(update={"state": "finished", "verdict": verdict})

    record = attempt()
    retried: list[Verdict] = []
    while record.verdict is not None and is_retried(record, case.scenario.retries, retried):
        retried.append(record.verdict)
        wait_s = retry_wait_s(len(retried), settings.retry_wait_s, case.id)
        try:
            _pause(record, wait_s, case_dir, on_wait)
            record = attempt()
        except BaseException as error:
            _settle(record, case_dir)
            full = isinstance(error, OSError) and error.errno in FULL
            if not full and not isinstance(error, BusyError):
                raise
            _tell(on_wait, f"not tried again: {error}")
            break
    return record


def _pause(record: Record, wait_s: float, case_dir: Path, on_wait: Callable[[str], None] | None) -> None:
    """Wait for the next attempt; nothing is leased meanwhile, and the record is that of a case that still runs."""
    assert record.verdict is not None
    verdict = record.verdict
    _save(record.model_copy(update={"state": "running", "verdict": None}), case_dir)
    launched = bool(record.attempts) and record.attempts[-1].verdict is verdict
    ended = f"attempt {record.attempts[-1].number} ended" if launched else "not launched"
    said = f"{ended}: {verdict.kind}: {verdict.reason}"
    _tell(on_wait, f"{said}; the next one in {format_seconds(wait_s)}")
    time.sleep(wait_s)


def _tell(on_wait: Callable[[str], None] | None, text: str) -> None:
    if on_wait is not None:
        on_wait(text)


def _settle(record: Record, case_dir: Path) -> None:
    """Where no further attempt was launched, the last one's verdict is the case's."""
    if len(_earlier_attempts(case_dir)) <= len(record.attempts):
        with suppress(OSError):  # a full disk, which the error on its way may be about
            _save(record, case_dir)


def _run(
    case: Case,
    settings: Settings,
    machine: Machine,
    stack: Stack,
    draft: Record,
    case_dir: Path,
    on_wait: Callable[[str], None] | None,
    on_start: Callable[[JobPaths, local.LocalJob], None] | None,
) -> Record:
    case_dir.mkdir(parents=True, exist_ok=True)
    refusal = refuse(case, settings, stack, case_dir)
    if refusal is not None:
        return _save(_refused(draft, refusal), case_dir)
    try:
        with _told_if_interrupted(draft, case_dir, "model and data were made or fetched"):
            given = _given(case, settings, stack, on_wait)
    except assets.AssetsError as error:
        secrets = secrets_of(case)
        refused = _refused(draft, redacted(error.verdict, secrets), redact(error.tail, secrets))
        return _save(refused, case_dir)
    outstanding = settings.outstanding or Outstanding()
    interruption: BaseException | None = None
    with leased(case, settings, machine, on_wait) as (holding, gpus):
        job = prepare(case, settings, machine, stack, case_dir, holding, gpus, draft.labels, given)
        record = _save(_launched(case, draft, job, given), case_dir)
        forwarder = Forwarder.start(job.paths, settings.aim) if settings.aim else None
        try:
            launch(job, on_start)
        except BaseException as error:  # KeyboardInterrupt too: the record is finished, then it goes on its way
            interruption = error
        if forwarder is not None and settings.aim is not None:
            outstanding.add(forwarder, job.paths, settings.aim.timeout_s)
            record = record.model_copy(update={"aim": forwarder.told})
    whole = False
    try:
        record = _finish_and_save(case, settings, job, record, case_dir)
        whole = interruption is None
    except KeyboardInterrupt as error:
        interruption = error
        record = _finish_and_save(case, settings, job, record, case_dir)
    finally:
        if settings.outstanding is None:  # the GPUs are free; the verdict stands, whatever comes of this
            outstanding.close(interrupted=not whole)
        if interruption is not None:
            raise interruption
    if not case.scenario.keep_outputs:
        _remove(job.paths.outputs)
    return record.model_copy(update={"aim": forwarder.told}) if forwarder is not None else record


def _without_stack(case: Case, failure: StackFailure, draft: Record, case_dir: Path) -> Record:
    """The record of a case whose environment could not be made; what pip said lies beside it."""
    case_dir.mkdir(parents=True, exist_ok=True)
    refused = _refused(draft, redacted(verdict_of(failure), secrets_of(case)))
    if failure.output:
        (case_dir / STACK_LOG).write_text(failure.output, encoding="utf-8")
        tail = "\n".join(failure.output.splitlines()[-TAIL_LINES:])
        told = {"artifacts": {"stack_log": STACK_LOG}, "tail": f"--- {STACK_LOG}\n{tail}"}
        refused = refused.model_copy(update=told)
    return _save(refused, case_dir)


def _finish_and_save(case: Case, settings: Settings, job: Job, record: Record, case_dir: Path) -> Record:
    record = finish(case, settings, job.paths, record)
    case_dir.mkdir(parents=True, exist_ok=True)  # a program may have removed it
    return _save(record, case_dir)


def _remove(folder: Path) -> None:
    """As far as it goes: what a program has left there may be deeper than Python can follow."""
    with suppress(OSError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def launch(job: Job, on_start: Callable[[JobPaths, local.LocalJob], None] | None) -> None:
    """Start the job and wait for its end; nothing of it is left when this returns or raises."""
    with local.LocalJob.start(job.paths, job.command, job.environ, job.holding.fds) as running:
        if on_start is not None:
            on_start(job.paths, running)
        running.wait()


def _earlier_attempts(case_dir: Path) -> list[Attempt]:
    """Attempts of the case that this session has made already (a plugin that reruns tests)."""
    try:
        return list(read_record(case_dir / "record.json").attempts)
    except (OSError, ValueError):
        return []


def _draft(case: Case, settings: Settings, machine: Machine, nodeid: str | None, before: list[Attempt]) -> Record:
    labels = case.scenario.labels_in(settings.session, settings.labels, settings.found_labels)
    return Record(
        case_id=case.id,
        nodeid=nodeid,
        session=settings.session,
        state="running",
        scenario=shown(case),
        source=str(case.source),
        labels=redact_tree(labels, secrets_of(case)),
        command=[],
        environment=environment.describe(machine.describe(), None, environment.git_state(settings.base_dir), {}),
        attempts=before,
        expected=expected_kind(case.scenario.expect, []),
    )


def _given(case: Case, settings: Settings, stack: Stack, on_wait: Callable[[str], None] | None) -> assets.Assets:
    """Model and data that the program reads from disk.  Raises AssetsError."""
    return assets.prepare(
        case.scenario,
        stack.executable,
        stack.packages,
        {**os.environ, **case.scenario.env},
        limit_s=case.scenario.time_limit_within(settings.time_limit_s),
        on_wait=on_wait,
    )


@contextmanager
def _told_if_interrupted(draft: Record, case_dir: Path, doing: str) -> Iterator[None]:
    """What comes before the launch may take an hour: a record says that it was cut off there."""
    try:
        yield
    except KeyboardInterrupt as error:
        said = f"ended from outside ({str(error) or 'Ctrl-C'}) while {doing}, before the job was launched"
        with suppress(OSError):
            case_dir.mkdir(parents=True, exist_ok=True)
            _save(_refused(draft, Verdict(kind=Kind.KILLED, reason=said, transient=None)), case_dir)
        raise


def _refused(draft: Record, verdict: Verdict, tail: str = "") -> Record:
    return draft.model_copy(update={"state": "finished", "verdict": verdict, "tail": tail})


def _launched(case: Case, draft: Record, job: Job, given: assets.Assets) -> Record:
    """The record of a case whose job is about to start."""
    launched = Attempt(
        number=job.number,
        directory=job.paths.root.name,
        started=time.time(),
        lease=job.lease,
        assets_s=given.seconds,
        probe_sha256=job.probe_sha256,
    )
    return draft.model_copy(
        update={
            "attempts": [*draft.attempts, launched],
            "expected": expected_kind(case.scenario.expect, [(gpu.name, gpu.memory_bytes) for gpu in job.gpus]),
            "command": redact_argv(job.command, secrets_of(case)),
            "assets": dict(given.used),
            "environment": draft.environment | {"variables": environment.describe_variables(job.environ)},
        }
    )


def _save(record: Record, case_dir: Path) -> Record:
    write_record(record, case_dir / "record.json")
    return record
