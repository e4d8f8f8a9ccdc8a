"""A case whose xdist worker died: pytest-xdist makes a bare report, this adds verdict, properties and log.

JUnit never closes such a case (its phase is `???`): reported as failed call and passed teardown it becomes whole."""

from pathlib import Path
from typing import Any

import pytest

from harness.plugin.session import PlannedCase, State
from harness.reports.properties import Property, labels_of, of_record, printable


class CrashReports:
    """Registered in the controller of a session of cases."""

    def __init__(self, config: pytest.Config, state: State) -> None:
        self._config = config
        self._state = state
        self._crashed: Any = None

    @pytest.hookimpl(optionalhook=True, trylast=True)  # after plugins that may want to run the case again
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        planned = self._state.planned(crashitem)
        if planned is None or report.outcome != "failed":
            return
        worker = report.node.gateway.id
        properties, tail = crash_properties(planned, worker, self._state.options.directory)
        report.when = "call"
        report.location = (report.location[0], None, crashitem.partition("::")[2])
        report.user_properties = properties
        report.sections = [("Captured stdout call", tail)] if tail else []
        report.longrepr = f"{dict(properties)['verdict']}: {dict(properties)['verdict_reason']}\n{report.longrepr}"
        self._crashed = report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if report is not self._crashed:
            return
        self._crashed = None
        teardown: Any = pytest.TestReport(
            nodeid=report.nodeid,
            location=report.location,
            keywords={},
            outcome="passed",
            longrepr=None,
            when="teardown",
            sections=report.sections,
            user_properties=report.user_properties,
        )
        teardown.node = report.node
        self._config.hook.pytest_runtest_logreport(report=teardown)


def crash_properties(planned: PlannedCase, worker: str, session: Path) -> tuple[list[Property], str]:
    """The properties of a crashed case, from the record it left, and the tail of its log."""
    record = _record(session / (planned.directory or ""))
    if record is None:
        reason = f"the pytest worker {worker} died before the case was launched, or left no record that can be read"
        return [("verdict", "unknown"), ("verdict_reason", reason), *labels_of(planned.labels)], ""
    properties = dict(of_record(record, f"{session.name}/{planned.directory}/record.json"))
    if record.state != "finished" or record.verdict is None:
        properties["verdict"] = "killed"
        properties["verdict_reason"] = f"the pytest worker {worker} died while the case ran"
    elif record.verdict.kind == "none":
        properties["verdict"] = "unknown"
        properties["verdict_reason"] = f"the pytest worker {worker} died after the job had ended well"
    return list(properties.items()), printable(record.tail)


def _record(directory: Path) -> Any:
    from harness.record import read_record

    try:
        return read_record(directory / "record.json")
    except (OSError, ValueError):
        return None
