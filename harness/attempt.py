"""One case, from scenario to Record: check, lease, prepare, launch, read, judge.  No pytest here.

Each stage is a function that returns a value; `run_case` is their order.
"""

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import classify, environment, metrics
from harness.classify.evidence import log_tail
from harness.engines import local
from harness.environment import Stack
from harness.journal import read_document, read_events, read_ranks
from harness.leases import Holding, cpu_slots, lease
from harness.probe.layout import JobPaths, attempt, attempts
from harness.probe.redact import is_secret_name, redact, redact_argv, redact_tree, secret_arguments, secret_values
from harness.probe.staging import stage
from harness.record import Attempt, Kind, Lease, Record, Verdict, read_record, write_json, write_record
from harness.sampling import sampler
from harness.sampling.gpus import Gpu, discover, foreign_processes
from harness.scenario import Case, check_training, resolved, unmet
from harness.units import format_bytes

JOB_SCHEMA = 1
GRACE_S = 10.0  # from SIGTERM to SIGKILL: long enough for torchrun to end its ranks
FREE_DISK_BYTES = 256 * 2**20  # logs and journals of a job that saves nothing
TAIL_LINES = 60
BUSY_LIMIT_S = 900.0  # how long a case waits for somebody else's process to leave a GPU


@dataclass(frozen=True)
class Machine:
    """What can be leased here."""

    gpus: tuple[Gpu, ...]  # visible ones, in the order of CUDA_VISIBLE_DEVICES
    cpus: tuple[str, ...]  # slot ids
    driver: str | None = None
    gpu_reason: str | None = None  # why there is no GPU

    @classmethod
    def read(cls, environ: Mapping[str, str], max_gpus: int | None = None) -> "Machine":
        found = discover(environ)
        return cls(found.gpus[:max_gpus], tuple(cpu_slots()), found.driver, found.reason)

    def describe(self) -> dict[str, Any]:
        gpus = [{"uuid": gpu.uuid, "name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in self.gpus]
        return environment.describe_machine(gpus, self.driver, self.gpu_reason)


@dataclass(frozen=True)
class Settings:
    """What holds for all cases of a session."""

    session: str
    session_dir: Path
    base_dir: Path  # where the harness was started: a script's working directory unless it names one
    lock_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None  # the smaller of this and the scenario's counts
    grace_s: float = GRACE_S


@dataclass(frozen=True)
class Job:
    """What is launched: where, with which leases, by which command in which environment."""

    number: int  # of the attempt
    paths: JobPaths
    holding: Holding
    gpus: tuple[Gpu, ...]
    command: list[str]
    environ: dict[str, str]
    probe_sha256: str  # of the staged probe

    @property
    def lease(self) -> Lease:
        return Lease(
            gpus=[gpu.uuid for gpu in self.gpus],
            gpu_names=[gpu.name for gpu in self.gpus],
            cpus=[] if self.gpus else [int(slot.rpartition("-")[2]) for slot in self.holding.ids],
            wait_s=self.holding.wait_s,
        )


def missing(case: Case, machine: Machine) -> str | None:
    """Why the case cannot run here (GPUs, GPU memory, packages, interpreter); None when it can."""
    gpus = [(gpu.name, gpu.memory_bytes) for gpu in _usable(case, machine)]
    try:
        packages = _stack(case).packages
    except environment.StackError as error:
        return unmet(case.scenario, gpus, None, str(error), machine.gpu_reason)
    return unmet(case.scenario, gpus, packages, None, machine.gpu_reason)


def _usable(case: Case, machine: Machine) -> list[Gpu]:
    """The GPUs a case may have.  CUDA gives a process one MIG device, so a case of several ranks needs whole GPUs."""
    several = case.scenario.world_size > 1
    return [gpu for gpu in machine.gpus if not (several and gpu.uuid.startswith("MIG-"))]


def run_case(
    case: Case,
    settings: Settings,
    machine: Machine,
    *,
    case_dir: Path,
    nodeid: str | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Record:
    """Run a case once and return its record, which also lies at `case_dir/record.json` from launch on.

    A failure of the job is a verdict, never an exception.  KeyboardInterrupt passes, after everything of the job has
    ended and the record is written.  Raises OSError when the results folder cannot be written or the job not be
    started, StackError when the interpreter has gone since `missing` was asked, LeaseError when the lock folder is not
    fit, BusyError when other people's processes do not leave the GPUs.
    """
    stack = _stack(case)
    case_dir.mkdir(parents=True, exist_ok=True)
    draft = _draft(case, settings, machine, stack, nodeid, _earlier_attempts(case_dir))
    refusal = refuse(case, stack, case_dir)
    if refusal is not None:
        return _save(draft.model_copy(update={"state": "finished", "verdict": refusal}), case_dir)
    with leased(case, settings, machine, on_wait) as (holding, gpus):
        job = prepare(case, settings, machine, stack, case_dir, holding, gpus, draft.labels)
        record = _save(_launched(case, draft, job), case_dir)
        interruption: BaseException | None = None
        try:
            launch(job)
        except BaseException as error:  # KeyboardInterrupt too: the record is finished, then it goes on its way
            interruption = error
    try:
        record = finish(case, settings, job.paths, record)
    except KeyboardInterrupt as error:
        interruption = error
        record = finish(case, settings, job.paths, record)
    _save(record, case_dir)
    if not case.scenario.keep_outputs:
        shutil.rmtree(job.paths.outputs, ignore_errors=True)
    if interruption is not None:
        raise interruption
    return record


def refuse(case: Case, stack: Stack, case_dir: Path) -> Verdict | None:
    """What can be known to fail before launch: training arguments that do not exist or tell a secret, a full disk."""
    if case.scenario.trainer.kind == "hf" and stack.training_arguments is not None:
        error = check_training(case, stack.training_arguments)
        if error:
            return Verdict(kind=Kind.USER_ERROR, reason=redact(error, _secrets(case)), transient=False)
    told = next(
        (key for key, value in case.scenario.training.items() if isinstance(value, str) and is_secret_name(key)), None
    )
    if told is not None:
        said = (
            f"{case.source}: training.{told}: a secret would be written to job.json; give it as a variable (HF_TOKEN)"
        )
        return Verdict(kind=Kind.USER_ERROR, reason=said, transient=False)
    free = shutil.disk_usage(case_dir).free
    if free < FREE_DISK_BYTES:
        said = f"{format_bytes(free)} free on the disk of {case_dir}, {format_bytes(FREE_DISK_BYTES)} needed to start"
        return Verdict(kind=Kind.DISK_FULL, reason=said, transient=False)
    return None


@contextmanager
def leased(
    case: Case, settings: Settings, machine: Machine, on_wait: Callable[[str], None] | None
) -> Iterator[tuple[Holding, tuple[Gpu, ...]]]:
    """Hold the case's GPUs, or CPU slots (all of them when it asks for more), until the job has ended."""
    on_gpu = case.scenario.on_gpu
    memory = case.scenario.needs.gpu_memory_bytes or 0
    fitting = [gpu.uuid for gpu in _usable(case, machine) if gpu.memory_bytes >= memory]
    pool = fitting if on_gpu else list(machine.cpus)
    count = case.scenario.world_size if on_gpu else min(case.scenario.world_size, len(pool))

    def busy(uuid: str) -> str | None:
        pids = foreign_processes(uuid)
        return f"used by process {', '.join(map(str, pids))}" if pids else None

    with lease(
        pool,
        count,
        what=f"{case.id} ({settings.session})",
        lock_dir=settings.lock_dir,
        journal=settings.session_dir / "leases.jsonl",
        busy=busy if on_gpu else lambda _: None,
        busy_limit_s=BUSY_LIMIT_S,
        on_wait=on_wait,
    ) as holding:
        yield holding, tuple(gpu for gpu in machine.gpus if gpu.uuid in holding.ids)


def prepare(
    case: Case,
    settings: Settings,
    machine: Machine,
    stack: Stack,
    case_dir: Path,
    holding: Holding,
    gpus: tuple[Gpu, ...],
    labels: Mapping[str, str],
) -> Job:
    """Make the job directory: folders, the staged probe, job.json."""
    number = 1 + max(attempts(case_dir), default=0)
    paths = attempt(case_dir, number)
    for folder in (paths.root, paths.node(), paths.outputs):
        folder.mkdir(mode=0o700)
    probe_sha256 = stage(paths)
    job_id = str(uuid.uuid4())  # processes of a job are found by it when their supervisor is gone
    cpus = len(machine.cpus) * len(gpus) // len(machine.gpus) if gpus else len(holding.ids)
    environ = local.environment(
        case.scenario, os.environ, gpus=[gpu.uuid for gpu in gpus], cpus=max(1, cpus), job_id=job_id
    )
    command = local.command(case.scenario, stack.executable, paths)
    job = Job(number, paths, holding, gpus, command, environ, probe_sha256)
    scenario = resolved(case.scenario)
    document = {
        "schema": JOB_SCHEMA,
        "job_id": job_id,
        "case_id": case.id,
        "attempt": number,
        # What the built-in trainer reads must be what was asked for; `refuse` has seen to secrets among it.
        "scenario": _shown(case) | {key: scenario[key] for key in ("model", "method", "data", "training")},
        "labels": dict(labels),
        "command": redact_argv(job.command, _secrets(case)),
        "cwd": str(_working_directory(case, settings, paths)),
        "probe_sha256": probe_sha256,
        "environment_names": sorted(environ),
        "lease": job.lease.model_dump(mode="json"),
        "world_size": case.scenario.world_size,
        "time_limit_s": case.scenario.time_limit_within(settings.time_limit_s),
        "grace_s": settings.grace_s,
        "sampler": sampler.command(paths.system_journal()),
        "files": {
            "supervisor_journal": str(paths.supervisor_journal()),
            "system_journal": str(paths.system_journal()),
            "launcher_log": str(paths.launcher_log()),
            "end": str(paths.end),
        },
        "created": time.time(),
    }
    write_json(document, paths.job)
    return job


def launch(job: Job) -> None:
    """Start the job and wait for its end; nothing of it is left when this returns or raises."""
    with local.LocalJob.start(job.paths, job.command, job.environ, job.holding.fds) as running:
        running.wait()


def finish(case: Case, settings: Settings, job: JobPaths, record: Record) -> Record:
    """Read what the job left and judge it.  Returns the finished record."""
    scenario = case.scenario
    evidence = classify.collect(
        job,
        world_size=scenario.world_size,
        expects_steps=scenario.measure_steps,
        time_limit_s=case.scenario.time_limit_within(settings.time_limit_s),
    )
    secrets = _secrets(case)
    evidence = replace(evidence, tails={file: redact(text, secrets) for file, text in evidence.tails.items()})
    verdict = classify.judge(evidence)
    end = read_document(job.end)
    ended = end["ended"] if end and isinstance(end.get("ended"), int | float) else time.time()
    last = record.attempts[-1].model_copy(update={"ended": ended, "end": end, "verdict": verdict})
    samples = [event for _, event in read_events(job.system_journal())]
    return record.model_copy(
        update={
            "state": "finished",
            "attempts": [*record.attempts[:-1], last],
            "verdict": verdict,
            "measurements": metrics.measure(evidence.ranks, samples, ended),
            "artifacts": artifacts(job, outputs=scenario.keep_outputs),
            "tail": "" if verdict.kind is Kind.NONE else failure_tail(job, verdict.rank, secrets),
        }
    )


def artifacts(job: JobPaths, *, outputs: bool) -> dict[str, str]:
    """The files of a job that are there, as paths relative to the record's folder."""
    files = {
        "job": job.job,
        "end": job.end,
        "supervisor": job.supervisor_journal(),
        "system": job.system_journal(),
        "launcher_log": job.launcher_log(),
    }
    if outputs:
        files["outputs"] = job.outputs
    for rank in job.ranks():
        files |= {
            f"rank-{rank}/events": job.events(rank),
            f"rank-{rank}/stdout": job.stdout(rank),
            f"rank-{rank}/stderr": job.stderr(rank),
            f"rank-{rank}/error": job.error(rank),
        }
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


def _stack(case: Case) -> Stack:
    return environment.read_stack(case.scenario.python or sys.executable, case.scenario.env)


def _working_directory(case: Case, settings: Settings, job: JobPaths) -> Path:
    if case.scenario.trainer.kind == "hf":
        return job.outputs
    return settings.base_dir / (case.scenario.trainer.cwd or ".")


def _earlier_attempts(case_dir: Path) -> list[Attempt]:
    """Attempts of the case that this session has made already (a plugin that reruns tests)."""
    try:
        return list(read_record(case_dir / "record.json").attempts)
    except (OSError, ValueError):
        return []


def _draft(
    case: Case, settings: Settings, machine: Machine, stack: Stack, nodeid: str | None, before: list[Attempt]
) -> Record:
    return Record(
        case_id=case.id,
        nodeid=nodeid,
        session=settings.session,
        state="running",
        scenario=_shown(case),
        source=str(case.source),
        labels=redact_tree(case.scenario.labels_in(settings.session, settings.labels), _secrets(case)),
        command=[],
        environment=environment.describe(machine.describe(), stack, environment.git_state(settings.base_dir), {}),
        attempts=before,
    )


def _launched(case: Case, draft: Record, job: Job) -> Record:
    """The record of a case whose job is about to start."""
    launched = Attempt(
        number=job.number,
        directory=job.paths.root.name,
        started=time.time(),
        lease=job.lease,
        probe_sha256=job.probe_sha256,
    )
    return draft.model_copy(
        update={
            "attempts": [*draft.attempts, launched],
            "command": redact_argv(job.command, _secrets(case)),
            "environment": draft.environment | {"variables": environment.describe_variables(job.environ)},
        }
    )


def _shown(case: Case) -> dict[str, Any]:
    """The resolved scenario with secrets hidden, by name and by value."""
    scenario = resolved(case.scenario)
    shown: dict[str, Any] = redact_tree(scenario, _secrets(case))
    shown["trainer"]["args"] = redact_argv(scenario["trainer"]["args"], _secrets(case))
    return shown


def _secrets(case: Case) -> set[str]:
    """Values that must not be written: of the environment, of the scenario's own variables, among its arguments."""
    scenario = case.scenario
    return secret_values(os.environ) | secret_values(scenario.env) | secret_arguments(scenario.trainer.args)


def _save(record: Record, case_dir: Path) -> Record:
    write_record(record, case_dir / "record.json")
    return record
