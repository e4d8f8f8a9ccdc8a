"""What the doctor's facts mean: what is wrong and what helps.  Pure.

An error breaks jobs, a warning costs time or makes figures hard to compare."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from harness.doctor.facts import Facts
from harness.units import format_bytes

FREE_DISK_BYTES = 256 * 2**20  # logs and journals of a job that saves nothing; with less, none is started
_DISK_WARNING_BYTES = 10 * 2**30  # a checkpoint of a 7B model is larger
_SHM_BYTES = 2**30  # a container's default is 64 MiB: batches of loader workers and NCCL's buffers go through it
_OPEN_FILES = 4096
_PROCESSES = 4096
_MEMORY_BYTES = 4 * 2**30
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs|beegfs_nodev|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\.(?!overlay|lxcfs).+"
)

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    subject: str
    level: Level
    text: str
    remedy: str | None = None


def judge(facts: Facts) -> Iterator[Finding]:
    """What the facts mean, in the order of the screen."""
    yield from _system(facts)
    yield from _processors(facts)
    yield from _memory(facts)
    yield from _limits(facts)
    yield from _folders(facts)
    yield from _gpus(facts)
    yield from _stack(facts)


def _system(facts: Facts) -> Iterator[Finding]:
    text = f"{facts.system} {facts.kernel}, harness {facts.harness} on Python {facts.python}"
    if facts.system == "Linux":
        yield Finding("system", "ok", text)
    else:
        yield Finding("system", "error", text, "run on Linux: the supervisor and the leases need its process tree")


def _processors(facts: Facts) -> Iterator[Finding]:
    limit = "" if facts.cpu_limit is None else f", of which the control group allows {facts.cpu_limit:g} at once"
    yield Finding("CPUs", "ok", f"{facts.cpus} x {facts.cpu_model or 'unknown'}{limit}")
    slow = [governor for governor in facts.governors if governor != "performance"]
    if slow:
        told = f"the frequency governor is {', '.join(slow)}: step times depend on what ran before"
        yield Finding("CPU governor", "warning", told, "cpupower frequency-set -g performance (as root)")


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.memory_total_bytes is not None and facts.memory_available_bytes is not None:
        free, total = format_bytes(facts.memory_available_bytes), format_bytes(facts.memory_total_bytes)
        few = facts.memory_available_bytes < _MEMORY_BYTES
        help_ = "end what holds it; a model is read through the host's memory" if few else None
        yield Finding("memory", "warning" if few else "ok", f"{free} of {total} available", help_)
    if facts.memory_limit_bytes is not None:
        used = "" if facts.memory_used_bytes is None else f", {format_bytes(facts.memory_used_bytes)} in use"
        text = f"limited to {format_bytes(facts.memory_limit_bytes)} (version {facts.cgroup_version}){used}"
        left = facts.memory_limit_bytes - (facts.memory_used_bytes or 0)
        few = left < min(_MEMORY_BYTES, facts.memory_limit_bytes // 10)
        help_ = "raise the limit, or end what runs beside; the kernel kills what goes beyond" if few else None
        yield Finding("control group", "warning" if few else "ok", text, help_)
    if facts.shm_bytes is None:
        yield Finding("/dev/shm", "warning", "is not there", "mount it: loader workers and NCCL need shared memory")
    else:
        few = facts.shm_bytes < _SHM_BYTES
        help_ = "docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir of medium Memory" if few else None
        yield Finding("/dev/shm", "warning" if few else "ok", format_bytes(facts.shm_bytes), help_)


def _limits(facts: Facts) -> Iterator[Finding]:
    low = False
    for name, value, needed, help_ in (
        ("open files", facts.open_files, _OPEN_FILES, f"ulimit -n {_OPEN_FILES} or more"),
        ("processes", facts.processes, _PROCESSES, f"ulimit -u {_PROCESSES} or more"),
    ):
        if value is not None and value < needed:
            low = True
            yield Finding("ulimit", "warning", f"{value} {name}: loader workers run out of them", help_)
    if facts.infiniband and facts.locked_bytes is not None:
        low = True
        text = f"{format_bytes(facts.locked_bytes)} of locked memory: NCCL cannot register buffers for InfiniBand"
        yield Finding("ulimit", "warning", text, "ulimit -l unlimited")
    if not low:
        shown = "no limit" if facts.open_files is None else f"{facts.open_files}"
        yield Finding("ulimits", "ok", f"open files: {shown}")


def _folders(facts: Facts) -> Iterator[Finding]:
    free, where = facts.results_free_bytes, f"results in {facts.results}"
    if not facts.results_writable:
        yield Finding("disk", "error", f"{where}: may not be written", "--results DIR")
    elif free is not None:
        text = f"{where}: {format_bytes(free)} free, {facts.results_file_system or 'unknown file system'}"
        level: Level = "error" if free < FREE_DISK_BYTES else "warning" if free < _DISK_WARNING_BYTES else "ok"
        yield Finding("disk", level, text, None if level == "ok" else "make room, or --results DIR on another disk")
    if _is_network(facts.results_file_system):
        text = f"{facts.results} lies on {facts.results_file_system}: a stall of the network is one of the journals"
        yield Finding("disk", "warning", text, "--results DIR on a local disk; copy it away afterwards")
    if not facts.locks_writable:
        text = f"the folder of the locks may not be written: {facts.locks}"
        yield Finding("leases", "error", text, "HARNESS_LOCK_DIR=DIR, one that all users of the host share")
    elif _is_network(facts.locks_file_system):
        text = f"the locks lie on {facts.locks_file_system}, where they may not hold: {facts.locks}"
        yield Finding("leases", "error", text, "HARNESS_LOCK_DIR=DIR on a local disk")


def _gpus(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        text = f"none: {facts.gpu_reason or 'unknown why'}"
        if facts.nvidia_loaded:
            help_ = "docker run --gpus all; pip install nvidia-ml-py; look at CUDA_VISIBLE_DEVICES"
            yield Finding("GPUs", "error", f"{text}, although the kernel has NVIDIA's driver", help_)
        else:
            yield Finding("GPUs", "ok", f"{text}; scenarios with GPUs are skipped")
        return
    names = [str(gpu["name"]) for gpu in facts.gpus]
    listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    yield Finding("GPUs", "ok", f"{listed}; driver {facts.driver}, CUDA {facts.driver_cuda}")
    if facts.gpu_reason is not None:
        yield Finding("GPUs", "warning", facts.gpu_reason, "nvidia-smi says more")
    for gpu in facts.gpus:
        yield from _gpu(gpu)


def _gpu(gpu: dict[str, Any]) -> Iterator[Finding]:
    name = f"GPU {gpu['index']}"
    if gpu["persistence"] is False:
        text = "persistence mode is off: the driver unloads between jobs, which costs each seconds and its counters"
        yield Finding(name, "warning", text, f"nvidia-smi -i {gpu['index']} -pm 1 (as root)")
    if gpu["processes"]:
        pids = ", ".join(map(str, gpu["processes"][:8]))
        text = f"in use by process {pids}: a case waits for it, up to 15 minutes"
        yield Finding(name, "warning", text, "end what computes on it, or leave it out of CUDA_VISIBLE_DEVICES")
    if gpu["ecc_uncorrected"]:
        text = f"{gpu['ecc_uncorrected']} uncorrected memory errors since the driver was loaded"
        yield Finding(name, "warning", text, f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu['index']}; a reset may be due")
    limit, usual = gpu["power_limit_w"], gpu["power_limit_default_w"]
    if limit is not None and usual is not None and limit < usual:
        text = f"its power is limited to {limit:g} W, by default {usual:g} W: it is slower than others of its name"
        yield Finding(name, "warning", text, f"nvidia-smi -i {gpu['index']} -pl {usual:g} (as root)")


def _stack(facts: Facts) -> Iterator[Finding]:
    if facts.interpreter_error is not None:
        yield Finding("stack", "error", facts.interpreter_error, "--python PYTHON")
        return
    there = [f"{name} {version}" for name, version in facts.packages.items() if version]
    yield Finding("stack", "ok", ", ".join([f"Python {facts.interpreter_version}", *there]))
    missing = [name for name in ("torch", "transformers") if not facts.packages.get(name)]
    if missing:
        text = f"{facts.interpreter} has no {' and no '.join(missing)}: scenarios of the built-in trainer are skipped"
        yield Finding("stack", "warning", text, "pip install 'tuning-harness[train]'")
    if facts.gpus and facts.packages.get("torch"):
        yield from _torch(facts)
    if facts.aim_error is not None:
        yield Finding("Aim", "warning", facts.aim_error, "--aim-python PYTHON, or --no-aim")


def _torch(facts: Facts) -> Iterator[Finding]:
    build, driver = facts.torch_cuda, facts.driver_cuda
    if build is None and facts.torch_hip is None:
        text = f"torch {facts.packages['torch']} is built for the CPU alone, and there are GPUs"
        yield Finding("torch", "error", text, "install a build for CUDA: https://pytorch.org/get-started/locally")
    elif build is not None and driver is not None:
        # Within a major version a driver runs newer minors, too (CUDA's minor version compatibility).
        if _major(build) > _major(driver):
            text = f"torch is built for CUDA {build}, and driver {facts.driver} runs up to {driver}"
            yield Finding("torch", "error", text, f"update the driver, or install torch for CUDA {_major(driver)}")
        else:
            yield Finding("torch", "ok", f"built for CUDA {build}, which driver {facts.driver} runs")


def _is_network(kind: str | None) -> bool:
    return kind is not None and _NETWORK_FILE_SYSTEMS.fullmatch(kind) is not None


def _major(version: str) -> int:
    return int(version.partition(".")[0])
