"""Which Pythons of a job are ranks, and how one that is starts anew; as tables, without a process."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.probe.gate import rank_command, rank_of
from harness.probe.layout import JobPaths
from harness.probe.processes import claim, lives, started
from harness.probe.site_hook import RANK_ABOVE, RANK_PID, RANK_SIGNS, part_of

MAIN, JOB = "/job/probe/harness_probe/__main__.py", "/job"
SIGNS = {RANK_SIGNS: "RANK,ACCELERATE_MIXED_PRECISION"}


@pytest.mark.parametrize(
    "environ, argv, part",
    [
        pytest.param({}, ["python", "-m", "torch.distributed.run"], "open", id="launcher"),
        pytest.param({"RANK": "1"}, ["python", "train.py"], "rank", id="torchrun, deepspeed"),
        pytest.param(
            {"ACCELERATE_MIXED_PRECISION": "no"}, ["python", "train.py"], "rank", id="accelerate, one process"
        ),
        pytest.param(
            {"ACCELERATE_MIXED_PRECISION": "no", RANK_SIGNS: "RANK"}, ["python", "train.py"], "open", id="the job's own"
        ),
        pytest.param({"RANK": "1", RANK_SIGNS: ""}, ["python", "train.py"], "open", id="no sign"),
        pytest.param({"RANK": "1", RANK_PID: "7"}, ["python", "helper.py"], "none", id="helper of a rank"),
        pytest.param({RANK_PID: "7"}, ["python", "-c", "from multiprocessing.spawn"], "none", id="worker of a rank"),
        pytest.param(
            {"RANK": "1", RANK_PID: "7", RANK_ABOVE: "0"},
            ["python", "train.py"],
            "open",
            id="below one that was not marked",
        ),
        pytest.param({"RANK": "1", RANK_PID: "42"}, ["python", MAIN, JOB, "train.py"], "none", id="started anew"),
        pytest.param({"RANK": "1", RANK_PID: "42"}, ["python", "other.py"], "open", id="replaced by itself"),
    ],
)
def test_part_of_a_process(environ: Mapping[str, str], argv: Sequence[str], part: str) -> None:
    assert part_of({**SIGNS, **environ}, argv, 42, MAIN) == part


@pytest.mark.parametrize(
    "argv, command",
    [
        (["train.py", "-m", "x"], [MAIN, JOB, "train.py", "-m", "x"]),
        (["-u", "train.py"], ["-u", MAIN, JOB, "train.py"]),
        (["-u", "-m", "pkg.train", "--lr", "1"], ["-u", MAIN, JOB, "-m", "pkg.train", "--lr", "1"]),
        (["-um", "pkg.train"], ["-u", MAIN, JOB, "-m", "pkg.train"]),
        (["-mpkg.train", "-u"], [MAIN, JOB, "-m", "pkg.train", "-u"]),
        (["-X", "dev", "-Wignore", "-W", "error", "x.py"], ["-X", "dev", "-Wignore", "-W", "error", MAIN, JOB, "x.py"]),
        (["-OOX", "utf8", "train.py"], ["-OOX", "utf8", MAIN, JOB, "train.py"]),
        (["-BP", "--", "train.py"], ["-BP", MAIN, JOB, "train.py"]),
        (["--check-hash-based-pycs", "never", "train.py"], ["--check-hash-based-pycs", "never", MAIN, JOB, "train.py"]),
        (["folder/", "--"], [MAIN, JOB, "folder/", "--"]),
        (["-c", "from multiprocessing.spawn import spawn_main"], None),
        (["-uc", "pass"], None),
        (["-"], None),
        (["-u", "-"], None),
        (["-x", "train.py"], None),
        (["-m"], None),
        (["-u"], None),
        (["-W", "ignore"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_command_of_a_rank(argv: Sequence[str], command: Sequence[str] | None) -> None:
    expected = None if command is None else ["/bin/python3", *command]
    assert rank_command(["/bin/python3", *argv], MAIN, JOB) == expected


@pytest.mark.parametrize("told, rank", [({"RANK": "3"}, 3), ({}, 0), ({"RANK": ""}, 0), ({"RANK": "²"}, 0)])
def test_rank_of(told: Mapping[str, str], rank: int) -> None:
    assert rank_of(dict(told)) == rank


CLAIMS = """
import sys
from pathlib import Path
from harness.probe.layout import JobPaths
from harness.probe.processes import claim
print(claim(JobPaths(Path(sys.argv[1])), 1), flush=True)
sys.stdin.read()
"""


def test_a_rank_is_one_living_process(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    command = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not claim(job, 1)
        assert claim(job, 2)
        assert claim(job, 2)  # again by the same process
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert claim(job, 1)  # it has ended, though nobody has asked yet
    held = job.holder(1).read_text().split()
    assert held == [str(os.getpid()), started(os.getpid())]
    assert lives(os.getpid(), held[1])
    assert not lives(os.getpid(), "1")


@pytest.mark.parametrize("text", ["", "7", "x y", "1 1 1", "{parent} 1", "999999999 1"])
def test_a_claim_that_nobody_holds(tmp_path: Path, text: str) -> None:
    job = JobPaths(tmp_path)
    job.rank(0).mkdir()
    job.holder(0).write_text(text.format(parent=os.getppid()))
    assert claim(job, 0)


def test_what_ended_a_rank_does_not_end_the_next(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    assert claim(job, 0)
    left = [job.error(0), job.memory(0), job.memory_snapshot(0), job.events(0)]
    for path in left:
        path.touch()
    job.holder(0).write_text("999999999 1")
    assert claim(job, 0)
    assert [path.name for path in left if path.exists()] == ["events.jsonl"]
