"""Before launch: what can be known to fail, and the job directory."""

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.assets import NOTHING, Assets
from harness.attempt.hidden import secrets_of, shown
from harness.attempt.machine import Machine
from harness.attempt.settings import Settings
from harness.doctor import FREE_DISK_BYTES
from harness.engines import local
from harness.environment import Stack
from harness.leases import Holding
from harness.probe.layout import JobPaths, attempt, attempts
from harness.probe.redact import is_secret_name, redact, redact_argv
from harness.probe.staging import stage
from harness.record import Kind, Lease, Verdict, write_json
from harness.sampling import sampler
from harness.sampling.gpus import Gpu
from harness.scenario import Case, Scenario, absent, check_training, placeholders, resolved, unmet_packages
from harness.units import format_bytes

JOB_SCHEMA = 1
ADDED_BYTES = 32 * 1024  # of variables and arguments, by the probe and launchers


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


def refuse(case: Case, settings: Settings, stack: Stack, case_dir: Path) -> Verdict | None:
    """What can be known to fail before launch: files and arguments that are not there, secrets in them, a full disk."""
    wrong = absent(case.scenario, settings.base_dir) or _secret_argument(case) or _unreachable(case, case_dir)
    wrong = wrong or _too_long(case.scenario, stack.executable, case_dir)
    if wrong is None and stack.made_of is not None:
        lacking = unmet_packages(case.scenario, stack.packages)
        wrong = f"stack: its files do not bring all: {lacking}" if lacking else None
    error = f"{case.source}: {wrong}" if wrong else None
    if error is None and case.scenario.trainer.kind == "hf" and stack.training_arguments is not None:
        error = check_training(case, stack.training_arguments)
    if error is not None:
        return Verdict(kind=Kind.USER_ERROR, reason=redact(error, secrets_of(case)), transient=False)
    free = shutil.disk_usage(case_dir).free
    if free < FREE_DISK_BYTES:
        said = f"{format_bytes(free)} free on the disk of {case_dir}, {format_bytes(FREE_DISK_BYTES)} needed to start"
        return Verdict(kind=Kind.DISK_FULL, reason=said, transient=False)
    return None


def _secret_argument(case: Case) -> str | None:
    """An argument of the trainer that would bring a secret into job.json."""
    for section, settings in (("training", case.scenario.training), ("trainer.options", case.scenario.trainer.options)):
        told = next((key for key, value in settings.items() if isinstance(value, str) and is_secret_name(key)), None)
        if told:
            return f"{section}.{told}: would be written to job.json; give it as a variable (HF_TOKEN)"
    return None


def _unreachable(case: Case, case_dir: Path) -> str | None:
    """A folder that PYTHONPATH cannot name, where it has to."""
    if case.scenario.trainer.launcher == "own" and os.pathsep in str(case_dir):
        return f"trainer.launcher: own needs a results folder without {os.pathsep!r} in its path: {case_dir}"
    return None


def _too_long(scenario: Scenario, python: str, case_dir: Path) -> str | None:
    """What Linux would not start: an argument of more than 32 pages, or more than ARG_MAX with the variables."""
    command = local.command(scenario, python, JobPaths(case_dir), dict.fromkeys(placeholders.PREPARED, ""))
    variables = [f"{name}={value}" for name, value in {**os.environ, **scenario.env}.items()]
    arguments, others = ([len(os.fsencode(text)) + 1 for text in texts] for texts in (command, variables))
    one, everything = 32 * os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_ARG_MAX")
    if max(arguments) > one:
        said = f"{format_bytes(max(arguments))}, and the system takes {format_bytes(one)}"
        return f"trainer.args: one has {said}; pass it in a file"
    # Each has a pointer, too; launchers and the probe add some of their own.
    total = sum(arguments) + sum(others) + 8 * (len(arguments) + len(others)) + ADDED_BYTES
    if total > everything:
        said = f"{format_bytes(total)} with all variables, and the system takes {format_bytes(everything)}"
        return f"trainer.args: all have {said}; pass them in a file"
    return None


def prepare(
    case: Case,
    settings: Settings,
    machine: Machine,
    stack: Stack,
    case_dir: Path,
    holding: Holding,
    gpus: tuple[Gpu, ...],
    labels: Mapping[str, str],
    given: Assets = NOTHING,
) -> Job:
    """Make the job directory: folders, the staged probe, job.json."""
    number = 1 + max(attempts(case_dir), default=0)
    paths = attempt(case_dir, number)
    for folder in (paths.root, paths.node(), paths.outputs):
        folder.mkdir(mode=0o700)
    probe_sha256 = stage(paths, every_python=case.scenario.trainer.launcher == "own")
    job_id = str(uuid.uuid4())  # processes of a job are found by it when their supervisor is gone
    cpus = len(machine.cpus) * len(gpus) // len(machine.gpus) if gpus else len(holding.ids)
    environ = local.environment(
        case.scenario,
        os.environ,
        paths,
        gpus=[gpu.uuid for gpu in gpus],
        cpus=max(1, cpus),
        job_id=job_id,
        torch=stack.packages.get("torch"),
        offline=given.offline,
    )
    hang_after_s, hang_after_scales = case.scenario.silence_allowed()
    prepared = {"case_id": case.id, "output_dir": str(paths.outputs), "processes": str(case.scenario.world_size)}
    prepared |= given.values
    command = local.command(case.scenario, stack.executable, paths, prepared)
    job = Job(number, paths, holding, gpus, command, environ, probe_sha256)
    scenario = resolved(case.scenario)
    if case.scenario.trainer.kind == "hf" and "model_dir" in given.values:
        scenario["model"]["path"] = given.values["model_dir"]  # what one process has fetched, for all ranks
    document = {
        "schema": JOB_SCHEMA,
        "job_id": job_id,
        "case_id": case.id,
        "attempt": number,
        # What the built-in trainer reads must be what was asked for; `refuse` has seen to secrets among it.
        "scenario": shown(case) | {key: scenario[key] for key in ("model", "method", "data", "training")},
        "labels": dict(labels),
        "default_labels": case.scenario.default_labels(settings.labels, settings.found_labels),
        "tags": list(case.scenario.tags),
        "aim": settings.aim.section() if settings.aim else None,
        "output_file": str(settings.output_file) if settings.output_file else None,
        "command": redact_argv(job.command, secrets_of(case)),
        "cwd": str(_working_directory(case, settings, paths)),
        "probe_sha256": probe_sha256,
        "environment_names": sorted(environ),
        "lease": job.lease.model_dump(mode="json"),
        "world_size": case.scenario.world_size,
        "time_limit_s": case.scenario.time_limit_within(settings.time_limit_s),
        "hang_after_s": hang_after_s,
        "hang_after_scales": hang_after_scales,
        "grace_s": settings.grace_s,
        "sampler": sampler.command(paths.system_journal(), settings.sample_interval_s, [gpu.uuid for gpu in gpus]),
        "files": {
            "supervisor_journal": str(paths.supervisor_journal()),
            "system_journal": str(paths.system_journal()),
            "launcher_log": str(paths.launcher_log()),
            "kernel_log": str(paths.kernel_log()),
            "end": str(paths.end),
        },
        "created": time.time(),
    }
    write_json(document, paths.job)
    return job


def _working_directory(case: Case, settings: Settings, job: JobPaths) -> Path:
    if case.scenario.trainer.kind != "script":
        return job.outputs
    return settings.base_dir / (case.scenario.trainer.cwd or ".")
