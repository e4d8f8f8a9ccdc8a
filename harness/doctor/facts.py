"""What the doctor looks at: facts of the machine and of an interpreter that jobs run on.  Nothing is changed."""

import contextlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.environment import StackError, cpu_model, read_stack
from harness.leases import lock_dir
from harness.sampling import gpus, host
from harness.sampling.cgroups import Cgroup

_PACKAGES = ("torch", "transformers", "accelerate", "peft", "aim", "numpy", "nvidia-ml-py")
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
    aim_error: str | None  # why an Aim that is installed cannot be used; None, too, when it was not asked


def read(environ: Mapping[str, str], results: Path, python: str | None = None, *, ask_aim: bool = True) -> Facts:
    """The facts of this machine and of an interpreter; never raises for what it cannot read.

    `ask_aim`: import an Aim that is there, which takes most of the time."""
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
    aim = (
        _asked(interpreter, _AIM.format(str(Path(harness.__file__).parents[1])))
        if ask_aim and packages.get("aim")
        else None
    )
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
        cpu_model=cpu_model(),
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


def _governors(folder: Path) -> tuple[str, ...]:
    found = set()
    for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with contextlib.suppress(OSError):
            found.add(path.read_text().strip())
    return tuple(sorted(found))


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
