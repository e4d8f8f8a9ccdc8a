"""The seam between pytest and what runs a case: the plugin asks a `Runner`; a conftest may put its own in its place."""

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from harness.plugin.options import Options

if TYPE_CHECKING:
    from harness.attempt import Outstanding
    from harness.record import Record
    from harness.scenario import Case


@dataclass(frozen=True)
class Slots:
    """What this machine can lease."""

    gpus: int
    cpus: int

    @property
    def workers(self) -> int:
        """How many cases can run at once at best: `-n auto`."""
        return max(1, self.gpus or self.cpus)


class Runner(Protocol):
    """Decides whether a case can run here, and runs it.  One object a process, made once cases are collected."""

    @property
    def slots(self) -> Slots: ...

    def missing(self, case: "Case") -> str | None:
        """What the case needs and this machine lacks; None when it can run."""
        ...

    def run(self, case: "Case", *, nodeid: str, case_dir: Path) -> "Record":
        """Launch the case, wait for it, and return its finished record, whatever became of the job.

        It sees to the scenario's `retries`, and says in `expected` what `expect` comes to on the GPUs of the case.
        Raises harness.leases.BusyError when somebody else's processes do not leave what the case needs."""
        ...

    def step_times(self, record: "Record", case_dir: Path) -> list[float]:
        """Seconds of each measured step of rank 0, in order."""
        ...


# A conftest may put a factory of its own here, in pytest_configure, to run cases by other means.
RUNNER_FACTORY = pytest.StashKey[Callable[[pytest.Config, Options], Runner]]()


class AttemptRunner:
    """Runs cases as jobs on this machine."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        from harness import attempt
        from harness.leases import lock_dir

        self._attempt = attempt
        self._outstanding = attempt.Outstanding()
        self._settings = attempt.Settings(
            session=options.session,
            session_dir=options.directory,
            base_dir=config.invocation_params.dir,
            lock_dir=lock_dir(os.environ),
            labels=options.labels,
            found_labels=attempt.found_labels(config.invocation_params.dir),
            time_limit_s=options.time_limit_s,
            sample_interval_s=options.sample_interval_s or attempt.SAMPLE_INTERVAL_S,
            retry_wait_s=attempt.RETRY_WAIT_S if options.retry_wait_s is None else options.retry_wait_s,
            aim=options.aim,
            outstanding=self._outstanding,
        )
        self._machine = attempt.Machine.read(os.environ, options.gpus)
        config.pluginmanager.register(AimEnd(self._outstanding), "harness-aim")

    @property
    def slots(self) -> Slots:
        return Slots(gpus=len(self._machine.gpus), cpus=len(self._machine.cpus))

    def missing(self, case: "Case") -> str | None:
        return self._attempt.missing(case, self._machine)

    def run(self, case: "Case", *, nodeid: str, case_dir: Path) -> "Record":
        try:
            return self._attempt.run_case(
                case, self._settings, self._machine, nodeid=nodeid, case_dir=case_dir, on_wait=_say
            )
        finally:
            self._outstanding.collect()

    def step_times(self, record: "Record", case_dir: Path) -> list[float]:
        return self._attempt.step_times(record, case_dir)


class AimEnd:
    """Waits at the end of the session for the forwarders of its last cases."""

    def __init__(self, outstanding: "Outstanding") -> None:
        self._outstanding = outstanding

    # The innermost wrapper: after the reports are written, and before a worker tells the controller that it has ended.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Generator[None, None, None]:
        try:
            yield
        finally:
            self._outstanding.close(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)


def _say(text: str) -> None:
    print(f"harness: {text}", flush=True)  # captured with the case, so it stands in its system-out
