"""Jobs for the tests of supervisor and engine: a job directory, and a process tree that does not want to end."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.probe.layout import JobPaths

END_KEYS = ["schema", "why", "signal", "exit_code", "started", "ended", "clean", "killed", "error", "oom_kill", "hang"]
DEADLINE_S = 60.0  # only a hanging test waits this long; the machine may be very busy

# A rank that ignores SIGTERM; likewise a grandchild in a session of its own, and a daemon that has left its parents.
# When all three run, `ready` appears; then the main process exits with the code given, or stays until SIGTERM.
STUBBORN = """
import os, signal, sys, time
folder, code = sys.argv[1:3]

def stay(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{folder}/{name}.pid", "w").close()
    time.sleep(600)
    os._exit(0)

def forked():
    return os.fork() == 0

if forked():
    stay("rank")
if forked():
    if forked():
        os.setsid()
        stay("session")
    time.sleep(600)
if forked():
    os.setsid()
    if forked():
        stay("daemon")
    os._exit(0)
while not all(os.path.exists(f"{folder}/{name}.pid") for name in ("rank", "session", "daemon")):
    time.sleep(0.01)
open(f"{folder}/ready", "w").close()
if code != "stay":
    os._exit(int(code))
time.sleep(600)
"""


def argv_of(job: JobPaths) -> list[str]:
    """The command that `make_job` was given."""
    argv: list[str] = json.loads(job.job.read_text())["command"]
    return argv


def make_job(root: Path, command: list[str], **fields: Any) -> JobPaths:
    """A job directory with its job.json."""
    job = JobPaths(root)
    root.mkdir(exist_ok=True)
    document = {
        "schema": 1,
        "job_id": f"test-{os.getpid()}-{root}",
        "command": command,
        "cwd": None,
        "time_limit_s": None,
        "grace_s": 0.3,
        "sampler": None,
        "files": {
            "supervisor_journal": str(job.supervisor_journal()),
            "launcher_log": str(job.launcher_log()),
            "end": str(job.end),
        },
    }
    job.job.write_text(json.dumps(document | fields))
    job.node().mkdir(exist_ok=True)
    return job


def stubborn(root: Path, code: int | str = "stay") -> list[str]:
    """The command of the stubborn tree; its files appear in `root`."""
    root.mkdir(exist_ok=True)
    script = root / "stubborn.py"
    script.write_text(STUBBORN)
    return [sys.executable, "-S", str(script), str(root), str(code)]


def read_end(job: JobPaths) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(job.end.read_text())
    return document


def events(job: JobPaths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.supervisor_journal().read_text().splitlines()]


def processes_naming(text: str | Path) -> list[int]:
    """Living processes whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()  # empty for a zombie
            except OSError:
                continue
            if str(text).encode() in line:
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Wait until it holds; how long that takes is no part of a test."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "did not come to hold"
        time.sleep(0.02)
