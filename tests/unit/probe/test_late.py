"""Processes that nobody has marked as ranks: measured from the moment they train; with a torch that can only step."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.probe import hooks, late
from harness.probe.journal import EVENTS
from harness.probe.layout import JobPaths
from harness.probe.processes import started
from harness.probe.site_hook import RANK_PID, RANK_SIGNS, WATCHED
from harness.probe.staging import stage
from tests.unit.probe.jobs import TARGETS

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
    fork = "optimizer.step()\nif os.fork() == 0:\n    {}\n    sys.exit()\nos.wait()\nprint(os.getpid())\n"
    for does, trains in (("pass", False), ("optimizer.step(), optimizer.step()", True)):
        done = run(job, fork.format(does))
        pid = done.stdout.strip()
        said = f"harness: this process is not measured: it runs below process {pid}, which is rank 0\n"
        assert (done.returncode, done.stderr) == (0, said if trains else "")
    assert (len(events(job, "start")), len(events(job, "step")), len(events(job, "end"))) == (2, 2, 2)
    assert len(events(job, "unmeasured")) == 1


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


def test_a_training_below_a_process_that_has_stepped_is_told(job: JobPaths) -> None:
    """A driver that takes one step as a check, and then starts the training that was meant."""
    below = job.root.parent / "below.py"
    below.write_text(START + "for _ in range(5):\n    optimizer.step()\nprint(os.getpid(), flush=True)\n")
    helper = "subprocess.run([sys.executable, '-c', 'import torch.optim.optimizer'], check=True)\n"
    check = (
        f"optimizer.step()\nimport subprocess\n{helper}subprocess.run([sys.executable, {str(below)!r}], check=True)\n"
    )
    done = run(job, f"{check}print(os.getpid())\n")
    below_pid, pid = done.stdout.split()
    why = f"it runs below process {pid}, which is rank 0"
    assert (done.returncode, done.stderr) == (0, f"harness: this process is not measured: {why}\n")
    assert [step["step"] for step in events(job, "step")] == [1]
    [told] = events(job, "unmeasured")
    assert (told["pid"], told["target"], told["why"]) == (int(below_pid), str(below), why)
    assert {"t", "m", "e", *EVENTS["unmeasured"]} == set(told)
    assert events(job, "probe_error") == []


def test_a_second_process_that_trains_as_the_same_rank_is_told_in_its_journal(job: JobPaths) -> None:
    program = job.root.parent / "second.py"
    program.write_text(START + "optimizer.step()\n")
    unrelated = "env = {name: text for name, text in os.environ.items() if not name.startswith('HARNESS_RANK_')}\n"
    second = f"subprocess.run([sys.executable, {str(program)!r}], env=env, check=True)\n"
    done = run(job, f"import subprocess\noptimizer.step()\n{unrelated}{second}")
    assert done.returncode == 0, done.stderr
    assert [told["why"] for told in events(job, "unmeasured")] == ["rank 0 of the job is another process that runs"]


def test_a_patch_that_fails_before_training_is_journalled_with_it(job: JobPaths) -> None:
    loader = job.root.parent / "torch" / "utils" / "data"
    loader.mkdir(parents=True)
    for folder in (loader, loader.parent):
        (folder / "__init__.py").touch()
    (loader / "dataloader.py").write_text("import torch.optim.optimizer\n")
    done = run(job, "import torch.utils.data.dataloader\noptimizer.step()\n")
    assert (done.returncode, done.stderr) == (0, "")
    [fault] = events(job, "probe_error")
    assert fault["where"] == "patch torch.utils.data.dataloader"
    assert fault["t"] < events(job, "start")[0]["t"]


def test_all_that_is_patched_is_waited_for() -> None:
    """A module that is half imported when the hooks are put in place has nothing yet that could be patched."""
    assert {*hooks.PATCHES, *late.PATCHES} <= WATCHED


LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for (rows,) in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8):
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ACCELERATED = """
from accelerate import Accelerator
import torch
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for (batch,) in rows:
    accelerator.backward(model(batch).square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
TRAINER = f"""
from accelerate import PartialState
import runpy, sys
sys.argv = ["train.py", "good"]
runpy.run_path({str(TARGETS / "trainer_script.py")!r}, run_name="__main__")
"""
SPAWNED = """
import torch.multiprocessing
def train(index):
    exec(open("loop.py").read())
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, field",
    [
        pytest.param(LOOP, "data_wait_seconds", id="loop"),
        pytest.param(SPAWNED, "data_wait_seconds", id="spawn"),
        pytest.param(ACCELERATED, "data_wait_seconds", id="accelerate-wait"),
        pytest.param(ACCELERATED, "grad_norm", id="accelerate-norm"),
        pytest.param(TRAINER, "grad_norm", id="trainer-after-accelerate"),
    ],
)
def test_a_library_whose_import_brings_in_another_is_patched_whole(tmp_path: Path, text: str, field: str) -> None:
    job = JobPaths(tmp_path / "job")
    stage(job, every_python=True)
    (tmp_path / "loop.py").write_text(LOOP)
    program = tmp_path / "program.py"
    program.write_text(text)
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**clean, "PYTHONPATH": str(job.site), RANK_SIGNS: "RANK"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = events(job, "step")
    assert len(steps) == 4
    assert all(isinstance(step[field], float) and step[field] > 0 for step in steps)
    assert events(job, "probe_error") == []
