"""From a record's verdict to pytest's outcome: what a case's report says and carries.

TuningFailure(verdict): raised by `tuning.check()`.  The kinds that xfail (`gpu_oom` and `nccl` unless the session says
else) become xfail, all others stay failures, and so do expectations that are not met."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.plugin.session import STATE
from harness.reports.policy import outcome_of, unmet
from harness.reports.properties import NOT_RUN, Property, not_run, of_record, printable

if TYPE_CHECKING:
    from harness.record import Record

STEPS = "harness_steps"  # report attribute: the case's step times, for pytest-benchmark on the controller
NAMES = pytest.StashKey[set[str]]()  # names of the properties that are ours
TAIL = pytest.StashKey[str]()
STEP_TIMES = pytest.StashKey[list[float]]()
SEEN = pytest.StashKey[tuple[str, str]]()  # verdict and reason of a case that left no record


class TuningFailure(Exception):
    """A case whose job did not end well, or not as expected; `str()` is `kind: reason`, or says what was expected.

    `details` is the text for a person."""

    def __init__(self, record: "Record", path: Path) -> None:
        self.kind, self.reason = _verdict_of(record)
        self.record = record
        self.path = path
        self.expected = str(record.expected) if record.expected is not None else None
        super().__init__(unmet(self.kind, self.expected, self.reason) or f"{self.kind}: {self.reason}")

    @property
    def details(self) -> str:
        verdict = self.record.verdict
        lines = [str(self)]
        if verdict is not None:
            lines += [f"  {_place(fact.file, fact.line)}: {fact.text}" for fact in verdict.evidence]
            lines += [f"  hint: {verdict.hint}"] if verdict.hint else []
            lines += [
                f"  set aside: {_place(fact.file, fact.line)}: {fact.kind}: {fact.text}" for fact in verdict.secondary
            ]
        return printable("\n".join([*lines, f"record: {self.path}"]))


def _place(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file


def _verdict_of(record: "Record") -> tuple[str, str]:
    if record.verdict is None:
        return "unknown", "the record holds no verdict"
    return str(record.verdict.kind), record.verdict.reason


def note_record(item: pytest.Item, record: "Record", path: str, steps: list[float]) -> None:
    """Keep what a case's reports are to carry; `path` is the record's, from the folder of all sessions."""
    _replace(item, of_record(record, path))
    if record.tail:
        item.stash[TAIL] = printable(record.tail)
        item.add_report_section("call", "stdout", item.stash[TAIL])  # JUnit's system-out takes these sections only
    item.stash[STEP_TIMES] = [float(step) for step in steps]


def note_not_run(item: pytest.Item, reason: str, labels: Mapping[str, str]) -> None:
    _replace(item, not_run(reason, labels))


def _replace(item: pytest.Item, properties: Iterable[Property]) -> None:
    """A case that is tried again has the properties of its last try only."""
    ours = item.stash.get(NAMES, set())
    item.user_properties[:] = [(name, value) for name, value in item.user_properties if name not in ours]
    item.user_properties.extend(properties)
    item.stash[NAMES] = {name for name, _ in properties}


def edit_report(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Bring the verdict into a report of a case, at every phase."""
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, TuningFailure):
        report.longrepr = error.details
        if outcome_of(error.kind, error.expected, item.config.stash[STATE].options.xfail_kinds) == "xfailed":
            report.outcome = "skipped"
            report.wasxfail = printable(str(error))
    elif call.when != "teardown" and not report.passed:
        item.stash[SEEN] = _left_no_record(report, error)
    if call.when == "teardown":
        _complete(item, report)


def _left_no_record(report: pytest.TestReport, error: BaseException | None) -> tuple[str, str]:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(getattr(report, "wasxfail", ""))
        return NOT_RUN, reason.removeprefix("Skipped: ")
    return "unknown", f"the harness or the test failed: {type(error).__name__}: {error}"


def _complete(item: pytest.Item, report: pytest.TestReport) -> None:
    if NAMES not in item.stash:
        verdict, reason = item.stash.get(SEEN, (NOT_RUN, "the test launched nothing"))
        item.stash[NAMES] = {"verdict", "verdict_reason"}
        item.user_properties += [("verdict", verdict), ("verdict_reason", printable(reason))]
    report.user_properties = list(item.user_properties)
    if steps := item.stash.get(STEP_TIMES, None):
        setattr(report, STEPS, steps)
