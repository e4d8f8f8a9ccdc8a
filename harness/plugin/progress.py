"""One line a running case and interval: its phase, step, speed and loss, read from the end of rank 0's journal.

The terminal reporter's lines are captured with the case when there are no workers, so these go to the real stdout."""

import json
import math
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.journal import open_regular, read_events
from harness.plugin.session import PlannedCase, State
from harness.probe.layout import JobPaths, attempt, attempts
from harness.reports.properties import printable
from harness.reports.tables import format_step
from harness.units import format_seconds

PATIENCE_S = 2.0  # a thread that hangs on a dead file system must not keep the session
AT_MOST = 256 * 1024  # bytes read of a journal at once: a line tells the newest, not everything


def interval_s(config: pytest.Config) -> float:
    """Seconds between two lines of a case; 0: none."""
    try:
        interval = config.getini("harness_progress_interval")
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(f"harness_progress_interval: no number of seconds: {error}") from error
    if interval is None:
        return 5.0 if sys.stdout.isatty() else 60.0
    return max(0.0, float(interval))


@dataclass
class Follower:
    """Reads what one running case has added to its journal since the last look."""

    name: str
    directory: Path
    waits_for: str
    started: float = field(default_factory=time.monotonic)
    job: Path | None = None
    offset: int = 0
    seen: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        self._read()
        elapsed = format_seconds(time.monotonic() - self.started)
        return f"harness: {self.name}: {elapsed}: {self._now()}"

    def _now(self) -> str:
        if self.job is None:
            return self._waits_for()
        if JobPaths(self.job).end.is_file():  # it is judged, or the case waits to be tried again
            return f"{self.job.name} has ended"
        return describe(self.seen)

    def _waits_for(self) -> str:
        """Who holds what the case waits for, as its lease has journalled it; else what it needs."""
        told = [event for _, event in read_events(self.directory.parent / "leases.jsonl")]
        mine = [event for event in told if str(event.get("what", "")).startswith(f"{self.name} (")]
        if mine and mine[-1]["e"] == "waiting":
            return printable(f"waiting: {'; '.join(map(str, mine[-1].get('holders') or []))}")
        return self.waits_for

    def _read(self) -> None:
        job = newest_attempt(self.directory)
        if job is None:
            return
        if job != self.job:
            self.job, self.offset, self.seen = job, 0, {}
        try:
            with open_regular(JobPaths(job).events(0)) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.offset, size - AT_MOST))
                text = file.read(AT_MOST)
                start = file.tell() - len(text)
        except OSError:
            return
        whole, newline, _ = text.rpartition(b"\n")  # the line that is being written waits for the next look
        self.offset = start + len(whole) + len(newline)
        for line in whole.splitlines():
            note(self.seen, line)


def newest_attempt(directory: Path) -> Path | None:
    """The job directory of a case's newest attempt; None before launch."""
    numbers = attempts(directory)
    return attempt(directory, numbers[-1]).root if numbers else None


def note(seen: dict[str, Any], line: bytes) -> None:
    """Keep what a line of the journal says about how far the job is; a line that is none is passed over."""
    try:
        event = json.loads(line)
        name = event["e"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if name == "phase":
        seen["phase"] = event.get("name")
    elif name == "segment":
        seen["max_steps"] = event.get("max_steps")
    elif name == "step":
        seen.update({key: event.get(key) for key in ("step", "seconds", "loss")})


def describe(seen: dict[str, Any]) -> str:
    """What is known of a job, in words."""
    parts = [str(seen.get("phase") or "starting")]
    if isinstance(seen.get("step"), int):
        total = seen.get("max_steps")
        parts.append(f"step {seen['step']}{f' of {total}' if isinstance(total, int) else ''}")
    if (seconds := _number(seen.get("seconds"))) is not None:
        parts.append(f"{format_step(seconds)} a step")
    if (loss := _number(seen.get("loss"))) is not None:
        parts.append(f"loss {loss:.4g}")
    return printable(", ".join(parts))


def _number(value: object) -> float | None:
    """A journal's number; None for what is none, or infinite."""
    number = float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) else math.nan
    return number if math.isfinite(number) else None


class Progress:
    """The thread that prints; it starts with the first case and ends with the session."""

    def __init__(self, config: pytest.Config, state: State, interval: float) -> None:
        self._state = state
        self._interval = interval
        self._fd = os.dup(1)  # capture is suspended between collecting and running
        self._running: dict[str, Follower] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._print, name="harness-progress", daemon=True)
        config.add_cleanup(self._close)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        planned = self._state.planned(nodeid)
        if planned is None or planned.directory is None or planned.skip is not None:
            return
        directory = self._state.options.directory / planned.directory
        self._running[nodeid] = Follower(planned.case_id, directory, waits_for(planned))
        if not self._thread.ident:
            self._thread.start()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # also comes for a case whose worker died, which has no logfinish
            self._running.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        self._stop.set()

    def _print(self) -> None:
        while not self._stop.wait(self._interval):
            lines = [follower.line() for follower in list(self._running.values())]
            if not lines:
                continue
            with suppress(OSError):  # nobody reads any more
                # A newline first: the cursor may stand behind pytest's dots.
                os.write(self._fd, ("\n" + "\n".join(lines) + "\n").encode(errors="replace"))

    def _close(self) -> None:
        self._stop.set()
        if self._thread.ident:
            self._thread.join(PATIENCE_S)
        if not self._thread.is_alive():  # else the number might become another file's, and be written to
            os.close(self._fd)


def waits_for(planned: PlannedCase) -> str:
    """What a case that has no job yet does."""
    if planned.gpus:
        return f"starting, or waiting for {planned.gpus} GPU{'s' if planned.gpus > 1 else ''}"
    return f"starting, or waiting for {'a CPU slot' if planned.processes == 1 else 'CPU slots'}"
