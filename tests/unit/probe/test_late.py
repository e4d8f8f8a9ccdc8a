"""Processes that nobody has marked as ranks: measured from the moment they train; with a torch that can only step."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.probe.layout import JobPaths
from harness.probe.processes import started
from harness.probe.site_hook import RANK_PID, RANK_SIGNS
from harness.probe.staging import stage

TORCH = {
    "torch/__init__.py": "class cuda:\n    is_initialized = staticmethod(lambda: False)\nfrom . import optim\n",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
hooks = []
register_optimizer_step_post_hook = hooks.append
class Optimizer:
    param_groups = ()
    def step(self):
        for hook in hooks:
            hook(self, (), {})
""",
}
START = "import os, sys, time\nimport torch.optim.optimizer\noptimizer = torch.optim.optimizer.Optimizer()\n"


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    for name, text in TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job = JobPaths(tmp_path / "job")
    stage(job, every_python=True)
    return job


def run(job: JobPaths, text: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    program = job.root.parent / "program.py"
    program.write_text(START + text)
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = os.pathsep.join([str(job.site), str(job.root.parent)])
    return subprocess.run(
        [sys.executable, str(program)],
        env={**clean, "PYTHONPATH": path, RANK_SIGNS: "RANK", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def events(job: JobPaths, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in job.events(rank).read_text().splitlines()]
    return [event for event in lines if event["e"] == kind]


def test_a_process_that_never_trains_leaves_nothing(job: JobPaths) -> None:
    before = sorted(job.root.rglob("*.py"))
    done = run(job, f"print('harness_probe' in sys.modules, {RANK_PID!r} in os.environ)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False\n", "")
    assert (job.ranks(), sorted(job.root.rglob("*.py"))) == ([], before)


def test_the_first_step_makes_a_rank(job: JobPaths) -> None:
    begun = time.time()
    done = run(job, f"loaded = time.time()\noptimizer.step()\nprint(loaded, os.getpid(), os.environ[{RANK_PID!r}])\n")
    loaded, pid, told = done.stdout.split()
    assert (done.returncode, done.stderr, told) == (0, "", pid)
    [start], [first, steady] = events(job, "start"), events(job, "phase")
    assert (start["pid"], start["rank"], start["local_rank"], start["world_size"]) == (int(pid), 0, 0, 1)
    assert start["target"].endswith("program.py")
    assert (first["name"], steady["name"]) == ("import", "steady")
    assert begun < first["t"] < float(loaded) < start["t"]
    assert [step["step"] for step in events(job, "step")] == [1]
    [end] = events(job, "end")
    assert (end["exit_code"], end["steps"], end["seen_by"]) == (None, 1, "optimizer")
    assert events(job, "probe_error") == []
    assert job.holder(0).read_text().split()[0] == pid


@pytest.mark.parametrize(
    "text, code, told, error",
    [
        ("optimizer.step()\nraise LookupError('gone')\n", 1, 1, "builtins.LookupError"),
        ("optimizer.step()\nsys.exit(3)\n", 3, None, None),
        ("optimizer.step()\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n", 0, None, None),
    ],
)
def test_how_it_ends(job: JobPaths, text: str, code: int, told: int | None, error: str | None) -> None:
    done = run(job, text)
    assert (done.returncode, events(job, "end")[0]["exit_code"]) == (code, told)
    assert job.error(0).exists() == (error is not None)
    if error is not None:
        assert json.loads(job.error(0).read_text())["type"] == error
        assert "harness_probe" not in done.stderr


CHILD = """
import multiprocessing
def child():
    os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    optimizer.step()
    try:
        {fate}
    except KeyError:
        sys.exit(5)
if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=child)
    process.start()
    process.join()
    print(process.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize(
    "fate, code, error",
    [
        ("pass", 0, None),
        ("raise KeyError('behind')", 5, "builtins.KeyError"),
        ("raise OSError('mine')", 1, "builtins.OSError"),
    ],
)
def test_a_child_of_multiprocessing_knows_its_end(
    job: JobPaths, method: str, fate: str, code: int, error: str | None
) -> None:
    done = run(job, CHILD.format(fate=fate, method=method))
    assert done.stdout == f"{code}\n", done.stderr
    assert job.ranks() == [1]
    [start], [end] = events(job, "start", 1), events(job, "end", 1)
    assert (start["local_rank"], start["world_size"]) == (1, 2)
    assert end["steps"] == 1
    if sys.version_info >= (3, 13):  # multiprocessing has dealt with what has ended it
        assert end["exit_code"] is None
    else:
        assert end["exit_code"] == code
        assert job.error(1).exists() == (error is not None)
        assert error is None or json.loads(job.error(1).read_text())["type"] == error


TORCH_SPAWN = """
import multiprocessing, sys
def _wrap(fn):
    try:
        fn()
    except Exception:
        sys.exit(1)
def spawn(fn):
    process = multiprocessing.get_context("spawn").Process(target=_wrap, args=(fn,))
    process.start()
    process.join()
    print(process.exitcode)
"""
SPAWNS = """
import torch.multiprocessing.spawn
def child():
    os.environ.update(RANK="1", WORLD_SIZE="2")
    optimizer.step()
    {fate}
if __name__ == "__main__":
    torch.multiprocessing.spawn.spawn(child)
"""


@pytest.mark.parametrize(
    "fate, code, error",
    [("pass", 0, None), ("raise OSError('mine')", 1, "builtins.OSError"), ("sys.exit(7)", 7, "builtins.SystemExit")],
)
def test_a_process_of_torchs_spawn(job: JobPaths, fate: str, code: int, error: str | None) -> None:
    folder = job.root.parent / "torch" / "multiprocessing"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "spawn.py").write_text(TORCH_SPAWN)
    done = run(job, SPAWNS.format(fate=fate))
    assert done.stdout == f"{code}\n", done.stderr
    [end] = events(job, "end", 1)
    assert (end["exit_code"], end["steps"]) == (code, 1)
    assert job.error(1).exists() == (error is not None)
    assert error is None or json.loads(job.error(1).read_text())["type"] == error


def test_what_it_forks_once_it_trains_is_no_rank(job: JobPaths) -> None:
    done = run(job, "optimizer.step()\nif os.fork() == 0:\n    optimizer.step()\n    sys.exit()\nos.wait()\n")
    assert done.returncode == 0, done.stderr
    assert (len(events(job, "start")), len(events(job, "step")), len(events(job, "end"))) == (1, 1, 1)


def test_a_rank_that_another_process_is_already(job: JobPaths) -> None:
    job.rank(0).mkdir()
    job.holder(0).write_text(f"{os.getpid()} {started(os.getpid())}")
    done = run(job, "optimizer.step()\noptimizer.step()\nprint('ended')\n")
    assert (done.returncode, done.stdout) == (0, "ended\n")
    said = "harness: this process is not measured: rank 0 of the job is another process that runs\n"
    assert done.stderr == said
    assert not job.events(0).exists()


def test_a_job_directory_that_is_gone(job: JobPaths) -> None:
    done = run(
        job, f"import shutil; shutil.rmtree({str(job.root)!r}); open({str(job.root)!r}, 'w')\noptimizer.step()\n"
    )
    assert done.returncode == 0
    assert done.stderr.startswith("harness: this process is not measured: rank 0 has no folder: ")


def test_what_joins_a_process_group_protects_its_children(job: JobPaths) -> None:
    """A helper that it starts before its first step would else be taken for the rank whose number it inherits."""
    distributed = job.root.parent / "torch" / "distributed"
    distributed.mkdir()
    (distributed / "__init__.py").write_text("from .distributed_c10d import *\nis_available = lambda: False\n")
    (distributed / "distributed_c10d.py").write_text("def init_process_group(backend):\n    return backend\n")
    helper = "subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), 'helper.py')], check=True)\n"
    (job.root.parent / "helper.py").write_text("print('helped')\n")
    group = (
        "import subprocess\nimport torch.distributed\nprint(torch.distributed.init_process_group('gloo'), flush=True)\n"
    )
    done = run(job, f"os.environ['RANK'] = '0'\n{group}{helper}optimizer.step()\n")
    assert (done.returncode, done.stdout) == (0, "gloo\nhelped\n"), done.stderr
    assert len(events(job, "start")) == len(events(job, "step")) == 1
