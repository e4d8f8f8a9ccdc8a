"""What forwarder.json says, and when the time is over; without Aim."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.forward.deadlines import Deadlines
from harness.forward.report import LONGEST_REASON, Report

DOCS = Path(__file__).parents[3] / "docs" / "aim.md"


def written(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "forwarder.json").read_text())
    return document


@pytest.mark.parametrize(
    "run_hash, reason, pending, state",
    [
        (None, "no server", 0, "failed"),
        ("abc", "no server", 0, "partial"),
        ("abc", None, 0, "complete"),
        ("abc", None, 3, "partial"),
    ],
)
def test_the_last_word(tmp_path: Path, run_hash: str | None, reason: str | None, pending: int, state: str) -> None:
    report = Report(tmp_path / "forwarder.json", "repo")
    report.write()
    assert (written(tmp_path)["state"], written(tmp_path)["ended"]) == ("partial", None)
    report.add(5)
    report.note(run_hash=run_hash)
    report.pending = lambda: pending
    report.end(reason)
    report.end("a second word")
    told = written(tmp_path)
    assert (told["state"], told["tracked"], told["run_hash"]) == (state, 5 - pending, run_hash)
    assert told["reason"] is None if state == "complete" else told["reason"] != "a second word"
    assert told["ended"] >= told["started"]
    assert (tmp_path / "forwarder.json").stat().st_mode & 0o777 == 0o600


def test_a_reason_is_one_short_line(tmp_path: Path) -> None:
    report = Report(tmp_path / "forwarder.json", "repo")
    report.end("two\nlines " + "x" * 1000)
    assert written(tmp_path)["reason"].startswith("two lines x")
    assert len(written(tmp_path)["reason"]) == LONGEST_REASON


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    Report(tmp_path / "gone", "repo").end("no harm")


def test_a_last_word_when_aim_cannot_be_asked(tmp_path: Path) -> None:
    def broken() -> int:
        raise RuntimeError

    report = Report(tmp_path / "forwarder.json", "repo")
    report.pending = broken
    report.end(None)
    assert written(tmp_path)["state"] == "complete"


def test_the_documentation_names_every_field(tmp_path: Path) -> None:
    Report(tmp_path / "forwarder.json", "repo").write()
    section = DOCS.read_text().partition("## What reached Aim")[2].partition("\n## ")[0]
    documented = {
        name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == set(written(tmp_path)) - {"schema"}


def test_no_time_is_counted_while_job_and_harness_live() -> None:
    deadlines = Deadlines(0.0, 0.0)
    deadlines.enter("forwarding")
    assert (deadlines.passed(), deadlines.is_short(), deadlines.left_s()) == (None, False, float("inf"))


def test_the_job_has_ended() -> None:
    deadlines = Deadlines(0.0)
    deadlines.enter("closing the run")
    deadlines.job_ended()
    assert deadlines.wake.is_set()
    assert deadlines.is_short()
    assert deadlines.passed() == "not done 0 s after the job's end, while closing the run"


def test_the_harness_is_gone() -> None:
    deadlines = Deadlines(100.0, 0.0)
    deadlines.orphaned()
    assert "0 s after the harness's death" in str(deadlines.passed())
    deadlines.job_ended()
    assert "0 s after the harness's death" in str(deadlines.passed())


def test_a_call_that_takes_too_long() -> None:
    deadlines = Deadlines(100.0)
    deadlines.enter("opening the repo", 0.0)
    assert deadlines.passed() == "no answer while opening the repo"
    deadlines.enter("forwarding")
    assert deadlines.passed() is None
