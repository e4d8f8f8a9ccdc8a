"""Starts the forwarder beside a job and collects what it says; a job's verdict never depends on it."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from harness.forward.report import FILE, SCHEMA, write_document
from harness.probe.layout import JobPaths
from harness.probe.reading import read_document
from harness.probe.redact import redact

REPO = "HARNESS_AIM_REPO"
LOG_FILE = "forwarder.log"
SCRIPT = Path(__file__).with_name("__main__.py")
REAP_S = 5.0  # a process that SIGKILL does not end hangs in the kernel; nobody waits for it longer


@dataclass(frozen=True)
class Aim:
    """Where runs go: a folder, or an aim:// URL; `python` has Aim installed; `timeout_s` counts from the job's end."""

    repo: str = field(repr=False)  # a URL may hold a secret
    python: str
    timeout_s: float = 30.0

    def section(self, index_lock: Path | None = None) -> dict[str, Any]:
        """What job.json holds under `aim`.  Without a lock file of its own the repo has one beside `.aim`."""
        return {"timeout_s": self.timeout_s, "index_lock": str(index_lock) if index_lock else None}


class Forwarder:
    """A forwarder that was started, or could not be; `wait` says which.

    It holds nothing of the job's: no lease, no place under the supervisor; GPUs are free before it ends."""

    def __init__(self, folder: Path, repo: str, process: "subprocess.Popen[bytes] | None", error: str | None) -> None:
        self._folder, self._repo = folder, repo
        self._process, self._error = process, error
        self._started = time.time()

    @classmethod
    def start(cls, job: JobPaths, aim: Aim) -> Self:
        """Start it for the job directory, whose job.json is there.  Never raises: `wait` tells of a failure."""
        folder = job.root.absolute()
        repo = aim.repo if "://" in aim.repo else os.path.abspath(os.path.expanduser(aim.repo))
        try:
            (folder / FILE).unlink(missing_ok=True)
            log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                process = subprocess.Popen(
                    [aim.python, "-I", str(SCRIPT), str(folder)],
                    env={**os.environ, REPO: repo},
                    stdin=subprocess.PIPE,  # its end tells the forwarder that the harness has died
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal is not for it
                )
            finally:
                os.close(log)
        except (OSError, ValueError) as error:
            return cls(folder, redact(repo), None, f"the forwarder could not be started: {error}")
        return cls(folder, redact(repo), process, None)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def wait(self, deadline_s: float) -> dict[str, Any]:
        """Wait for its end, kill it after `deadline_s`, and return what forwarder.json says.

        Where it could not write the end itself (killed, never started, disk full), `reason` says so, and the file, if
        it can be written, too."""
        process = self._process
        if process is None:
            return self._told({}, self._error or "the forwarder was not started")
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
        document = read_document(self._folder / FILE)
        if document is not None and document.get("ended") is not None:
            return document
        if late:
            return self._told(document or {}, f"the forwarder was not done after {deadline_s:g} s and was killed")
        return self._told(document or {}, f"the forwarder ended early, {_ending(process.returncode)}; see {LOG_FILE}")

    def _told(self, document: dict[str, Any], reason: str) -> dict[str, Any]:
        told = {
            "schema": SCHEMA,
            "run_hash": None,
            "repo": self._repo,
            "tracked": 0,
            "skipped": 0,
            "indexed": False,
            "aim": None,
            "started": self._started,
        } | document
        told |= {"state": "partial" if told["run_hash"] else "failed", "reason": redact(reason), "ended": time.time()}
        with contextlib.suppress(OSError):
            write_document(self._folder / FILE, told, durable=True)
        return told


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
