"""Programs that journal for themselves, in a job of their own and in one of the harness."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe.attach import attach
from harness.probe.layout import JobPaths
from harness.probe.own_job import rank_of
from harness.probe.tokens import told_counts
from tests.unit.jobs import eventually
from tests.unit.probe.jobs import run

LOOP = """
import sys
from harness.probe import Journal

with Journal({{"team": "loop", "api_key": "abcdefghijkl"}}, output_file="out/dump.json", repo=False) as journal:
    for step in range(1, 8):
        journal.step(step, loss=1 / step, learning_rate=0.1, tokens=8, samples=2)
        {more}
    journal.log(7, eval_loss=0.5)
"""


def loop(folder: Path, more: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
    (folder / "loop.py").write_text(LOOP.format(more=more))
    return program(folder, "loop.py", **environ)


def program(folder: Path, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def jobs(folder: Path) -> list[JobPaths]:
    found = [JobPaths(path.parent) for path in folder.glob("results/*/attempt-1/job.json")]
    return sorted(found, key=lambda job: json.loads(job.job.read_bytes())["created"])


def events(job: JobPaths, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in job.events(rank).read_text().splitlines()]
    return [event for event in lines if event["e"] == kind]


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def values(dump: Mapping[str, Any], name: str) -> list[Any]:
    found: list[Any] = next(s["values"] for s in dump["sequences"] if s["name"] == name)
    return found


def test_a_loop_of_its_own(tmp_path: Path) -> None:
    done = loop(tmp_path, more="import time; time.sleep(0.1)  # for a sample")
    assert (done.returncode, done.stderr) == (0, "")
    [job] = jobs(tmp_path)
    steps, tokens = events(job, "step"), events(job, "tokens")
    assert [step["step"] for step in steps] == list(range(1, 8))
    assert all(step["seconds"] >= 0 and step["learning_rate"] == 0.1 for step in steps)
    assert [(t["padded"], t["non_pad"], t["trainable"], t["samples"]) for t in tokens] == [(8, 8, None, 2)] * 7
    assert events(job, "end")[0]["seen_by"] == "journal"
    assert not events(job, "probe_error")
    dump = read(tmp_path / "out" / "dump.json")
    assert values(dump, "loss") == [1 / step for step in range(1, 8)]
    assert values(dump, "eval_loss") == [0.5]
    assert (dump["error"], dump["run_hash"], dump["repo"]) == (None, None, None)
    assert dump["labels"]["team"] == "loop"
    assert dump["labels"]["experiment"] == "loop"
    assert values(dump, "__system__memory_percent")
    assert read(job.end)["verdict"]["kind"] == "none"
    assert job.root.stat().st_mode & 0o777 == 0o700


def test_secrets_among_the_labels(tmp_path: Path) -> None:
    loop(tmp_path, HF_TOKEN="correct-horse-battery", more="journal.log(step, correct=1)")
    written = [path for path in tmp_path.rglob("*.json*") if path.is_file()]
    assert len(written) > 3
    for secret in (b"abcdefghijkl", b"correct-horse-battery"):
        assert [path for path in written if secret in path.read_bytes()] == []


def test_an_exception_in_the_loop(tmp_path: Path) -> None:
    done = loop(tmp_path, more="if step == 3: raise RuntimeError('CUDA out of memory. Tried to allocate 2.15 GiB.')")
    assert done.returncode == 1
    assert "harness" not in done.stderr.replace("harness.probe", "").replace("harness/probe", "")
    dump = read(tmp_path / "out" / "dump.json")
    assert dump["error"] == {
        "kind": "gpu_oom",
        "type": "builtins.RuntimeError",
        "message": "CUDA out of memory. Tried to allocate 2.15 GiB.",
        "rank": 0,
        "step": 4,
    }
    assert len(values(dump, "loss")) == 3
    [job] = jobs(tmp_path)
    assert read(job.end)["verdict"]["kind"] == "gpu_oom"


def test_a_journal_that_nobody_closes(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text(
        "from harness.probe import Journal\n"
        "journal = Journal(output_file='dump.json', repo=False)\n"
        "journal.step(1, loss=2.0)\n"
        "raise FileNotFoundError('data.jsonl')\n"
    )
    assert program(tmp_path, "open.py").returncode == 1
    dump = read(tmp_path / "dump.json")
    assert (dump["error"]["kind"], dump["error"]["message"]) == ("user_error", "data.jsonl")
    assert values(dump, "loss") == [2.0]


def test_each_journal_of_a_process_has_a_job(tmp_path: Path) -> None:
    """Also when they live at the same time; one that is closed has ended."""
    (tmp_path / "sweep.py").write_text(
        "import pathlib\n"
        "from harness.probe import Journal\n"
        "journals = [Journal({'rate': rate}, repo=False) for rate in (0.1, 0.2)]\n"
        "for journal, rate in zip(journals, (0.1, 0.2)):\n"
        "    journal.step(1, loss=rate)\n"
        "journals[0].close()\n"
        "assert len(list(pathlib.Path('results').glob('*/*/end.json'))) == 1\n"
        "journals[0].step(2)\n"
    )
    assert program(tmp_path, "sweep.py").stderr == ""
    found = jobs(tmp_path)
    assert [read(job.job)["labels"]["rate"] for job in found] == [0.1, 0.2]
    assert [events(job, "step")[0]["loss"] for job in found] == [0.1, 0.2]
    assert all(job.end.exists() for job in found)


def test_a_killed_program_leaves_its_steps_and_no_process(tmp_path: Path) -> None:
    done = loop(tmp_path, more="import os; step == 5 and os.kill(os.getpid(), 9)")
    assert done.returncode == -9
    [job] = jobs(tmp_path)
    assert len(events(job, "step")) == 5
    eventually(lambda: not _alive(str(tmp_path)))


def _alive(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_the_ranks_of_one_launch_share_a_job(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(
        "import pathlib, time\n"
        "from harness.probe import Journal\n"
        "journal = Journal(repo=False)\n"
        "journal.step(1, loss=1.0)\n"
        "until = time.monotonic() + 30\n"
        "folder = journal._attached.meter.job.root\n"
        "while len(list(folder.glob('rank-*'))) < 2 and time.monotonic() < until:\n"
        "    time.sleep(0.02)  # as in training, where ranks wait for each other\n"
    )
    (tmp_path / "launch.py").write_text(
        "import os, subprocess, sys\n"
        "started = [subprocess.Popen([sys.executable, 'ranks.py'],"
        " env={**os.environ, 'RANK': str(n), 'WORLD_SIZE': '2', 'MASTER_PORT': '1'}) for n in range(2)]\n"
        "sys.exit(any([process.wait() for process in started]))\n"
    )
    for number in (1, 2):
        assert program(tmp_path, "launch.py").returncode == 0
        found = jobs(tmp_path)
        assert len(found) == number
        assert found[-1].ranks() == [0, 1]


def test_in_a_job_of_the_harness(tmp_path: Path) -> None:
    """The probe measures; the program's optimizer is no longer watched, and its labels are journalled."""
    target = tmp_path / "target.py"
    target.write_text(
        "import torch\n"
        "from harness.probe import Journal\n"
        "parameter = torch.nn.Parameter(torch.ones(1))\n"
        "optimizer = torch.optim.SGD([parameter], lr=0.1)\n"
        "journal = Journal({'team': 'own'}, output_file='dump.json')\n"
        "for step in (1, 2, 3):\n"
        "    parameter.grad = torch.ones(1)\n"
        "    optimizer.step()\n"
        "    journal.step(step, loss=parameter.detach().sum(), tokens=torch.tensor(5))\n"
    )
    ended = run(tmp_path / "job", str(target))
    assert ended.exit_code == 0, ended.logs()
    assert [event["loss"] for event in ended.events("step")] == pytest.approx([0.9, 0.8, 0.7])
    assert ended.one("labels")["labels"] == {"team": "own"}
    assert ended.one("end")["seen_by"] == "journal"
    assert not ended.events("probe_error")
    assert len(values(read(tmp_path / "job" / "dump.json"), "loss")) == 3
    assert not (tmp_path / "job" / "results").exists()


ODD = r"""
import sys
import torch
from harness.probe import Journal

class Bad:
    def __str__(self):
        raise RuntimeError("no text")

loop = {}
loop["self"] = loop
labels = {"bad": Bad(), "loop": loop, "huge": 10**5000, 3: float("nan"), "tensor": torch.ones(1), "\udcff": "\udcff"}
with Journal(labels, output_file="dump.json", repo=False) as journal:
    journal.step(torch.tensor(1), loss=torch.ones(2), tokens="many", samples=None, epoch=torch.tensor(0.5))
    journal.step(torch.tensor(2), loss="NaN", tokens=torch.tensor(7), samples=2.0)
    journal.step(1, loss=3, tokens=True)
    journal.log(1, eval_loss=torch.tensor(4.0))
    try:
        journal.step("three")
    except TypeError:
        print("no step")
"""


def test_odd_values_cost_themselves_and_no_step(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    done = program(tmp_path, "odd.py")
    assert (done.returncode, done.stdout) == (0, "no step\n"), done.stderr
    [job] = jobs(tmp_path)
    steps = [(step["segment"], step["step"], step["loss"], step["epoch"]) for step in events(job, "step")]
    assert steps == [(0, 1, None, 0.5), (0, 2, "NaN", None), (1, 1, 3.0, None)]
    assert [(tokens["non_pad"], tokens["samples"]) for tokens in events(job, "tokens")] == [(7, 2), (1, None)]
    assert events(job, "log")[0]["logs"] == {"eval_loss": 4.0}
    assert len(events(job, "probe_error")) == 1
    assert "harness: a measurement failed, Journal.step" in done.stderr
    labels = read(tmp_path / "dump.json")["labels"]
    assert (labels["bad"], labels["3"]) == ("<Bad whose text failed with RuntimeError>", "nan")


def test_tokens_on_a_device_are_not_waited_for() -> None:
    tokens, trainable = (SimpleNamespace(is_cpu=False) for _ in range(2))  # neither has a value yet
    counts = told_counts((tokens, None, trainable, 2))
    assert counts is not None
    assert counts.device_numbers == [tokens, trainable]
    assert counts.fields([5, 4]) == {
        "padded": 5,
        "non_pad": 5,
        "trainable": 4,
        "samples": 2,
        "padded_squares": None,
        "non_pad_squares": None,
        "micro_batches": 0,
        "reason": None,
    }


def test_processes_that_a_program_starts(tmp_path: Path) -> None:
    """A journal of a forked child ends with it; a parent's is no child's to end."""
    (tmp_path / "forks.py").write_text(
        "import multiprocessing\n"
        "from harness.probe import Journal\n"
        "def child(number):\n"
        "    Journal({'number': number}, repo=False).step(1, loss=number)\n"
        "if __name__ == '__main__':\n"
        "    journal = Journal({'number': 0}, repo=False)\n"
        "    journal.step(1, loss=0)\n"
        "    for method in ('fork', 'spawn'):\n"
        "        process = multiprocessing.get_context(method).Process(target=child, args=(method,))\n"
        "        process.start()\n"
        "        process.join()\n"
        "    journal.step(2, loss=0)\n"
    )
    assert program(tmp_path, "forks.py").returncode == 0
    found = jobs(tmp_path)
    assert [read(job.job)["labels"]["number"] for job in found] == [0, "fork", "spawn"]
    assert [len(events(job, "step")) for job in found] == [2, 1, 1]
    assert all(job.end.exists() for job in found)


def test_the_main_module_of_a_spawned_child_begins_no_job(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "import multiprocessing\n"
        "from harness.probe import Journal\n"
        "journal = Journal(repo=False)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    assert program(tmp_path, "module.py").returncode == 0
    assert len(jobs(tmp_path)) == 1


def test_a_child_of_a_job_of_the_harness_begins_none(tmp_path: Path) -> None:
    done = loop(tmp_path, HARNESS_JOB_ID="there-is-one")
    assert done.returncode == 0
    assert "this process of the job is no rank" in done.stderr
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "out" / "dump.json").exists()


def test_an_exit_code_is_an_error(tmp_path: Path) -> None:
    assert loop(tmp_path, more="step == 3 and sys.exit('diverged')").returncode == 1
    assert read(tmp_path / "out" / "dump.json")["error"] == {
        "kind": "unknown",
        "type": "builtins.SystemExit",
        "message": "diverged",
        "rank": 0,
        "step": 3,
    }
    [job] = jobs(tmp_path)
    assert read(job.end)["verdict"]["kind"] == "unknown"


def test_what_another_cell_of_a_notebook_has_raised(tmp_path: Path) -> None:
    done = loop(tmp_path, more="sys.last_value = ValueError('of a cell')")
    assert done.returncode == 0
    (tmp_path / "notebook.py").write_text(
        "import sys\nsys.last_value = sys.last_exc = NameError('typo')\n" + (tmp_path / "loop.py").read_text()
    )
    assert program(tmp_path, "notebook.py").returncode == 0
    assert read(tmp_path / "out" / "dump.json")["error"] is None
    assert [read(job.end)["verdict"]["kind"] for job in jobs(tmp_path)] == ["none", "none"]


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    done = loop(tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0
    assert f"harness: {tmp_path}/results cannot be written" in done.stderr
    assert len(list(tmp_path.glob("harness-*/*/attempt-1/rank-0/events.jsonl"))) == 1
    assert len(values(read(tmp_path / "out" / "dump.json"), "loss")) == 7


@pytest.mark.parametrize("name", ["folder", "text", "fifo", "x" * 300])
def test_what_is_no_dump_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("import torch\n")
    os.mkfifo("fifo")
    before = sorted(os.listdir())
    with pytest.raises(OSError):  # noqa: PT011  # of several kinds
        attach({}, name, False)
    assert sorted(os.listdir()) == before
    assert Path("text").read_text() == "import torch\n"


def test_a_dump_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dump.json").symlink_to(tmp_path / "real.json")
    for _ in range(2):
        assert loop(tmp_path).returncode == 0
    assert read(tmp_path / "real.json")["error"] is None
    assert (tmp_path / "out" / "dump.json").is_symlink()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1"}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "abc", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, 4)),
    ],
)
def test_the_rank(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_of(environ) == expected


def test_labels_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="custom_metadata is a list, not a mapping"):
        attach(["team"], None, False)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        attach({}, tmp_path / "file" / "dump.json", False)
    assert not (tmp_path / "results").exists()
