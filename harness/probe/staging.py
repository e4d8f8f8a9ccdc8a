"""Puts a copy of the probe into a job directory, so that the record holds and hashes the code that ran."""

import hashlib
import os
from pathlib import Path

from .layout import JobPaths
from .site_hook import MODULE

BUILT_IN = "harness_probe.finetune"  # module name of the built-in target `hf`, as the staged probe knows it
FMS = "harness_probe.fms"  # the same of fms-hf-tuning's trainer


def stage(job: JobPaths, *, every_python: bool = False) -> str:
    """Copy the probe to `job.probe`; returns the sha256 of what was copied, in hex.  OSError: it cannot be written.

    `every_python`: also what is imported by every Python that has `job.site` in its PYTHONPATH."""
    job.probe.mkdir(parents=True, exist_ok=True, mode=0o700)
    for source in sources():
        _copy(source, job.probe / source.name)
    if every_python:
        job.site.mkdir(exist_ok=True, mode=0o700)
        _copy(Path(__file__).with_name("site_hook.py"), job.site / f"{MODULE}.py")
    return digest(job.probe)


def _copy(source: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(source.read_bytes())
    os.replace(partial, target)


def sources(folder: Path | None = None) -> list[Path]:
    """The modules of the probe, by name."""
    return sorted((folder or Path(__file__).parent).glob("*.py"))


def digest(folder: Path) -> str:
    """sha256 over names and contents of the modules in a folder."""
    total = hashlib.sha256()
    for source in sources(folder):
        content = source.read_bytes()
        total.update(f"{source.name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def start_command(job: JobPaths, target: str, *arguments: str, module: bool = False) -> list[str]:
    """What follows `python -u` (or torchrun's options) to start a target under the staged probe."""
    return [str(job.probe / "__main__.py"), str(job.root), *(["-m"] if module else []), target, *arguments]
