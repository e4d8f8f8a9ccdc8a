"""Forwarders whose jobs have ended: they close and index their runs in Aim while the next case is measured."""

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

from harness.forward.start import Forwarder
from harness.probe.layout import JobPaths
from harness.record import read_record, write_record

INTERRUPTED_S = 10.0  # what forwarders get, together, to bring the end of interrupted jobs into Aim
MARGIN_S = 5.0  # a forwarder ends by itself at its time-out; then it is killed


@dataclass(frozen=True)
class _Waiting:
    forwarder: Forwarder
    job: Path  # job directory
    until: float  # monotonic seconds


class Outstanding:
    """Collects what they say, each into the `aim` of its case's record; none is left behind `close`."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def add(self, forwarder: Forwarder, job: JobPaths, timeout_s: float) -> None:
        """Expect the end of a forwarder whose job has ended now."""
        self._waiting.append(_Waiting(forwarder, job.root, time.monotonic() + timeout_s + MARGIN_S))

    def collect(self) -> None:
        """Take those that are done, and those whose time is over; waits for none."""
        for each in list(self._waiting):
            if each.forwarder.is_done or time.monotonic() >= each.until:
                self._take(each, 0.0)

    def close(self, *, interrupted: bool) -> None:
        """Wait for all, for each until its time is over; interrupted, not longer than INTERRUPTED_S together.

        Ctrl-C ends the waiting, and nothing else."""
        until = time.monotonic() + (INTERRUPTED_S if interrupted else math.inf)
        while self._waiting:
            each = self._waiting[0]
            try:
                self._take(each, max(0.0, min(until, each.until) - time.monotonic()))
            except KeyboardInterrupt:
                until = 0.0

    def _take(self, each: _Waiting, deadline_s: float) -> None:
        told = each.forwarder.wait(deadline_s)
        path = each.job.parent / "record.json"
        with contextlib.suppress(OSError, ValueError):  # removed by a program, or a full disk: forwarder.json says it
            record = read_record(path)
            # A retry has a forwarder of its own, and `aim` is that of the last attempt.
            if record.attempts and record.attempts[-1].directory == each.job.name:
                write_record(record.model_copy(update={"aim": told}), path)
        self._waiting.remove(each)
