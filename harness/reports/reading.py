"""Finds out what became of a session's cases: from a junit.xml, a session's folder, or the folder of all sessions.

In a session's folder nothing is lost: what junit.xml does not have is read from the cases' records, and what has
neither is a case that did not finish."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.reports.junit_file import JunitFile, ReportError, read_junit
from harness.reports.policy import XFAIL_KINDS, outcome_of
from harness.reports.properties import NOT_RUN, Property, of_record
from harness.reports.results import CaseResult, Outcome

NO_END = "no end was recorded: the session was cut off, or still runs"


@dataclass(frozen=True)
class Reading:
    """The results that were found, and where."""

    source: Path
    results: tuple[CaseResult, ...]


def read_results(path: Path) -> Reading:
    """Raises ReportError for a path that holds no results, or none that can be read."""
    try:
        if not path.is_dir():
            return Reading(path, _of_file(read_junit(path)))
        folder = _session_folder(path)
        return Reading(folder, tuple(_of_folder(folder)))
    except OSError as error:
        raise ReportError(f"{error.filename or path}: {error.strerror or error}") from error
    except (ValueError, RuntimeError) as error:  # a null byte in a path, links in a circle
        raise ReportError(f"{path}: {error}") from error


def _session_folder(path: Path) -> Path:
    for folder in (path, path / "latest"):
        if (folder / "cases.json").is_file():
            return folder.resolve()
    raise ReportError(f"{path}: neither a session's folder (no cases.json) nor a results folder (no latest)")


def _of_file(report: JunitFile) -> tuple[CaseResult, ...]:
    known = sum("verdict" in result.properties for result in report.results)
    expected = report.properties.get("harness_cases", "")
    lost = int(expected) - known if re.fullmatch("[0-9]{1,9}", expected) else 0
    results = list(report.results)
    if lost > 0:
        results.append(CaseResult(f"{lost} more", "unfinished", {}, NO_END))
    if report.cut_off is not None and lost <= 0:
        results.append(CaseResult("unknown cases", "unfinished", {}, f"the report is cut off ({report.cut_off})"))
    return tuple(results)


def _of_folder(folder: Path) -> Iterator[CaseResult]:
    junit = folder / "junit.xml"
    reported = list(read_junit(junit).results) if junit.is_file() else []
    yield from reported
    xfail_kinds = _xfail_kinds(folder)
    for nodeid, planned in _planned(folder).items():
        if not any(_is_case(result, nodeid) for result in reported):
            yield _unreported(folder, nodeid, planned, xfail_kinds)


def _xfail_kinds(folder: Path) -> list[str]:
    """The kinds that xfail in the session."""
    try:
        return [str(kind) for kind in json.loads((folder / "session.json").read_bytes())["xfail_kinds"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # damaged, or of an older harness
        return list(XFAIL_KINDS)


def _planned(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads((folder / "cases.json").read_bytes())
        return {str(nodeid): dict(planned) for nodeid, planned in document["cases"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError(f"{folder / 'cases.json'}: no plan of a session: {error}") from error


def _is_case(result: CaseResult, nodeid: str) -> bool:
    """JUnit names a test by a dotted class name, with the user's prefix before it, and the name."""
    path, _, names = nodeid.partition("::")
    classes, _, name = names.partition("[")[0].rpartition("::")
    dotted = path.removesuffix(".py").replace("/", ".") + (f".{classes.replace('::', '.')}" if classes else "")
    whole = name + names[len(names.partition("[")[0]) :]
    return result.name == whole and (result.where == dotted or result.where.endswith(f".{dotted}"))


def _unreported(folder: Path, nodeid: str, planned: dict[str, Any], xfail_kinds: Collection[str]) -> CaseResult:
    name = nodeid.rpartition("::")[2] if "[" not in nodeid else nodeid.partition("::")[2]
    outcome, properties = _of_record(folder, str(planned.get("directory")), xfail_kinds)
    properties = properties or [("verdict", NOT_RUN), ("verdict_reason", NO_END), ("case", str(planned.get("case_id")))]
    return CaseResult(name, outcome, dict(properties))


def _of_record(folder: Path, directory: str, xfail_kinds: Collection[str]) -> tuple[Outcome, list[Property]]:
    from harness.record import read_record

    path = folder / directory / "record.json"
    try:
        if not path.is_file():  # it may be a pipe, and nobody at its other end
            return "unfinished", []
        record = read_record(path)
    except (OSError, ValueError, RecursionError):
        return "unfinished", []
    properties = of_record(record, f"{folder.name}/{directory}/record.json")
    if record.state == "running" or record.verdict is None:
        return "unfinished", [*properties, ("verdict", "unknown"), ("verdict_reason", NO_END)]
    return outcome_of(record.verdict.kind, record.expected, xfail_kinds), properties
