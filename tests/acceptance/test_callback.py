"""The tagging callback: in a plain script under every fault of Aim, under torchrun, and in a job of the harness."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from harness.record import Kind
from tests.acceptance.conftest import TARGETS, Pod
from tests.aim_faults import FAULTS, STEPS, Fault, bare_python, fault_id, forwarder_killed, is_struck_at, needs_aim
from tests.unit.forward.recorded import query
from tests.unit.jobs import eventually, processes_naming

pytestmark = [pytest.mark.slow, needs_aim]

TIMEOUT_S = 6.0  # of the forwarder, from the program's end
OOM_ON_RANK_1 = """
import os
import torch
import steps
from transformers import TrainerCallback
from harness.probe import BenchmarkAimCallback

class Fail(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if os.environ["RANK"] == "1" and state.global_step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.15 GiB.")

steps.main(Fail(), BenchmarkAimCallback({"team": "own"}, output_file="out/dump.json", repo=False))
"""
SWEEP = """
import steps
from harness.probe import BenchmarkAimCallback

for seed in (1, 2):
    steps.main(BenchmarkAimCallback({"seed": seed}, output_file=f"out/{seed}.json", repo="runs"))
steps.main()
"""


@dataclass(frozen=True)
class Script:
    """A person's folder with a script in it, and what became of running it."""

    root: Path

    def start(self, *arguments: str, python: str = sys.executable, **environ: str) -> "subprocess.Popen[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_CORE"))}
        told = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [python, *arguments],
            cwd=self.root,
            env={**clean, **told, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return ended(self.start(*arguments, **environ))

    @property
    def jobs(self) -> list[JobPaths]:
        """The job directories, by age."""
        found = [JobPaths(path.parent) for path in self.root.glob("results/*/attempt-1/job.json")]
        return sorted(found, key=lambda job: json.loads(job.job.read_bytes())["created"])

    def dump(self, name: str = "dump") -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.root / "out" / f"{name}.json").read_text())
        return document


def ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return make_script(tmp_path)


def make_script(root: Path) -> Script:
    for target in TARGETS.glob("*.py"):
        (root / target.name).write_bytes(target.read_bytes())
    return Script(root)


def series(dump: dict[str, Any], rank: int = 0) -> dict[str, tuple[list[int], list[float], list[float]]]:
    """The sequences that do not depend on time."""
    names = ("loss", "grad_norm", "learning_rate")
    return {
        each["name"]: (each["steps"], each["values"], each["epochs"])
        for each in dump["sequences"]
        if each["name"] in names and each["context"] == {"rank": rank}
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The dump of the same script without Aim."""
    script = make_script(tmp_path_factory.mktemp("reference"))
    done = script.run("own.py", "-", str(STEPS))
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["None", "None"]), done.stderr
    dump = script.dump()
    assert {name: len(steps) for name, (steps, _, _) in series(dump).items()} == dict.fromkeys(
        ("loss", "grad_norm", "learning_rate"), STEPS
    )
    return dump


def python_without_aim(folder: Path) -> str:
    """This interpreter's packages, but for Aim, in a venv made in `folder`."""
    python = bare_python(folder)
    [packages] = folder.glob("lib/*/site-packages")
    (packages / "aim.py").write_text("raise ModuleNotFoundError('No module named aim', name='aim')")
    here = Path(__file__).parents[2]
    (packages / "all.pth").write_text(f"{sysconfig.get_path('purelib')}\n{here}\n")
    return str(python)


@pytest.mark.parametrize("fault", FAULTS, ids=fault_id)
def test_a_fault_of_aim_costs_a_script_nothing(
    script: Script, reference: dict[str, Any], fault: Callable[[Path], AbstractContextManager[Fault]]
) -> None:
    state, reason = FAULTS[fault]
    with fault(script.root) as given:
        repo, strike = given.repo, given.strike
        python = python_without_aim(script.root / "venv") if given.without_aim else sys.executable
        gate = ["gate"] if strike else []
        patience = {"HARNESS_AIM_TIMEOUT_S": f"{TIMEOUT_S:g}"}
        process = script.start("own.py", repo, str(STEPS), *gate, python=python, **patience)
        if strike is not None:
            eventually(lambda: process.poll() is not None or any(map(is_struck_at, script.jobs)))
            strike()
            (script.root / "gate").touch()
        done = ended(process)
        assert done.returncode == 0, done.stderr
        dump = script.dump()
        [job] = script.jobs
        told = last_word(job)
    assert series(dump) == series(reference)
    assert (dump["error"], dump["labels"]["team"], dump["labels"]["seed"]) == (None, "own", 7)
    assert [each["values"] for each in dump["sequences"] if each["name"] == "__system__memory_percent"]
    assert (told["state"], told["indexed"]) == (state, False)
    assert ("still forwarding" if fault is forwarder_killed else reason) in told["reason"]
    if state == "failed":
        assert f"harness: nothing has reached Aim: {told['reason']}" in done.stderr
        assert dump["run_hash"] is None


def last_word(job: JobPaths) -> dict[str, Any]:
    """forwarder.json when no forwarder of the job is left."""
    eventually(lambda: not processes_naming(f"forward/__main__.py\0{job.root}"))
    return read_document(job.forwarder) or {}


def test_the_run_is_found_by_what_the_program_says(script: Script) -> None:
    done = script.run("own.py", "runs", "6")
    [job] = script.jobs
    assert last_word(job)["state"] == "complete", last_word(job)
    dump = script.dump()
    assert done.stdout.split()[-2:] == [dump["run_hash"], str(script.root / "runs")]
    [run] = query(script.root / "runs", "run.benchmark.labels.team == 'own' and run.experiment == 'own'")
    assert (run["hash"], run["name"], run["benchmark"]["verdict"]) == (dump["run_hash"], "own", "none")
    assert run["series"]['loss {"rank": 0}'][1] == series(dump)["loss"][1]


def test_a_script_that_is_killed(script: Script) -> None:
    process = script.start("own.py", "runs", "2000")
    eventually(lambda: process.poll() is not None or any(job.events(0).exists() for job in script.jobs))
    [job] = script.jobs
    eventually(lambda: ((read_document(job.forwarder) or {}).get("tracked") or 0) > 20)
    process.kill()
    ended(process)
    told = last_word(job)
    assert "nobody has left a verdict" in told["reason"]
    assert told["indexed"]
    [run] = query(script.root / "runs", "run.benchmark.labels.team == 'own'")
    assert len(run["series"]['loss {"rank": 0}'][0]) > 3


def test_an_error_on_another_rank(script: Script) -> None:
    (script.root / "fail.py").write_text(OOM_ON_RANK_1)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    done = script.run(*torchrun, "fail.py", "20", GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 1
    dump = script.dump()
    assert (dump["error"]["kind"], dump["error"]["rank"]) == ("gpu_oom", 1), done.stderr
    assert [len(series(dump, rank)["loss"][0]) for rank in (0, 1)] >= [2, 2]
    [job] = script.jobs
    assert job.ranks() == [0, 1]


def test_a_callback_for_each_of_several_trainings(script: Script) -> None:
    """Each is a job and a run; a Trainer without a callback is left alone."""
    (script.root / "sweep.py").write_text(SWEEP)
    done = script.run("sweep.py", "4")
    assert done.returncode == 0, done.stderr
    jobs = script.jobs
    assert [len(list(read_events(job.events(0)))) > 8 for job in jobs] == [True, True]
    assert [last_word(job)["state"] for job in jobs] == ["complete", "complete"]
    for seed, job in enumerate(jobs, 1):
        assert len(series(script.dump(str(seed)))["loss"][0]) == 4
        [run] = query(script.root / "runs", f"run.benchmark.labels.seed == {seed}")
        assert run["benchmark"]["job"] == str(job.root)


def test_in_a_job_of_the_harness(pod: Pod) -> None:
    done = pod.run("--aim-repo", "runs", "--label", "team=launch", "--", "own.py", "elsewhere", "6")
    assert done.code == 0, done.stderr
    assert done.record is not None
    assert (done.record.labels["team"], done.record.labels["seed"]) == ("launch", "7")
    assert done.record.aim is not None
    assert done.record.aim["state"] == "complete"
    dump: dict[str, Any] = json.loads((pod.root / "out" / "dump.json").read_text())
    assert done.stdout.split()[-2:] == [dump["run_hash"], str(pod.root / "runs")]
    assert "not to the program's repo" in done.stderr
    assert not (pod.root / "results").exists()
    assert not (pod.root / "elsewhere").exists()
    steps = [event for _, event in read_events(pod.job.events(0)) if event["e"] == "step"]
    assert len(steps) == 6
    [run] = query(pod.root / "runs", "run.benchmark.labels.team == 'launch' and run.benchmark.labels.seed == 7")
    assert run["hash"] == dump["run_hash"]


@pytest.mark.parametrize(
    ("command", "kind", "error"),
    [
        (["train.py", "success"], Kind.NONE, None),
        (["--nproc", "2", "--", "train.py", "oom"], Kind.GPU_OOM, ("torch.OutOfMemoryError", 1, 3)),
        (["--nproc", "2", "--", "train.py", "sigkill"], Kind.KILLED, (None, 1, 3)),
        (["train.py", "user-error"], Kind.USER_ERROR, ("builtins.TypeError", 0, None)),
        (["not_there.py"], Kind.USER_ERROR, (None, None, None)),
    ],
    ids=["success", "oom", "sigkill", "user-error", "not-there"],
)
def test_the_dump_of_exec(pod: Pod, command: Sequence[str], kind: Kind, error: Any) -> None:
    separator = [] if "--" in command else ["--"]
    done = pod.run("--no-aim", "--label", "team=search", "--aim-output-file", "out/x.json", *separator, *command)
    assert done.record is not None
    assert done.record.verdict is not None
    assert done.record.verdict.kind == kind
    dump: dict[str, Any] = json.loads((pod.root / "out" / "x.json").read_text())
    assert dump["labels"] == done.record.labels
    assert dump["run_hash"] is None
    told = dump["error"]
    assert (told and (told["type"], told["rank"], told["step"])) == error
    if error:
        assert told["kind"] == kind
        assert told["message"]
    steps = series(dump).get("loss", ([], [], []))[0]
    assert steps == list(range(1, {Kind.NONE: 7, Kind.USER_ERROR: 1}.get(kind, 3)))


def test_the_dump_after_a_signal(pod: Pod) -> None:
    process = pod.start("--no-aim", "--aim-output-file", "out/x.json", "--", "steps.py", "2000")
    eventually(lambda: process.poll() is not None or len(list(read_events(pod.job.events(0)))) > 20)
    process.send_signal(signal.SIGTERM)
    done = pod.end(process)
    dump: dict[str, Any] = json.loads((pod.root / "out" / "x.json").read_text())
    assert (done.log["kind"], dump["error"]["kind"]) == (Kind.KILLED, Kind.KILLED)
    assert "SIGTERM" in dump["error"]["message"]
    assert len(series(dump)["loss"][0]) > 3


@pytest.mark.parametrize("name", ["train.py/x.json", "train.py", "/dev/null"])
def test_an_output_file_that_must_not_be_written_is_wrong_usage(pod: Pod, name: str) -> None:
    before = (pod.root / "train.py").read_bytes()
    done = pod.run("--no-aim", "--aim-output-file", name, "--", "train.py", "success")
    assert (done.code, done.record) == (2, None)
    assert f"--aim-output-file {name}" in done.log["reason"]
    assert (pod.root / "train.py").read_bytes() == before


def test_a_programs_own_modules_are_not_aims(pod: Pod) -> None:
    """Aim makes its database by `python -m`: no script of its name runs twice, no `queue.py` hides Python's."""
    (pod.root / "queue.py").write_text("raise SystemExit('not the queue of Python')")
    (pod.root / "aim.py").write_text("print('ran', file=open('ran.txt', 'a'))")
    done = pod.run("--aim-repo", "runs", "--", "aim.py", PYTHONPATH=str(pod.root))
    assert done.record is not None
    assert done.record.aim is not None
    assert done.record.aim["state"] == "complete", done.record.aim
    assert (pod.root / "ran.txt").read_text() == "ran\n"


def test_the_experiment_that_a_program_names(pod: Pod) -> None:
    """It goes over the default, not over what was given at launch."""
    target = pod.program(
        "from harness.probe import Journal\nJournal({'experiment': 'own', 'identifier': 'own'}).step(1, loss=1.0)\n"
    )
    done = pod.run("--aim-repo", "runs", "--label", "identifier=launch", "--", target)
    assert done.record is not None
    assert (done.record.labels["experiment"], done.record.labels["identifier"]) == ("own", "launch")
    [run] = query(pod.root / "runs", "run.experiment == 'own'")
    assert run["benchmark"]["labels"]["identifier"] == "launch"
