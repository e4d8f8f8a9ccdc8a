"""What this machine has: whether a case can run here, and the lease of what it needs."""

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import doctor, environment
from harness.attempt.settings import Settings
from harness.attempt.stack import stack_there
from harness.leases import Holding, cpu_slots, lease
from harness.sampling.gpus import Gpu, discover, foreign_processes
from harness.scenario import Case, unmet, unmet_gpus

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


def missing(case: Case, machine: Machine) -> str | None:
    """Why the case cannot run here (GPUs, GPU memory, packages, interpreter); None when it can."""
    gpus = [(gpu.name, gpu.memory_bytes) for gpu in _usable(case, machine)]
    try:
        stack = stack_there(case)
    except environment.StackError as error:
        return unmet(case.scenario, gpus, None, str(error), machine.gpu_reason)
    if stack is None or stack.made_of is not None:
        # What the files of a stack do not bring, or cannot, is their mistake, and no reason to skip.
        return unmet_gpus(case.scenario, gpus, machine.gpu_reason)
    return unmet(case.scenario, gpus, stack.packages, None, machine.gpu_reason)


@functools.cache
def examined(results: Path, interpreter: str) -> dict[str, Any]:
    """The doctor's facts as they stand in a record; looked at once a process and interpreter, not once a case.

    Aim is not asked: the record says what reached it."""
    facts = asdict(doctor.read(os.environ, results, interpreter, ask_aim=False))
    del facts["aim_error"]
    told: dict[str, Any] = json.loads(json.dumps(facts))
    return told


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


def _usable(case: Case, machine: Machine) -> list[Gpu]:
    """The GPUs a case may have.  CUDA gives a process one MIG device, so a case of several ranks needs whole GPUs."""
    several = case.scenario.world_size > 1
    return [gpu for gpu in machine.gpus if not (several and gpu.uuid.startswith("MIG-"))]
