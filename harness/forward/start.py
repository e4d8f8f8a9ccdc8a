"""Starts the forwarder beside a job and collects what it says; a job's verdict never depends on it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from harness.forward.report import SCHEMA, STILL
from harness.probe.companions import AIM_REPO, AIM_TIMEOUT_S, aim_is_installed, quiet_environment
from harness.probe.layout import JobPaths
from harness.probe.reading import read_document
from harness.probe.redact import redact
from harness.probe.writing import write_document

SCRIPT = Path(__file__).with_name("__main__.py")
REAP_S = 5.0  # a process that SIGKILL does not end hangs in the kernel; nobody waits for it longer


@dataclass(frozen=True)
class Aim:
    """Where runs go: a folder, or an aim:// URL; `python` has Aim installed; `timeout_s` counts from the job's end."""

    repo: str = field(repr=False)  # a URL may hold a secret
    python: str
    timeout_s: float = AIM_TIMEOUT_S

    def section(self, index_lock: Path | None = None) -> dict[str, Any]:
        """What job.json holds under `aim`.  Without a lock file of its own the repo has one beside `.aim`."""
        return {
            "repo": redact(self.repo),
            "timeout_s": self.timeout_s,
            "index_lock": str(index_lock) if index_lock else None,
        }


def choose(
    repo: str | None, python: str | None, timeout_s: float | None, *, off: bool, default: Path, base: Path
) -> Aim | None:
    """Where the runs of a session go: `default` unless a repo is named; relative paths are below `base`.

    None where nothing is forwarded: told so, or nobody asked for a repo or an interpreter and this one has no Aim.
    Raises ValueError for options that contradict each other."""
    if off:
        named = [("--aim-repo", repo), ("--aim-python", python), ("--aim-timeout", timeout_s)]
        for option, value in named:
            if value is not None:
                raise ValueError(f"--no-aim and {option} contradict each other; leave one of them out")
        return None
    if repo is None and python is None and not aim_is_installed():
        return None
    python = python or sys.executable
    if os.sep in python:  # the forwarder starts in another folder; a bare name is looked up on PATH
        python = absolute(python, base)
    return Aim(absolute(repo or str(default), base), python, timeout_s or AIM_TIMEOUT_S)


def absent() -> str:
    """What to say where nothing is forwarded although nobody said so."""
    return (
        f"nothing goes to Aim: it is not installed in {sys.executable}; pip install 'aim>=3.29,<4' (Python 3.10 to "
        "3.12), name an interpreter that has it with --aim-python, or say --no-aim"
    )


def absolute(name: str, base: Path) -> str:
    """A path that means the same in every folder; an aim:// URL does."""
    return name if "://" in name else os.path.abspath(base / os.path.expanduser(name))


class Forwarder:
    """A forwarder that was started, or could not be; `wait` says which.

    It holds nothing of the job's: no lease, no place under the supervisor; GPUs are free before it ends."""

    def __init__(self, job: JobPaths, repo: str, process: "subprocess.Popen[bytes] | None", error: str | None) -> None:
        self._job, self._repo = job, repo
        self._process, self._error = process, error
        self._started = time.time()
        self._last_word: dict[str, Any] | None = None

    @classmethod
    def start(cls, job: JobPaths, aim: Aim) -> Self:
        """Start it for the job directory, whose job.json is there.  Never raises: `wait` tells of a failure."""
        job = JobPaths(job.root.absolute())
        repo = absolute(aim.repo, Path.cwd())
        try:
            job.forwarder.unlink(missing_ok=True)
            log = os.open(job.forwarder_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                process = subprocess.Popen(
                    [aim.python, "-I", str(SCRIPT), str(job.root)],
                    cwd=job.root,  # Aim makes its database by `python -m`: not among the user's modules
                    env=quiet_environment(os.environ) | {AIM_REPO: repo},
                    stdin=subprocess.PIPE,  # its end tells the forwarder that the harness has died
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal is not for it
                )
            finally:
                os.close(log)
        except (OSError, ValueError) as error:
            return cls(job, redact(repo), None, f"the forwarder could not be started: {error}")
        return cls(job, redact(repo), process, None)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_done(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def told(self) -> dict[str, Any]:
        """What reached Aim, as far as it is known: what `wait` has returned, before that what forwarder.json says."""
        return self._last_word or self._document(read_document(self._job.forwarder) or {})

    def wait(self, deadline_s: float) -> dict[str, Any]:
        """Wait for its end, kill it after `deadline_s`, and return what forwarder.json says.

        Where it could not write the end itself (killed, never started, disk full), `reason` says so, and the file, if
        it can be written, too."""
        self._last_word = self._wait(deadline_s)
        return self._last_word

    def _wait(self, deadline_s: float) -> dict[str, Any]:
        process = self._process
        if process is None:
            return self._ended({}, self._error or "the forwarder was not started")
        late = False
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:  # after KeyboardInterrupt, too
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # Aim makes a repo's database in a process of its own
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(REAP_S)
            if process.stdin is not None:
                process.stdin.close()
        document = read_document(self._job.forwarder)
        if document is not None and document.get("ended") is not None:
            return document
        if late:
            return self._ended(document or {}, "the forwarder was not done in time and was killed")
        return self._ended(
            document or {},
            f"the forwarder ended early, {_ending(process.returncode)}; see {self._job.forwarder_log.name}",
        )

    def _document(self, document: dict[str, Any]) -> dict[str, Any]:
        """What the file says, or would if the process had begun to write it."""
        return {
            "schema": SCHEMA,
            "state": "partial",
            "reason": STILL,
            "run_hash": None,
            "repo": self._repo,
            "tracked": 0,
            "skipped": 0,
            "indexed": False,
            "aim": None,
            "started": self._started,
            "ended": None,
        } | document

    def _ended(self, document: dict[str, Any], reason: str) -> dict[str, Any]:
        told = self._document(document)
        told |= {"state": "partial" if told["run_hash"] else "failed", "reason": redact(reason), "ended": time.time()}
        with contextlib.suppress(OSError):
            write_document(self._job.forwarder, told, durable=True)
        return told


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
