"""Forwarders that nobody waits for yet: the next case starts, and each record is told later what reached Aim."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.attempt import Outstanding, Settings, outstanding, run_case
from harness.cli.program import case_of
from harness.forward.start import Aim, Forwarder
from harness.record import Kind, Record, read_record
from tests.unit.attempt.test_retries import FLAKY, case_with
from tests.unit.attempt.test_run import MACHINE
from tests.unit.jobs import eventually, processes_naming

CASE = case_of(["program.py"], processes=1, on_gpus=False)
# What stands in for the forwarder ends when `go` is there, with the last word that the real one would leave.
FAKE = """#!{python}
import json, os, sys, time
while not os.path.exists({go!r}):
    time.sleep(0.01)
with open(sys.argv[3] + "/forwarder.json", "w") as file:
    json.dump({{"state": "complete", "reason": None, "run_hash": "abc", "ended": time.time()}}, file)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    fake = tmp_path / "python"
    fake.write_text(FAKE.format(python=sys.executable, go=str(tmp_path / "go")))
    fake.chmod(0o700)
    (tmp_path / "program.py").write_text("pass\n")
    return Settings(
        session="s",
        session_dir=tmp_path,
        base_dir=tmp_path,
        lock_dir=tmp_path / "locks",
        grace_s=0.5,
        aim=Aim(str(tmp_path / "repo"), str(fake), timeout_s=60.0),
        outstanding=Outstanding(),
    )


@pytest.fixture
def run(tmp_path: Path, settings: Settings) -> Callable[[str], Record]:
    """Runs a case of that name; its forwarder is outstanding."""
    return lambda name: run_case(CASE, settings, MACHINE, case_dir=tmp_path / name)


def pending(settings: Settings) -> Outstanding:
    assert settings.outstanding is not None
    return settings.outstanding


def aim_of(case_dir: Path) -> tuple[str, bool]:
    """(state, whether that is the last word) in a case's record."""
    told = read_record(case_dir / "record.json").aim
    assert told is not None
    return told["state"], told["ended"] is not None


def test_the_next_case_starts_meanwhile(tmp_path: Path, settings: Settings, run: Callable[[str], Record]) -> None:
    first, second = run("first"), run("second")
    pending(settings).collect()
    assert aim_of(tmp_path / "first") == aim_of(tmp_path / "second") == ("partial", False)
    (tmp_path / "go").touch()
    pending(settings).close(interrupted=False)
    for name, returned in (("first", first), ("second", second)):
        record = read_record(tmp_path / name / "record.json")
        assert aim_of(tmp_path / name) == ("complete", True)
        assert record.model_copy(update={"aim": None}) == returned.model_copy(update={"aim": None})
    assert processes_naming(tmp_path) == []


def test_those_that_are_done_are_collected(tmp_path: Path, settings: Settings, run: Callable[[str], Record]) -> None:
    run("case")
    (tmp_path / "go").touch()

    def is_told() -> bool:
        pending(settings).collect()
        return aim_of(tmp_path / "case") == ("complete", True)

    eventually(is_told)


def test_a_case_that_is_not_in_a_session_waits(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "go").touch()
    record = run_case(CASE, replace(settings, outstanding=None), MACHINE, case_dir=tmp_path / "case")
    assert record == read_record(tmp_path / "case" / "record.json")
    assert aim_of(tmp_path / "case") == ("complete", True)


@pytest.mark.parametrize("how", ["overdue", "interrupted"])
def test_nothing_is_left(
    tmp_path: Path,
    settings: Settings,
    run: Callable[[str], Record],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """One whose time is over is killed by the next look; at the end of an interrupted session, all are."""
    monkeypatch.setattr(outstanding, "INTERRUPTED_S", 0.1)
    if how == "overdue":
        monkeypatch.setattr(outstanding, "MARGIN_S", -60.0)
    run("first"), run("second")
    if how == "overdue":
        pending(settings).collect()
    else:
        pending(settings).close(interrupted=True)
    for name in ("first", "second"):
        told = read_record(tmp_path / name / "record.json").aim
        assert told is not None
        assert (told["state"], told["reason"]) == ("failed", "the forwarder was not done in time and was killed")
    assert processes_naming(tmp_path) == []


def test_ctrl_c_ends_the_waiting(
    tmp_path: Path, settings: Settings, run: Callable[[str], Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = Forwarder.wait, []

    def wait(self: Forwarder, deadline_s: float) -> object:
        asked.append(deadline_s)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return usual(self, deadline_s)

    run("first"), run("second")
    monkeypatch.setattr(Forwarder, "wait", wait)
    pending(settings).close(interrupted=False)
    assert asked[1:] == [0.0, 0.0]
    assert aim_of(tmp_path / "first") == aim_of(tmp_path / "second") == ("failed", True)
    assert processes_naming(tmp_path) == []


def test_an_earlier_attempt_does_not_speak_for_the_last(
    tmp_path: Path, settings: Settings, run: Callable[[str], Record]
) -> None:
    run("case")
    later = replace(settings, outstanding=Outstanding())
    again = run_case(CASE, later, MACHINE, case_dir=tmp_path / "case")
    assert [attempt.number for attempt in again.attempts] == [1, 2]
    (tmp_path / "go").touch()
    pending(settings).close(interrupted=False)
    assert read_record(tmp_path / "case" / "record.json") == again
    pending(later).close(interrupted=False)
    assert aim_of(tmp_path / "case") == ("complete", True)


def test_each_attempt_of_a_case_that_is_tried_again_has_its_own(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    quick = replace(settings, retry_wait_s=0.01)
    record = run_case(case_with(1, "trains", any=1), quick, MACHINE, case_dir=tmp_path / "case")
    assert [attempt.number for attempt in record.attempts] == [1, 2]
    assert aim_of(tmp_path / "case") == ("partial", False)
    (tmp_path / "go").touch()
    pending(settings).close(interrupted=False)
    assert all((tmp_path / "case" / f"attempt-{number}" / "forwarder.json").is_file() for number in (1, 2))
    assert aim_of(tmp_path / "case") == ("complete", True)
    assert processes_naming(tmp_path) == []


def test_a_record_that_a_program_has_removed(tmp_path: Path, settings: Settings, run: Callable[[str], Record]) -> None:
    record = run("case")
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NO_TRAINING
    os.unlink(tmp_path / "case" / "record.json")
    (tmp_path / "go").touch()
    pending(settings).close(interrupted=False)
    assert not (tmp_path / "case" / "record.json").exists()
