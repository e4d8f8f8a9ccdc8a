"""What a session of cases prints: its first lines, and the table by verdict at the end."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import pytest

from harness.forward.start import absent
from harness.plugin.junit import JunitFiles
from harness.plugin.options import Options
from harness.plugin.session import Plan, PlannedCase, State
from harness.probe.redact import redact
from harness.reports.results import CaseResult, Outcome, judged, measured_any
from harness.reports.tables import one_line, result_table

SHOWN_PER_REASON = 3


def first_lines(plan: Plan, options: Options, *, to_run: bool) -> list[str]:
    """How many cases, what they need, which cannot run and why, and where results and runs go."""
    cases = list(plan.cases.values())
    good = [case for case in cases if case.error is None]
    bad = len(cases) - len(good)
    lines = [f"harness: {_counted(len(good), 'case')}{_needs(good)}; this machine can lease {_slots(plan)}"]
    if bad:
        lines.append(f"harness: {_counted(bad, 'scenario file')} that cannot be used (reported as failures)")
    for reason, names in _by_reason(good).items():
        shown = ", ".join(names[:SHOWN_PER_REASON]) + (", ..." if len(names) > SHOWN_PER_REASON else "")
        lines.append(f"harness: to skip {_counted(len(names), 'case')} ({shown}): {one_line(reason, 300)}")
    if to_run:
        lines.append(f"harness: results in {options.directory}")
        if options.aim is not None:
            lines.append(f"harness: runs go to the Aim repo {redact(options.aim.repo)}")
        elif options.aim_absent:
            lines.append(f"harness: {absent()}")
    return lines


def _needs(cases: Sequence[PlannedCase]) -> str:
    needs = Counter((case.gpus, 0 if case.gpus else case.processes) for case in cases)
    parts = [
        f"{number} on {_counted(gpus, 'GPU')}" if gpus else f"{number} on CPU in {_counted(processes, 'process')}"
        for (gpus, processes), number in sorted(needs.items())
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _slots(plan: Plan) -> str:
    return f"{_counted(plan.slots.gpus, 'GPU')} and {_counted(plan.slots.cpus, 'CPU slot')}"


def _by_reason(cases: Sequence[PlannedCase]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for case in cases:
        if case.skip is not None:
            reasons.setdefault(case.skip, []).append(case.case_id)
    return reasons


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


class Results:
    """Collects what became of each case from its reports (controller, or the only process)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._outcomes: dict[str, Outcome] = {}
        self._messages: dict[str, str] = {}
        self.results: dict[str, CaseResult] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._state.planned(report.nodeid) is None:
            return
        outcome = outcome_of(report)
        if outcome is not None:
            self._outcomes[report.nodeid] = outcome
            self._messages[report.nodeid] = _message(report)
        if report.when == "teardown":
            properties = {str(name): str(value) for name, value in report.user_properties}
            outcome, message = self._outcomes.get(report.nodeid), self._messages.get(report.nodeid, "")
            outcome = judged(outcome or "error", properties)
            self.results[report.nodeid] = CaseResult(_name(report.nodeid), outcome, properties, message)


def outcome_of(report: pytest.TestReport) -> Outcome | None:
    """What a phase's report says of its case; None where it says nothing new."""
    if report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "passed" if report.when == "call" else None


def _message(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext.strip().rpartition("\n")[2]


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2] or nodeid


class Written(Protocol):
    """A file of the session."""

    @property
    def trouble(self) -> str | None:
        """Why it could not be written."""
        ...


class Closing:
    """Prints the table by verdict and where the results are."""

    def __init__(self, state: State, results: Results, junit: JunitFiles, session_file: Written) -> None:
        self._state, self._results, self._junit, self._session_file = state, results, junit, session_file

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.get_verbosity() < -1:
            return
        results = list(self._results.results.values())
        terminalreporter.section("fine-tuning", "=")
        for line in result_table(results):
            terminalreporter.write_line(line)
        assert self._state.plan is not None
        cut_off = len(self._state.plan.cases) - len(results)
        if cut_off:
            terminalreporter.write_line(f"{_counted(cut_off, 'case')} did not finish", yellow=True, bold=True)
        if not measured_any(results):
            text = "NOTHING WAS MEASURED: no case was launched and passed, whatever the exit code says"
            terminalreporter.write_line(text, red=True, bold=True)
        terminalreporter.write_line(f"results: {self._state.options.directory}")
        terminalreporter.write_line(f"junit:   {', '.join(str(path) for path in self._junit.paths)}")
        for written in (self._junit, self._session_file):
            if written.trouble:
                terminalreporter.write_line(f"could not be written: {written.trouble}", red=True, bold=True)
