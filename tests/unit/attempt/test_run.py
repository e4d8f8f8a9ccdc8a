"""One case on this machine, with a program that needs nothing: the order of things, and who is told of them."""

import os
import time
from pathlib import Path

import pytest

from harness.attempt import Machine, Settings, run_case
from harness.cli.program import case_of
from harness.engines.local import LocalJob
from harness.journal import read_document
from harness.probe.layout import JobPaths
from harness.record import Kind, read_record

MACHINE = Machine(gpus=(), cpus=("cpu-0",))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(session="s", session_dir=tmp_path, base_dir=tmp_path, lock_dir=tmp_path / "locks", grace_s=0.5)


def test_who_starts_a_job_is_told_while_it_runs(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "wait.py").write_text("import os, time\nwhile not os.path.exists('told'): time.sleep(0.01)\n")
    told: list[tuple[Path, int]] = []

    def started(paths: JobPaths, job: LocalJob) -> None:
        told.append((paths.root, job.supervisor_pid))
        os.kill(job.supervisor_pid, 0)
        (tmp_path / "told").touch()

    case = case_of(["wait.py"], processes=1, on_gpus=False)
    record = run_case(case, settings, MACHINE, case_dir=tmp_path / "case", on_start=started)
    assert [root for root, _ in told] == [tmp_path / "case" / "attempt-1"]
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NO_TRAINING


def test_what_is_raised_meanwhile_ends_the_job_and_leaves_a_record(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "wait.py").write_text("import time\ntime.sleep(300)\n")

    def started(paths: JobPaths, job: LocalJob) -> None:
        while not paths.events(0).exists():  # the supervisor listens by now
            time.sleep(0.01)
        raise KeyboardInterrupt("SIGHUP")

    case = case_of(["wait.py"], processes=1, on_gpus=False)
    with pytest.raises(KeyboardInterrupt):
        run_case(case, settings, MACHINE, case_dir=tmp_path / "case", on_start=started)
    record = read_record(tmp_path / "case" / "record.json")
    assert record.state == "finished"
    assert record.verdict is not None
    assert (record.verdict.kind, "SIGHUP" in record.verdict.reason) == (Kind.KILLED, True)
    end = read_document(tmp_path / "case" / "attempt-1" / "end.json")
    assert end is not None
    assert end["clean"]


def test_the_next_attempt_keeps_the_earlier_one(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "fail.py").write_text("raise ValueError('no')\n")
    case = case_of(["fail.py"], processes=1, on_gpus=False)
    for number in (1, 2):
        record = run_case(case, settings, MACHINE, case_dir=tmp_path / "case")
        assert [attempt.number for attempt in record.attempts] == list(range(1, number + 1))
        assert (tmp_path / "case" / f"attempt-{number}" / "end.json").exists()
