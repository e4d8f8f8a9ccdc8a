"""Reading junit.xml, also when it was written to do harm, or is not whole."""

from pathlib import Path

import pytest

from harness.reports import junit_file
from harness.reports.junit_file import ReportError, parse_junit, read_junit

WHOLE = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" tests="5">
<properties><property name="harness_cases" value="5"/></properties>
<testcase classname="b.test_f" name="test_f[good]">
<properties><property name="verdict" value="none"/></properties></testcase>
<testcase classname="b.test_f" name="test_f[oom]"><skipped type="pytest.xfail" message="gpu_oom: x"/></testcase>
<testcase classname="b.test_f" name="test_f[skip]"><skipped type="pytest.skip" message="no GPU">t</skipped></testcase>
<testcase classname="b.test_f" name="test_f[bad]"><failure message="user_error: x">long</failure></testcase>
<testcase classname="b.test_f" name="test_f[err]"><error message="failed on setup">long</error></testcase>
<testcase time="0.012"/>
</testsuite></testsuites>"""


def outcomes(document: bytes) -> dict[str, str]:
    return {result.case: result.outcome for result in parse_junit(document).results}


def test_every_outcome() -> None:
    expected = {"good": "passed", "oom": "xfailed", "skip": "skipped", "bad": "failed", "err": "error"}
    assert outcomes(WHOLE) == expected
    report = parse_junit(WHOLE)
    assert report.properties == {"harness_cases": "5"}
    assert report.cut_off is None
    assert report.results[0].verdict == "none"
    assert report.results[1].reason == "gpu_oom: x"


def test_a_single_suite_as_root() -> None:
    assert outcomes(b'<testsuite><testcase name="a"/></testsuite>') == {"a": "passed"}


def test_a_case_that_stands_twice_counts_once_and_as_its_worse_half() -> None:
    case = b'<testcase classname="c" name="a"><%s message="x"/></testcase>'
    assert outcomes(b"<testsuite>" + case % b"failure" + case % b"error" + b"</testsuite>") == {"a": "failed"}
    assert outcomes(b"<testsuite>" + case % b"error" + case % b"failure" + b"</testsuite>") == {"a": "failed"}


@pytest.mark.parametrize("cut", range(90, len(WHOLE) - 14, 7))
def test_a_cut_off_file_gives_its_whole_cases_and_says_so(cut: int) -> None:
    report = parse_junit(WHOLE[:cut])
    assert report.cut_off is not None
    whole = WHOLE[:cut].count(b"</testcase>")
    assert len(report.results) == whole


BOMB = b"""<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><testsuite name="&b;"/>"""
EXTERNAL = b"""<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&a;"/></testsuite>"""


@pytest.mark.parametrize(
    "document, text",
    [
        pytest.param(BOMB, "document type", id="entities"),
        pytest.param(EXTERNAL, "document type", id="external-entity"),
        pytest.param(b"", "no XML", id="empty"),
        pytest.param(b"nonsense", "no XML", id="text"),
        pytest.param(b"<html><body>", "no XML", id="cut-off-other"),
        pytest.param(b"<html/>", "no JUnit report", id="other"),
        pytest.param(b"\xff\xfe\x00", "no XML", id="binary"),
    ],
)
def test_what_is_no_report(document: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_junit(document)


def test_an_undefined_entity_ends_the_reading() -> None:
    assert parse_junit(b"<testsuite>&undefined;</testsuite>").cut_off is not None


def test_deep_nesting_is_no_trouble() -> None:
    depth = 200_000
    assert outcomes(b"<testsuite>" + b"<a>" * depth + b"</a>" * depth + b"</testsuite>") == {}


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit_file, "MAX_BYTES", 10)
    (tmp_path / "junit.xml").write_bytes(WHOLE)
    with pytest.raises(ReportError, match="the limit is 10"):
        read_junit(tmp_path / "junit.xml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        read_junit(tmp_path / "junit.xml")


@pytest.mark.parametrize("verdict, outcome", [("user_error", "failed"), ("none", "passed"), ("not_run", "passed")])
def test_a_bad_verdict_without_failure_is_a_failure(verdict: str, outcome: str) -> None:
    row = f'<properties><property name="verdict" value="{verdict}"/></properties>'
    assert outcomes(f'<testsuite><testcase name="a">{row}</testcase></testsuite>'.encode()) == {"a": outcome}


@pytest.mark.parametrize("opened", [b"<testsuites>", b"<testsuite><a>", b"<testsuite><testcase name='b'>"])
def test_a_cut_case_in_an_odd_place_is_dropped(opened: bytes) -> None:
    report = parse_junit(opened + b"<testcase name='a'>")
    assert report.cut_off is not None
    assert report.results == ()
