"""A program that asks to be measured: it joins the job it runs in, or begins one of its own."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .companions import aim_is_installed
from .dump import usable
from .layout import JOB_ID, JobPaths, run_hash_of
from .measure import Meter
from .own_job import OwnJob, end_those_that_have_trained
from .reading import read_document

COPIES = ("harness_probe.measure", "harness.probe.measure")  # the staged one, and the installed one
DEEPEST = 20  # level of a label that is told as it is

Name = str | os.PathLike[str]
Repo = Name | Literal[False] | None


@dataclass
class Attachment:
    """What a callback or a journal of the program holds on to."""

    meter: Meter
    feeds: bool  # whether it is this one that tells the meter of a Trainer
    job: OwnJob | None = None  # the program's own

    @property
    def run_hash(self) -> str | None:
        """Of the run in Aim; None where there is none."""
        launched, aim = self._launched()
        told = read_document(self.meter.job.forwarder) or {}
        return run_hash_of(str(launched.get("job_id"))) if aim and told.get("state") != "failed" else None

    @property
    def repo(self) -> str | None:
        """Where the run is, secrets hidden; None without Aim."""
        repo = self._launched()[1].get("repo")
        return str(repo) if repo else None

    def _launched(self) -> tuple[dict[str, Any], dict[str, Any]]:
        launched = read_document(self.meter.job.job) or {}
        aim = launched.get("aim")
        return launched, aim if isinstance(aim, dict) else {}

    def close(self) -> None:
        """End the job, if it is the program's own."""
        if self.job is not None:
            self.job.end()


class Attached:
    """What callback and journal tell of their run."""

    _attached: Attachment

    @property
    def run_hash(self) -> str | None:
        """Of the run in Aim, known before the run is made; None where there is none, or none any more."""
        return self._attached.run_hash

    @property
    def repo(self) -> str | None:
        """Where the run is, secrets of a URL hidden; None without Aim."""
        return self._attached.repo


def attach(
    labels: Mapping[str, Any] | None, output_file: Name | None, repo: Repo, results: Name = "results"
) -> Attachment:
    """Join the job, or begin one.

    Raises TypeError for arguments of a wrong type, and OSError for an output file that cannot be written."""
    if labels is not None and not isinstance(labels, Mapping):
        raise TypeError(f"custom_metadata is a {type(labels).__name__}, not a mapping of labels")
    if repo is not False and isinstance(repo, bool):
        raise TypeError("repo is a folder, an aim:// URL, or False for none")
    plain = {_text(key): _plain(value) for key, value in (labels or {}).items()}
    output = usable(Path(os.path.expanduser(output_file))) if output_file is not None else None
    meter = _running()
    if meter is not None:
        if repo:
            print("harness: this job's run goes where the harness was told, not to the program's repo", file=sys.stderr)
        attached = Attachment(meter, feeds=False)
    elif _is_no_rank():
        attached = Attachment(Meter(JobPaths(Path(os.devnull)), 0, None, set()), feeds=False)
    else:
        end_those_that_have_trained()
        folder = Path(os.path.abspath(os.path.expanduser(results)))
        job = OwnJob(_name(), plain, _place(repo, folder), folder)
        attached = Attachment(job.meter, feeds=True, job=job)
    attached.meter.label(plain)
    if output is not None:
        attached.meter.dumps.paths.append(output)
    return attached


def _running() -> Meter | None:
    """The meter of the harness's probe in this process, whichever copy of the probe the program has imported."""
    for name in COPIES:
        found: Meter | None = getattr(sys.modules.get(name), "_active", None)
        if found is not None:
            found.wake()
            if not found.off:
                return found
    return None


def _is_no_rank() -> bool:
    """A process that a rank has started: of a job of the harness, or by `spawn`, while it imports the main module."""
    if os.environ.get(JOB_ID):
        print("harness: this process of the job is no rank, and is not measured", file=sys.stderr)
        return True
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _place(repo: Repo, results: Path) -> str | None:
    """Where the run goes: by default the results folder, if this interpreter has Aim; None: nowhere."""
    if repo is False:
        return None
    if repo is None:
        return str(results) if aim_is_installed() else None
    place = os.fspath(repo)
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _name() -> str:
    stem = Path(sys.argv[0] if sys.argv else "").stem
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem)
    return plain.strip(".-")[:60] or "program"


def _plain(value: Any, level: int = 0) -> Any:
    """As JSON can hold it."""
    if level < DEEPEST:
        if isinstance(value, Mapping):
            return {_text(key): _plain(item, level + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, level + 1) for item in value]
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"{value:#x}"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if abs(value) < float("inf") else str(value)
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose text failed with {type(error).__name__}>"
