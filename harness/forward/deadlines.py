"""When the forwarder has to be done: after the job's end, after the harness's death, and with one call of Aim."""

import threading
import time

ORPHAN_S = 30.0  # after the harness's death
RESERVE_S = 10.0  # of either, for the verdict, closing and indexing; half of it where that is less


class Deadlines:
    """Shared by the thread that forwards and the one that watches; all times are monotonic seconds."""

    def __init__(self, timeout_s: float, orphan_s: float = ORPHAN_S) -> None:
        self._timeout_s, self._orphan_s = timeout_s, orphan_s
        self._job_ended: float | None = None
        self._orphaned: float | None = None
        self._stage, self._stage_until = "starting", float("inf")
        self.wake = threading.Event()  # something has changed: whoever waits looks again

    def job_ended(self) -> None:
        if self._job_ended is None:
            self._job_ended = time.monotonic()
            self.wake.set()

    def orphaned(self) -> None:
        if self._orphaned is None:
            self._orphaned = time.monotonic()
            self.wake.set()

    @property
    def has_job_ended(self) -> bool:
        return self._job_ended is not None

    @property
    def is_orphaned(self) -> bool:
        return self._orphaned is not None

    @property
    def stage(self) -> str:
        """What is being done, after `while`."""
        return self._stage

    def enter(self, stage: str, limit_s: float = float("inf")) -> None:
        """Say what is done next, and how long it may take even while the job runs."""
        self._stage, self._stage_until = stage, time.monotonic() + limit_s

    def left_s(self) -> float:
        """Seconds until the process has to be gone; infinite while the job and the harness live."""
        return min([until for until, _ in self._limits()], default=float("inf")) - time.monotonic()

    def is_short(self) -> bool:
        """Whether what is left of the time is needed for closing and indexing the run."""
        now = time.monotonic()
        return any(now > until - min(RESERVE_S, limit_s / 2) for until, limit_s in self._limits())

    def passed(self) -> str | None:
        """Which deadline has passed, as a reason; None when none has."""
        now = time.monotonic()
        if self.left_s() <= 0:
            since = "the job's end"
            if self._job_ended is None or now < self._job_ended + self._timeout_s:
                since = "the harness's death"
            limit_s = self._timeout_s if since == "the job's end" else self._orphan_s
            return f"not done {limit_s:g} s after {since}, while {self._stage}"
        if now >= self._stage_until:
            return f"no answer while {self._stage}"
        return None

    def _limits(self) -> list[tuple[float, float]]:
        limits = [(self._job_ended, self._timeout_s), (self._orphaned, self._orphan_s)]
        return [(since + limit_s, limit_s) for since, limit_s in limits if since is not None]
