"""What a record says of its surroundings: the machine, the stack of a target, the state of the user's repository."""

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.probe.redact import redact, redact_tree, secret_values

# Run by the interpreter that is asked about; finds a package without importing it.
STACK_SCRIPT = """
import importlib.metadata, importlib.util, json, platform, re, sys
packages = {}
for found in importlib.metadata.distributions():
    name = found.metadata["Name"]
    if name:
        packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), found.version)
spec = importlib.util.find_spec("transformers")
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "packages": dict(sorted(packages.items())),
    "transformers": list(spec.submodule_search_locations or [])[:1] if spec else [],
}))
"""

# Variables that change what a job does; their values are in the record, others are there by name alone.
TELLING = (
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTORCH_"),
    *("OMP_", "MKL_", "HF_", "TRANSFORMERS_", "ACCELERATE_", "TOKENIZERS_", "PYTHON"),
)


class StackError(Exception):
    """An interpreter that is not there, or does not answer."""


@dataclass(frozen=True)
class Stack:
    """An interpreter and its packages."""

    executable: str
    version: str
    packages: Mapping[str, str]  # normalised name -> version
    transformers: Path | None  # folder of the installed package
    made_of: Mapping[str, Any] | None = None  # files and hash of an environment that was made for it

    @property
    def training_arguments(self) -> Path | None:
        """The source file that defines TrainingArguments."""
        path = self.transformers / "training_args.py" if self.transformers else None
        return path if path and path.is_file() else None


def read_stack(python: str, env: Mapping[str, str]) -> Stack:
    """Ask an interpreter what a job would find there; `env` are the scenario's own variables.  Once a session.

    Raises StackError when it cannot be started or does not answer within a minute.
    """
    return _read_stack(python, tuple(sorted(env.items())))


@functools.cache
def _read_stack(python: str, env: tuple[tuple[str, str], ...]) -> Stack:
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise StackError(f"there is no interpreter {python}")
    found = os.path.abspath(found)  # it is asked, and used, in other folders than this one
    try:
        # As a job sees it: with PYTHONPATH and the user's own packages, but with nothing of the folder we stand in.
        done = subprocess.run(
            [found, "-c", STACK_SCRIPT],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, **dict(env)},
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise StackError(f"the interpreter {python} does not answer: {said.strip().splitlines()[-1]}") from error
    folder = Path(told["transformers"][0]) if told["transformers"] else None
    return Stack(found, told["version"], told["packages"], folder)


def cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, branch and whether there are uncommitted changes; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
        "remote": redact(_git(folder, "remote", "get-url", "origin") or "") or None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe_machine(gpus: list[dict[str, Any]], driver: str | None, gpu_reason: str | None) -> dict[str, Any]:
    """Host name, processor, memory (bytes), kernel, GPUs and driver."""
    return {
        "host": platform.node(),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "kernel": platform.release(),
        "system": platform.system(),
        "gpus": gpus,
        "driver": driver,
        "gpu_reason": gpu_reason,
    }


def describe_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what a job does, secrets redacted by name and by value."""
    telling = {name: value for name, value in sorted(environ.items()) if name.startswith(TELLING)}
    shown: dict[str, str] = redact_tree(telling, secret_values(environ))
    return shown


def describe_stack(stack: Stack | None) -> dict[str, Any]:
    """The part that tells of the stack."""
    return {
        "python": {"executable": stack.executable, "version": stack.version} if stack else None,
        "packages": dict(stack.packages) if stack else {},
        "stack": dict(stack.made_of) if stack and stack.made_of else None,
    }


def describe(
    machine: Mapping[str, Any], stack: Stack | None, repository: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> dict[str, Any]:
    """What a record holds under `environment`; `stack` is None until its environment has been made."""
    return {
        "machine": dict(machine),
        **describe_stack(stack),
        "git": dict(repository) if repository else None,
        "variables": describe_variables(environ),
        "harness": {"version": harness.__version__, "python": platform.python_version(), "executable": sys.executable},
    }
