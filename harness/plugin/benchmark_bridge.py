"""Brings step times into pytest-benchmark's session, with and without xdist: for its JSON, tables and comparison.

pytest-benchmark measures in the process that runs a test and switches itself off under xdist.  The job
measured the step times already, so they travel on the teardown report and are added in the controller's session."""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.plugin.session import State
from harness.plugin.verdicts import STEPS

REGRESSION_EXIT = 6  # pytest's own codes end at 5


class BenchmarkBridge:
    """Registered in the controller, or the only process, of a session of cases."""

    def __init__(self, config: pytest.Config, state: State) -> None:
        self._config = config
        self._state = state
        self._regressed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        steps = getattr(report, STEPS, None)
        planned = self._state.planned(report.nodeid)
        if steps and planned is not None:
            self._add(report.nodeid, planned.case_id, steps, {str(k): str(v) for k, v in report.user_properties})

    def _add(self, nodeid: str, case_id: str, steps: list[float], extra: dict[str, str]) -> None:
        session = self._config.pluginmanager.getplugin("pytest-benchmark")
        if session is None or session.skip or self._config.getoption("benchmark_disable"):
            return
        from pytest_benchmark.stats import Metadata

        named = SimpleNamespace(
            name=nodeid.rpartition("::")[2],
            fullname=nodeid,
            group=None,
            param=case_id,
            params={"tuning_case": case_id},
            extra_info=extra,
            cprofile_stats=None,
            has_error=False,
        )
        options: dict[str, Any] = {"timer": "step_time", "disable_gc": False, "min_rounds": 1}
        options |= {"max_time": 0.0, "min_time": 0.0, "warmup": False}
        metadata = Metadata(named, iterations=1, options=options)
        for seconds in steps:
            metadata.update(seconds)
        session.benchmarks.append(metadata)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self) -> Generator[None]:
        """A regression found by --benchmark-compare-fail is a message and an exit code, not a traceback."""
        try:
            return (yield)
        except Exception as error:
            if type(error).__name__ != "PerformanceRegression":
                raise
            self._regressed = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        result = yield
        if self._regressed and session.exitstatus == 0:
            session.exitstatus = REGRESSION_EXIT
        return result
