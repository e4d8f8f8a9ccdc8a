"""Whether this machine is fit for benchmarks: facts that are read before a night of them, and what they mean.

`read` looks and `judge`, pure, says what is wrong and what helps.  An error breaks jobs, a warning costs time or makes
figures hard to compare."""

import contextlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import harness
from harness.environment import StackError, read_stack
from harness.leases import lock_dir
from harness.sampling import gpus, host
from harness.sampling.cgroups import Cgroup
from harness.units import format_bytes

FREE_DISK_BYTES = 256 * 2**20  # logs and journals of a job that saves nothing; with less, none is started
_DISK_WARNING_BYTES = 10 * 2**30  # a checkpoint of a 7B model is larger
_SHM_BYTES = 2**30  # a container's default is 64 MiB: batches of loader workers and NCCL's buffers go through it
_OPEN_FILES = 4096
_PROCESSES = 4096
_MEMORY_BYTES = 4 * 2**30
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "aim", "numpy", "nvidia-ml-py")
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs|beegfs_nodev|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\.(?!overlay|lxcfs).+"
)
# Run by the interpreter that jobs use: neither package is imported whole, both may take seconds or hang.
_TORCH = """
import importlib.util, json, pathlib, re
spec = importlib.util.find_spec("torch")
text = pathlib.Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
cuda, hip = (re.search(r"^%s\\b[^=]*= *'([^']+)'" % name, text, re.MULTILINE) for name in ("cuda", "hip"))
print(json.dumps({"cuda": cuda and cuda[1], "hip": hip and hip[1]}))
"""
_AIM = "import sys; sys.path.append({0!r}); from harness.forward.aim_run import import_aim; import_aim(sys.executable)"
_ASK_S = 60.0

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Facts:
    """What was found; None: not known, or not there."""

    system: str  # of the kernel: Linux
    kernel: str
    harness: str
    python: str  # of the harness
    cpus: int  # that this process may use
    cpu_model: str | None
    governors: tuple[str, ...]  # of the CPUs, each once
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    cgroup_version: int | None
    memory_limit_bytes: int | None
    memory_used_bytes: int | None  # of the control group
    cpu_limit: float | None
    shm_bytes: int | None
    open_files: int | None  # soft limit; None: none
    processes: int | None
    locked_bytes: int | None
    infiniband: bool
    results: str  # folder
    results_file_system: str | None
    results_free_bytes: int | None
    results_writable: bool
    locks: str
    locks_file_system: str | None
    locks_writable: bool
    driver: str | None
    driver_cuda: str | None
    gpu_reason: str | None
    gpus: tuple[dict[str, Any], ...]  # as harness.sampling.gpus.conditions
    nvidia_loaded: bool  # the kernel has NVIDIA's module
    interpreter: str  # that jobs run on
    interpreter_version: str | None
    interpreter_error: str | None
    packages: dict[str, str | None]
    torch_cuda: str | None
    torch_hip: str | None
    aim_error: str | None  # why an Aim that is installed cannot be used


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    subject: str
    level: Level
    text: str
    remedy: str | None = None


@dataclass(frozen=True)
class Examination:
    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        """Nothing would break jobs."""
        return all(finding.level != "error" for finding in self.findings)

    def document(self) -> dict[str, Any]:
        return {"fit": self.fit, "findings": [asdict(found) for found in self.findings], "facts": asdict(self.facts)}


def examine(environ: Mapping[str, str], results: Path, python: str | None = None) -> Examination:
    """Look and judge.  `results`: where the sessions' folders go; `python`: what jobs run on, if not this one."""
    facts = read(environ, results, python)
    return Examination(facts, tuple(judge(facts)))


def read(environ: Mapping[str, str], results: Path, python: str | None = None) -> Facts:
    """The facts of this machine; never raises for what it cannot read."""
    interpreter = python or sys.executable
    stack_error, version, packages = None, None, dict[str, str | None]()
    try:
        stack = read_stack(interpreter, {})
    except StackError as error:
        stack_error = str(error)
    else:
        interpreter, version = stack.executable, stack.version
        packages = {name: stack.packages.get(name) for name in _PACKAGES}
    torch = _asked(interpreter, _TORCH) if packages.get("torch") else None
    builds = json.loads(torch[0]) if torch and torch[0] else {}
    aim = _asked(interpreter, _AIM.format(str(Path(harness.__file__).parents[1]))) if packages.get("aim") else None
    found = gpus.discover(environ)
    cgroup = Cgroup.of()
    total, available = host.read_memory()
    locks = lock_dir(environ)
    return Facts(
        system=platform.system(),
        kernel=platform.release(),
        harness=harness.__version__,
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(),
        governors=_governors(Path("/sys/devices/system/cpu")),
        memory_total_bytes=total,
        memory_available_bytes=available,
        cgroup_version=cgroup.version,
        memory_limit_bytes=cgroup.memory_limit_bytes,
        memory_used_bytes=cgroup.read()["memory_bytes"],
        cpu_limit=cgroup.cpu_limit,
        shm_bytes=_size(Path("/dev/shm")),
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        infiniband=any(Path("/sys/class/infiniband").glob("*")),
        results=str(results),
        results_file_system=file_system(results),
        results_free_bytes=_free(results),
        results_writable=_writable(results),
        locks=str(locks),
        locks_file_system=file_system(locks),
        locks_writable=_writable(locks),
        driver=found.driver,
        driver_cuda=gpus.cuda_of_driver(),
        gpu_reason=found.reason,
        gpus=tuple(gpus.conditions()),
        nvidia_loaded=Path("/proc/driver/nvidia/version").exists(),
        interpreter=interpreter,
        interpreter_version=version,
        interpreter_error=stack_error,
        packages=packages,
        torch_cuda=builds.get("cuda"),
        torch_hip=builds.get("hip"),
        aim_error=aim[1] if aim else None,
    )


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


def file_system(path: Path, mountinfo: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that a path, which need not exist yet, would lie on."""
    place = os.path.realpath(path)
    best, kind = -1, None
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(mountinfo).read_text().splitlines():
            fields = line.split()
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= best:  # of two mounts on one point the later one is seen
                best, kind = len(point), fields[fields.index("-") + 1]
    return kind


def _is_network(kind: str | None) -> bool:
    return kind is not None and _NETWORK_FILE_SYSTEMS.fullmatch(kind) is not None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above that is there."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def _writable(path: Path) -> bool:
    place = _existing(path)
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(path)).free
    except OSError:
        return None


def _size(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _cpu_model() -> str | None:
    from harness.environment import cpu_model

    return cpu_model()


def _governors(folder: Path) -> tuple[str, ...]:
    found = set()
    for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with contextlib.suppress(OSError):
            found.add(path.read_text().strip())
    return tuple(sorted(found))


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _asked(python: str, code: str) -> tuple[str | None, str | None]:
    """What an interpreter prints, or the last line of its complaint."""
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return None, f"{python} has not answered for {_ASK_S:.0f} s"
    except OSError as error:
        return None, f"{python}: {error}"
    if done.returncode == 0:
        return done.stdout.strip(), None
    return None, (done.stderr.strip().splitlines() or [f"{python} ended with {done.returncode}"])[-1]
