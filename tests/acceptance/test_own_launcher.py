"""Targets that start their ranks themselves: measured in every rank, and nothing of them is other than without."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_ranks
from harness.probe.layout import JobPaths
from harness.record import Kind, Record
from tests.acceptance.conftest import Bench, Ended, Pod, properties

pytestmark = pytest.mark.slow

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch"]
ACCELERATE_2 = [*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
ACCELERATE_1 = [*ACCELERATE, "--cpu", "--num_processes", "1"]
LAUNCHERS = {
    "torchrun": (2, [*TORCHRUN, "elastic.py"]),
    "accelerate-2": (2, [*ACCELERATE_2, "elastic.py"]),
    "accelerate-1": (1, [*ACCELERATE_1, "elastic.py"]),
    "accelerate-module": (1, [*ACCELERATE_1, "--module", "elastic"]),
    "spawn": (2, ["starts.py", "spawn"]),
    "driver": (1, ["starts.py", "driver", "elastic.py"]),
    "itself": (1, ["starts.py", "itself"]),
}


def run(pod: Pod, launcher: str, *arguments: str, **environ: str) -> tuple[Record, Ended]:
    ranks, command = LAUNCHERS[launcher]
    return record_of(pod, str(ranks), *command, *arguments, **environ)


def record_of(pod: Pod, ranks: str, *command: str, **environ: str) -> tuple[Record, Ended]:
    ended = pod.run("--launcher", "own", "--nproc", ranks, "--", *command, **environ)
    assert ended.record is not None, ended.stderr
    assert ended.record.attempts[0].end is not None
    assert ended.record.attempts[0].end["clean"]
    assert pod.living() == []
    return ended.record, ended


def told(root: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    """What the ranks of elastic.py wrote."""
    return [json.loads((root / f"{name}.{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_rank_is_measured_and_sees_itself_as_without(pod: Pod, launcher: str) -> None:
    ranks, command = LAUNCHERS[launcher]
    (pod.root / "lib").mkdir()
    (pod.root / "lib" / "sitecustomize.py").write_text("import os\nos.environ.setdefault('CUSTOMIZED', 'once')\n")
    path = os.pathsep.join(filter(None, [str(pod.root / "lib"), os.environ.get("PYTHONPATH")]))
    record, ended = run(pod, launcher, "ours", PYTHONPATH=path)
    assert record.verdict is not None
    assert (record.verdict.kind, ended.code) == (Kind.NONE, 0), (record.verdict, record.tail)

    plain = subprocess.run(
        [sys.executable, "-u", *command, "plain"],
        cwd=pod.root,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    given = {*os.environ, *json.loads(pod.job.job.read_bytes())["environment_names"]}
    for ours, theirs in zip(told(pod.root, "ours", ranks), told(pod.root, "plain", ranks), strict=True):
        assert ours["environ"]["CUSTOMIZED"] == "once"
        for seen in (ours, theirs):
            seen["argv"] = [word for word in seen["argv"] if word not in ("ours", "plain")]
            seen["environ"] = {name: value for name, value in seen["environ"].items() if name not in given}
        assert ours == theirs  # the losses, sys.path, flags, `__main__`, what the launcher has set

    journals = read_ranks(pod.job)
    assert [journal.rank for journal in journals] == list(range(ranks))
    for journal in journals:
        start, end = journal.of("start"), journal.of("end")
        assert [(each["rank"], each["world_size"]) for each in start] == [(journal.rank, ranks)]
        assert len(journal.of("step")) == 5
        assert [each["steps"] for each in end] == [5]
        assert journal.of("phase")[0]["name"] == "import"
        assert journal.of("probe_error") == []
    assert record.measurements is not None
    assert (record.measurements.ranks, record.measurements.steps_seen) == (ranks, 5)
    assert "ranks_differ" not in record.measurements.flags
    assert "rank 0 is done\n" in ended.stdout


@pytest.mark.parametrize(
    "launcher, fate, kind, rank, reason",
    [
        ("accelerate-2", "raise", Kind.USER_ERROR, 1, "rank 1, import: KeyError: 'the data is not there'"),
        ("accelerate-2", "exit-3", Kind.UNKNOWN, 1, "rank 1 ended with exit code 3 and no exception was seen"),
        ("accelerate-2", "sigkill", Kind.KILLED, 1, "rank 1 was ended by SIGKILL"),
        ("accelerate-2", "raise-late", Kind.UNKNOWN, 1, "rank 1, step 3: ZeroDivisionError: no luck"),
        ("torchrun", "sigkill", Kind.KILLED, 1, "rank 1 was ended by SIGKILL"),
        ("accelerate-1", "raise", Kind.USER_ERROR, 0, "rank 0, import: KeyError: 'the data is not there'"),
        ("accelerate-1", "exit-3", Kind.UNKNOWN, 0, "rank 0 ended with exit code 3 and no exception was seen"),
        ("accelerate-1", "sigkill", Kind.KILLED, 0, "rank 0 was ended by SIGKILL"),
        ("spawn", "raise", Kind.USER_ERROR, 1, "rank 1: KeyError: 'the data is not there'"),
        ("spawn", "exit-3", Kind.UNKNOWN, 1, "rank 1 ended with exit code 3 and no exception was seen"),
        ("spawn", "sigkill", Kind.KILLED, 1, "rank 1 was ended by SIGKILL"),
        ("spawn", "raise-late", Kind.UNKNOWN, 1, "rank 1, step 3: ZeroDivisionError: no luck"),
        ("driver", "raise", Kind.USER_ERROR, None, "KeyError: 'the data is not there'"),
        ("driver", "sigkill", Kind.KILLED, 0, "rank 0 was ended by SIGKILL"),
        ("driver", "raise-late", Kind.UNKNOWN, 0, "rank 0, step 3: ZeroDivisionError: no luck"),
        ("itself", "exit-3", Kind.UNKNOWN, None, "exit code 3 and no exception was seen"),
    ],
)
def test_how_one_rank_ends(pod: Pod, launcher: str, fate: str, kind: Kind, rank: int | None, reason: str) -> None:
    record, _ = run(pod, launcher, "out", fate)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank) == (kind, rank), record.verdict
    assert reason in record.verdict.reason


@pytest.mark.parametrize("mode, kind", [("success", Kind.NONE), ("oom", Kind.GPU_OOM), ("idle", Kind.NO_TRAINING)])
def test_a_trainer_below_a_driver(pod: Pod, mode: str, kind: Kind) -> None:
    record, _ = record_of(pod, "1", "starts.py", "driver", "train.py", mode)
    assert record.verdict is not None
    assert record.verdict.kind == kind
    [journal] = read_ranks(pod.job)
    assert [each["name"] for each in journal.of("phase")][:4] == ["import", "setup", "first_step", "steady"]
    assert len(journal.of("model")) == len(journal.of("segment")) == 1
    for name in ("data_wait_seconds", "grad_norm"):
        assert all(isinstance(step[name], float) for step in journal.of("step")), name
    assert journal.of("probe_error") == []


def test_fewer_ranks_than_were_asked_for(pod: Pod) -> None:
    """accelerate starts one process on the CPU, however many are asked for, unless told of MPI or GPUs."""
    record, _ = record_of(pod, "2", *ACCELERATE, "--cpu", "--num_processes", "2", "elastic.py", "out")
    assert record.measurements is not None
    assert record.measurements.flags["ranks_differ"] == "2 ranks were asked for, and 1 were seen"


def test_no_process_is_recognised(pod: Pod) -> None:
    target = pod.program(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-I', 'elastic.py', 'out'], check=True)\n"
    )
    record, ended = record_of(pod, "1", target)
    assert (pod.root / "out.0").exists()
    assert record.verdict is not None
    assert (record.verdict.kind, read_ranks(pod.job)) == (Kind.NO_TRAINING, [])
    assert record.verdict.hint is not None
    assert f"harness: hint: {record.verdict.hint}\n" in ended.stderr
    assert record.verdict.hint.startswith("no process of the target was recognised as a rank")


def test_a_program_that_tells_of_its_steps(pod: Pod) -> None:
    steps = "    for step in (1, 2, 3):\n        journal.step(step, loss=1.0 / step, tokens=8)\n"
    target = pod.program(f"from harness.probe import Journal\nwith Journal() as journal:\n{steps}")
    record, _ = record_of(pod, "1", target)
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NONE
    [journal] = read_ranks(pod.job)
    assert [step["loss"] for step in journal.of("step")] == [1.0, 1 / 2, 1 / 3]
    assert (journal.of("end")[0]["seen_by"], journal.of("end")[0]["exit_code"]) == ("journal", None)
    assert not (pod.root / "results").exists()


def test_trainings_that_follow_each_other_are_one_rank(pod: Pod) -> None:
    run_it = "    subprocess.run([sys.executable, 'elastic.py', out], check=True)\n"
    target = pod.program(f"import subprocess, sys\nfor out in 'ab':\n{run_it}")
    record, _ = record_of(pod, "1", target)
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NONE
    [journal] = read_ranks(pod.job)
    assert (len(journal.of("start")), len(journal.of("step")), len(journal.of("end"))) == (2, 10, 2)
    assert record.measurements is not None
    assert [(each.segment, each.steps) for each in record.measurements.segments] == [(0, 5), (1, 5)]
    assert "restarted" in record.measurements.flags


def test_a_failure_that_another_training_followed_is_not_the_drivers(pod: Pod) -> None:
    fates = "    subprocess.run([sys.executable, 'elastic.py', 'out', fate])\n"
    failure = "raise ValueError('my report has no template')\n"
    target = pod.program(f"import subprocess, sys\nfor fate in ('raise-late', ''):\n{fates}{failure}")
    record, _ = record_of(pod, "1", target)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank) == (Kind.USER_ERROR, None)
    assert "ValueError: my report has no template" in record.verdict.reason
    assert not pod.job.error(0).exists()


SCENARIO = """
name: launched
trainer:
  target: {program: torchrun}
  args: [--standalone, --local-addr, 127.0.0.1, --nproc-per-node, "{processes}", ../elastic.py, "{output_dir}/out"]
  cwd: .
  launcher: own
processes: 2
keep_outputs: true
"""


def test_a_scenario_names_a_launcher(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    done = bench.run()
    assert done.returncode == 0, done.stdout
    [(case, element)] = bench.case_elements().items()
    assert properties(element)["verdict"] == "none"
    job = JobPaths(bench.session / case / "attempt-1")
    assert [len(journal.of("step")) for journal in read_ranks(job)] == [5, 5]
    assert job.site.is_dir()
