"""What became of the cases of a session's folder, also when the session was cut off."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.record import Kind, Verdict, write_record
from harness.reports.junit_file import ReportError
from harness.reports.reading import NO_END, read_results
from tests.unit.reports.records import make_record

NONE = '<properties><property name="verdict" value="none"/></properties>'
CASE = '<testcase classname="{where}" name="test_finetune[{case}]">' + NONE + "</testcase>"


def make_session(
    results: Path, cases: list[str], reported: list[str] | None, where: str = "bench.test_finetune"
) -> Path:
    folder = results / "session"
    folder.mkdir(parents=True)
    plan = {f"bench/test_finetune.py::test_finetune[{case}]": {"case_id": case, "directory": case} for case in cases}
    (folder / "cases.json").write_text(json.dumps({"schema": 1, "cases": plan}))
    if reported is not None:
        elements = "".join(CASE.format(case=case, where=where) for case in reported)
        suite = f'<properties><property name="harness_cases" value="{len(cases)}"/></properties>{elements}'
        (folder / "junit.xml").write_text(f"<testsuite>{suite}</testsuite>")
    return folder


def leave_record(folder: Path, case: str, **values: Any) -> None:
    (folder / case).mkdir()
    write_record(make_record(case_id=case, **values), folder / case / "record.json")


def outcomes(path: Path) -> dict[str, tuple[str, str]]:
    return {result.case: (result.outcome, result.verdict) for result in read_results(path).results}


@pytest.mark.parametrize("where", ["bench.test_finetune", "prefix.bench.test_finetune"])
def test_a_whole_session(tmp_path: Path, where: str) -> None:
    folder = make_session(tmp_path, ["a", "b"], ["a", "b"], where)
    assert outcomes(folder) == {"a": ("passed", "none"), "b": ("passed", "none")}


def test_the_results_folder_means_its_latest_session(tmp_path: Path) -> None:
    make_session(tmp_path, ["a"], ["a"])
    (tmp_path / "latest").symlink_to("session")
    reading = read_results(tmp_path)
    assert reading.source == (tmp_path / "session").resolve()
    assert len(reading.results) == 1


def test_what_junit_does_not_have_comes_from_the_records(tmp_path: Path) -> None:
    folder = make_session(tmp_path, ["a", "good", "oom", "bad", "cut", "never"], ["a"])
    leave_record(folder, "good")
    leave_record(folder, "oom", verdict=Verdict(kind=Kind.GPU_OOM, reason="too large"))
    leave_record(folder, "bad", verdict=Verdict(kind=Kind.CRASH, reason="signal 11"))
    leave_record(folder, "cut", state="running", verdict=None)
    assert outcomes(folder) == {
        "a": ("passed", "none"),
        "good": ("passed", "none"),
        "oom": ("xfailed", "gpu_oom"),
        "bad": ("failed", "crash"),
        "cut": ("unfinished", "unknown"),
        "never": ("unfinished", "not_run"),
    }


@pytest.mark.parametrize(
    "session, outcomes_of_kinds",
    [
        pytest.param(None, ("xfailed", "failed"), id="no-session-file"),
        pytest.param("{}", ("xfailed", "failed"), id="of-an-older-harness"),
        pytest.param("[", ("xfailed", "failed"), id="damaged"),
        pytest.param('{"xfail_kinds": ["network"]}', ("failed", "xfailed"), id="other-kinds"),
        pytest.param('{"xfail_kinds": []}', ("failed", "failed"), id="none"),
    ],
)
def test_records_are_counted_by_the_sessions_kinds(
    tmp_path: Path, session: str | None, outcomes_of_kinds: tuple[str, str]
) -> None:
    folder = make_session(tmp_path, ["oom", "network", "met", "fits"], [])
    if session is not None:
        (folder / "session.json").write_text(session)
    oom = Verdict(kind=Kind.GPU_OOM, reason="too large")
    leave_record(folder, "oom", verdict=oom)
    leave_record(folder, "network", verdict=Verdict(kind=Kind.NETWORK, reason="no route"))
    leave_record(folder, "met", verdict=oom, expected=Kind.GPU_OOM)
    leave_record(folder, "fits", expected=Kind.GPU_OOM)
    found = outcomes(folder)
    assert (found["oom"][0], found["network"][0]) == outcomes_of_kinds
    assert (found["met"], found["fits"]) == (("passed", "gpu_oom"), ("failed", "none"))


def test_a_session_without_junit(tmp_path: Path) -> None:
    assert outcomes(make_session(tmp_path, ["a"], None)) == {"a": ("unfinished", "not_run")}


def test_a_record_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    folder = make_session(tmp_path, ["a"], [])
    (folder / "a").mkdir()
    (folder / "a" / "record.json").write_text('{"schema_version": 99')
    assert outcomes(folder) == {"a": ("unfinished", "not_run")}


def test_a_junit_alone_knows_how_many_are_missing(tmp_path: Path) -> None:
    folder = make_session(tmp_path, ["a", "b", "c"], ["a"])
    results = read_results(folder / "junit.xml").results
    assert [(result.name, result.outcome, result.reason) for result in results[1:]] == [
        ("2 more", "unfinished", NO_END)
    ]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"cases": 3}', '{"cases": {"a": 3}}', pytest.param("[" * 200_000, id="deep")]
)
def test_a_plan_that_is_none(tmp_path: Path, content: str) -> None:
    folder = make_session(tmp_path, ["a"], [])
    (folder / "cases.json").write_text(content)
    with pytest.raises(ReportError, match="no plan of a session"):
        read_results(folder)


def test_a_folder_that_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="neither a session's folder"):
        read_results(tmp_path)


def test_hostile_values_are_no_crash(tmp_path: Path) -> None:
    folder = make_session(tmp_path, ["pipe", "null\0"], [])
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "record.json")
    plan = json.loads((folder / "cases.json").read_text())
    (folder / "cases.json").write_text(json.dumps(plan | {"cases": plan["cases"] | {"x": {}}}))
    assert {outcome for outcome, _ in outcomes(folder).values()} == {"unfinished"}
    (folder / "junit.xml").write_text(
        f'<testsuite><properties><property name="harness_cases" value="{"9" * 5000}"/></properties></testsuite>'
    )
    assert read_results(folder / "junit.xml").results == ()


def test_a_path_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "stat", refuse)  # root may read everything
    with pytest.raises(ReportError, match=f"{tmp_path}: Permission denied"):
        read_results(tmp_path)
