"""Reads junit.xml, also a hostile or a cut-off one: no entities, no document type, a limit on its size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from harness.reports.results import CaseResult, Outcome, judged

MAX_BYTES = 64 * 2**20
SEVERITY: tuple[Outcome, ...] = ("skipped", "passed", "xfailed", "error", "failed")


class ReportError(Exception):
    """A file that cannot be read as a report; the text names it."""


@dataclass(frozen=True)
class JunitFile:
    """The cases of a junit.xml."""

    results: tuple[CaseResult, ...]
    properties: Mapping[str, str] = field(default_factory=dict)  # the suite's
    cut_off: str | None = None  # where the text ends in the middle; the cases before that are there


def read_junit(path: Path) -> JunitFile:
    """Raises ReportError for a file that is missing, too large, no XML, or has a document type."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ReportError(f"{path}: {size:,} bytes, the limit is {MAX_BYTES:,}")
        return parse_junit(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from error


def parse_junit(document: bytes) -> JunitFile:
    """Raises ValueError for text that is no JUnit report."""
    root, cut_off = _parse(document)
    if root.tag not in ("testsuites", "testsuite"):
        raise ValueError(f"no JUnit report: its first element is <{root.tag}>")
    merged: dict[tuple[str, str], CaseResult] = {}
    for element in root.iter("testcase"):
        if element.get("name"):  # one without was running when the file was written
            result = _result(element)
            merged[result.where, result.name] = _worse(merged.get((result.where, result.name)), result)
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    properties = {key: value for suite in suites for key, value in _properties(suite).items()}
    return JunitFile(tuple(merged.values()), properties, cut_off)


def _parse(document: bytes) -> tuple[Element, str | None]:
    """The root element, closed where the text is cut off, and where that is."""
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    open_tags: list[str] = []
    done: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        open_tags.append(tag)
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        open_tags.pop()
        done.append(builder.end(tag))

    def refuse(*_: object) -> None:
        raise ValueError("it has a document type, which no JUnit report needs and an attack may use")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    cut_off = None
    try:
        parser.Parse(document, True)
    except expat.ExpatError as error:
        cut_off = f"line {error.lineno}: {expat.ErrorString(error.code)}"
    if cut_off and (not open_tags or open_tags[0] not in ("testsuites", "testsuite")):
        raise ValueError(f"no XML: {cut_off}")
    cut = [builder.end(tag) for tag in reversed(open_tags)]  # from the inside outwards
    root = builder.close()
    for inner, outer in pairwise(cut):
        if inner.tag == "testcase":  # what is missing of it may be its failure
            outer.remove(inner)
    return root, cut_off


def _result(element: Element) -> CaseResult:
    outcome, message = _outcome(element)
    properties = _properties(element)
    return CaseResult(
        name=element.get("name", ""),
        where=element.get("classname", ""),
        outcome=judged(outcome, properties),
        properties=properties,
        message=message,
    )


def _outcome(element: Element) -> tuple[Outcome, str]:
    for tag, outcome in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        child = element.find(tag)
        if child is not None:
            message = child.get("message") or child.text or ""
            xfailed = child.get("type") == "pytest.xfail"
            return ("xfailed" if xfailed else outcome), message  # type: ignore[return-value]
    return "passed", ""


def _properties(element: Element) -> dict[str, str]:
    return {row.get("name", ""): row.get("value", "") for row in element.iterfind("properties/property")}


def _worse(one: CaseResult | None, other: CaseResult) -> CaseResult:
    """pytest writes a case twice whose call and teardown both failed."""
    if one is None or SEVERITY.index(other.outcome) > SEVERITY.index(one.outcome):
        return other
    return one
