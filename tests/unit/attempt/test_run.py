"""One case on this machine, with a program that needs nothing: the order of things, and who is told of them."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from harness.attempt import Machine, Settings, missing, recipe, run_case
from harness.attempt.machine import examined
from harness.attempt.result import artifacts
from harness.cli.program import SOURCE, case_of
from harness.doctor import Facts
from harness.engines.local import LocalJob
from harness.journal import read_document
from harness.probe.layout import JobPaths, attempt
from harness.record import Kind, read_record
from harness.scenario import Case, Needs, Scenario, StackFiles, Trainer
from tests.unit.wheels import make_wheel

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


@pytest.fixture
def in_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of environments, and an index that is given up at once."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_RETRIES", "1")
    return tmp_path


def case_on(folder: Path, requirements: str, **fields: Any) -> Case:
    (folder / "my-stack.txt").write_text(requirements)
    (folder / "program.py").write_text("import sys, alpha\nprint(alpha.VERSION, sys.prefix)\n")
    scenario = Scenario(
        name="s",
        trainer=Trainer(kind="script", target=str(folder / "program.py")),
        processes=1,
        stack=StackFiles(requirements=[str(folder / "my-stack.txt")]),
        measure_steps=False,
        **fields,
    )
    return Case("s-1proc", scenario, SOURCE, keywords=(), marks=())


def test_an_interpreter_by_any_of_its_names_makes_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "snake").symlink_to(sys.executable)
    files = StackFiles(requirements=[str(tmp_path / "a.txt")])
    assert recipe(files, str(tmp_path / "snake")) == recipe(files, sys.executable)


@pytest.mark.slow
def test_a_case_runs_on_the_environment_of_its_stack(in_cache: Path, settings: Settings) -> None:
    make_wheel(in_cache, "alpha", "1.7")
    case = case_on(in_cache, "--no-index\n./alpha-1.7-py3-none-any.whl\n", needs=Needs(packages=["alpha>=1"]))
    assert missing(case, MACHINE) is None  # before it has been made
    told: list[str] = []
    record = run_case(case, settings, MACHINE, case_dir=in_cache / "case", on_wait=told.append)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.reason) == (Kind.NONE, "")
    assert ["my-stack.txt is made, once" in text for text in told] == [True]
    made = record.environment["stack"]
    printed = (in_cache / "case" / "attempt-1" / "rank-0" / "stdout.log").read_text().split()
    assert printed == ["1.7", str(in_cache / "cache" / "stacks" / made["sha256"][:32])]
    assert record.environment["packages"]["alpha"] == "1.7"
    assert made["requirements"] == [str(in_cache / "my-stack.txt")]
    assert record.environment["python"]["executable"].startswith(printed[1])
    assert run_case(case, settings, MACHINE, case_dir=in_cache / "again", on_wait=told.append).verdict == record.verdict
    assert len(told) == 1


@pytest.mark.slow
def test_a_stack_that_does_not_bring_what_is_needed_fails_the_case(in_cache: Path, settings: Settings) -> None:
    make_wheel(in_cache, "alpha", "1.7")
    case = case_on(in_cache, "--no-index\n./alpha-1.7-py3-none-any.whl\n", needs=Needs(packages=["alpha>=2"]))
    record = run_case(case, settings, MACHINE, case_dir=in_cache / "case")
    assert record.verdict is not None
    assert record.verdict.kind is Kind.USER_ERROR
    assert "stack: its files do not bring all: needs alpha>=2; there is 1.7" in record.verdict.reason
    assert missing(case, MACHINE) is None  # the next time, too, it is the stack's failure and no reason to skip
    assert record.attempts == []


@pytest.mark.slow
def test_a_full_disk_while_pips_words_are_kept_is_a_verdict(in_cache: Path, settings: Settings) -> None:
    (in_cache / "case").mkdir()
    (in_cache / "case" / "stack.log").symlink_to("/dev/full")
    case = case_on(in_cache, "--no-index\nnothing-of-this-name\n")
    record = run_case(case, settings, MACHINE, case_dir=in_cache / "case")
    assert record.state == "finished"
    assert record.verdict is not None
    assert record.verdict.kind is Kind.DISK_FULL
    assert "the results cannot be written: [Errno 28] No space left on device" in record.verdict.reason


@pytest.mark.slow
def test_an_index_that_does_not_answer_is_tried_again(in_cache: Path, settings: Settings) -> None:
    case = case_on(in_cache, "--index-url http://user:hunter22hunter@127.0.0.1:9/simple\nalpha\n", retries={"any": 1})
    told: list[str] = []
    impatient = replace(settings, retry_wait_s=0.01)
    record = run_case(case, impatient, MACHINE, case_dir=in_cache / "case", on_wait=told.append)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.transient) == (Kind.NETWORK, True)
    assert "Connection refused" in record.verdict.reason
    assert sum("not launched: network" in text for text in told) == 1
    assert sum("is made, once" in text for text in told) == 2
    assert read_record(in_cache / "case" / "record.json") == record
    assert record.artifacts == {"stack_log": "stack.log"}
    assert (record.attempts, record.environment["python"], record.environment["packages"]) == ([], None, {})
    for text in (in_cache / "case" / "stack.log").read_text(), record.tail, record.model_dump_json():
        assert "127.0.0.1:9" in text
        assert "hunter22hunter" not in text
