"""One case on this machine, with a program that needs nothing: the order of things, and who is told of them."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import pytest

from harness.attempt import Machine, Settings, run_case
from harness.attempt.machine import examined
from harness.attempt.result import artifacts
from harness.cli.program import case_of
from harness.doctor import Facts
from harness.engines.local import LocalJob
from harness.journal import read_document
from harness.probe.layout import JobPaths, attempt
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


@pytest.mark.parametrize("given, told", [("auto", (900.0, True)), (30.0, (30.0, False)), ("none", (None, False))])
def test_the_supervisor_is_told_what_a_hang_is(
    tmp_path: Path, settings: Settings, given: Any, told: tuple[float | None, bool]
) -> None:
    (tmp_path / "stop.py").write_text("")
    case = case_of(["stop.py"], processes=1, on_gpus=False, hang_after_s=given)
    run_case(case, settings, MACHINE, case_dir=tmp_path / "case")
    document = read_document(tmp_path / "case" / "attempt-1" / "job.json")
    assert document is not None
    assert (document["hang_after_s"], document["hang_after_scales"]) == told
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in document["environment_names"]


@pytest.mark.parametrize("launcher, kind", [("own", Kind.USER_ERROR), ("harness", Kind.NO_TRAINING)])
def test_a_results_folder_that_pythonpath_cannot_name(
    tmp_path: Path, settings: Settings, launcher: Literal["harness", "own"], kind: Kind
) -> None:
    (tmp_path / "stop.py").write_text("")
    case = case_of(["stop.py"], processes=1, on_gpus=False, launcher=launcher)
    record = run_case(case, settings, MACHINE, case_dir=tmp_path / "12:30")
    assert record.verdict is not None
    assert record.verdict.kind is kind
    assert ("needs a results folder without ':'" in record.verdict.reason) == (launcher == "own")


@pytest.mark.parametrize("launcher", ["own", "harness"])
@pytest.mark.parametrize("text, kind", [("", Kind.NO_TRAINING), ("raise Exception", Kind.UNKNOWN)])
def test_no_rank_was_recognised(
    tmp_path: Path, settings: Settings, text: str, kind: Kind, launcher: Literal["harness", "own"]
) -> None:
    (tmp_path / "stop.py").write_text(text)
    case = case_of(["stop.py"], processes=1, on_gpus=False, launcher=launcher)
    record = run_case(case, settings, MACHINE, case_dir=tmp_path / "case")
    assert record.verdict is not None
    assert record.verdict.kind is kind
    assert (record.verdict.hint is not None) == (launcher == "own")


def test_files_for_the_search_of_a_cause_are_artifacts(tmp_path: Path) -> None:
    job = attempt(tmp_path, 1)
    for path in (job.stacks(0), job.stacks(1), job.memory(0), job.memory_snapshot(0), job.py_spy(0)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if path == job.stacks(1) else "x")
    job.node().mkdir()
    recorder = job.flight_recorder()
    for path in (job.node() / "nccl.host.7.log", Path(f"{recorder}0"), Path(f"{recorder}0.pipe")):
        path.touch()
    assert artifacts(job, outputs=False) == {
        "rank-0/stacks": "attempt-1/rank-0/stacks.txt",
        "rank-0/py-spy": "attempt-1/rank-0/py-spy.txt",
        "rank-0/memory": "attempt-1/rank-0/memory.json",
        "rank-0/memory_snapshot": "attempt-1/rank-0/memory_snapshot.pickle",
        "nccl.host.7": "attempt-1/node-0/nccl.host.7.log",
        "flight-recorder-rank-0": "attempt-1/node-0/flight-recorder-rank-0",
    }


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


def test_the_doctors_facts_are_in_every_record_and_looked_at_once(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "stop.py").write_text("")
    before = examined.cache_info().misses
    records = []
    for name in ("one", "two"):
        case = case_of(["stop.py"], processes=1, on_gpus=False)
        run_case(case, settings, MACHINE, case_dir=tmp_path / name)
        records.append(read_record(tmp_path / name / "record.json"))
    told = records[0].environment["doctor"]
    assert set(told) == {field.name for field in fields(Facts)} - {"aim_error"}
    assert (told["results"], told["interpreter"]) == (str(tmp_path), records[0].environment["python"]["executable"])
    assert told["shm_bytes"] == shutil.disk_usage("/dev/shm").total
    assert records[1].environment["doctor"] == told
    assert examined.cache_info().misses == before + 1


def test_looking_at_the_machine_imports_neither_torch_nor_aim(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from harness.attempt.machine import examined\n"
    code += "told = examined(Path(sys.argv[1]), sys.executable)\n"
    code += "print(told['packages']['torch'] is not None, sorted({'torch', 'transformers', 'aim'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == "True []\n"
