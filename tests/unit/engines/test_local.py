"""The local engine with real supervisors and process trees; a stand-in for the probe where a whole job runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import supervise
from harness.engines.diagnostics import variables
from harness.engines.local import TORCHRUN, LocalJob, command, environment, sweep
from harness.leases import lease
from harness.probe.layout import JobPaths
from harness.scenario import Scenario
from harness.scenario.fms import arguments
from tests.unit.jobs import (
    DEADLINE_S,
    END_KEYS,
    argv_of,
    events,
    eventually,
    make_job,
    processes_naming,
    read_end,
    stubborn,
)

# The harness's side of a job in a process of its own: JOB_DIR LOCK_DIR|- COMMAND
HARNESS = """
import contextlib, os, sys
from pathlib import Path
from harness.engines.local import TORCHRUN, LocalJob
from harness.leases import lease
from harness.probe.layout import JobPaths
with contextlib.ExitStack() as stack:
    fds = ()
    if sys.argv[2] != "-":
        fds = stack.enter_context(lease(["GPU-0"], 1, what="job", lock_dir=Path(sys.argv[2]))).fds
    job = stack.enter_context(LocalJob.start(JobPaths(Path(sys.argv[1])), sys.argv[3:], os.environ, fds))
    print(job.supervisor_pid, flush=True)
    job.wait()
"""

# Stands in for the probe: leaves what it got in its rank's folder.
PROBE = """
import json, os, sys, time
rank = os.environ.get("RANK", "0")
os.makedirs(f"{sys.argv[1]}/rank-{rank}")
with open(f"{sys.argv[1]}/rank-{rank}/got.json", "w") as file:
    json.dump({"argv": sys.argv[2:], "environ": dict(os.environ)}, file)
"""


@contextmanager
def harness(job: JobPaths, locks: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", HARNESS, str(job.root), str(locks or "-"), *argv_of(job)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually((job.root / "ready").exists)
            yield process
        finally:
            process.kill()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def scenario(**fields: Any) -> Scenario:
    script = {"kind": "script", "target": "/x/train.py", "args": ["--lr", "1e-4"]}
    return Scenario.model_validate({"name": "case", "trainer": script} | ({"processes": 1} | fields))


def put_probe(job: JobPaths) -> None:
    job.probe.mkdir(parents=True)
    (job.probe / "__main__.py").write_text(PROBE)


def test_one_process_is_started_directly(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    probe = f"{tmp_path}/probe/harness_probe/__main__.py"
    start = ["/py", "-u", probe, str(tmp_path)]
    assert command(scenario(), "/py", job, {}) == [*start, "/x/train.py", "--lr", "1e-4"]
    module = {"kind": "script", "target": "pkg.train", "form": "module", "args": ["x"]}
    assert command(scenario(trainer=module), "/py", job, {}) == [*start, "-m", "pkg.train", "x"]
    built_in = scenario(trainer={"kind": "hf"}, model={"path": "hub/id"})
    assert command(built_in, "/py", job, {}) == [*start, "-m", "harness_probe.finetune"]


def test_fms_hf_tuning_is_started_through_the_check_of_its_arguments(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    fms = scenario(trainer={"kind": "fms", "options": {"packing": True}}, model={"path": "/m"})
    prepared = {"model_dir": "/m", "data_file": "/d", "output_dir": "/o"}
    argv = command(fms, "/py", job, prepared)
    assert argv[2:6] == [f"{job.probe}/__main__.py", str(tmp_path), "-m", "harness_probe.fms"]
    assert argv[6:] == arguments(fms, prepared)
    environ = environment(fms, {"TERMINATION_LOG_FILE": "/dev/termination-log"}, job, gpus=[], cpus=1, job_id="i")
    assert environ["TERMINATION_LOG_FILE"] == f"{tmp_path}/termination.log"
    other = environment(scenario(), {"TERMINATION_LOG_FILE": "/pod"}, job, gpus=[], cpus=1, job_id="i")
    assert other["TERMINATION_LOG_FILE"] == "/pod"


def test_several_ranks_are_started_by_torchrun(tmp_path: Path) -> None:
    argv = command(scenario(processes=4), "/py", JobPaths(tmp_path), {})
    assert argv[:4] == ["/py", "-c", TORCHRUN, "--standalone"]
    assert argv[argv.index("--nproc-per-node") + 1] == "4"
    assert argv[-4:] == [str(tmp_path), "/x/train.py", "--lr", "1e-4"]


def test_the_environment_of_a_job(tmp_path: Path) -> None:
    outer = {
        "HOME": "/home/me",
        "PYTHONPATH": "/mine",
        "OMP_NUM_THREADS": "64",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "HARNESS_JOB_ID": "outer",
        "PYTEST_CURRENT_TEST": "x",
        "PYTEST_XDIST_WORKER": "gw0",
        "COV_CORE_SOURCE": "x",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "elsewhere",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "PET_NNODES": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "RANKING": "kept",
    }
    job = JobPaths(tmp_path)
    got = environment(scenario(processes=2, env={"MINE": "1"}), outer, job, gpus=[], cpus=5, job_id="id", torch="2.13")
    assert got == variables(job, {}, "2.13") | {
        "HOME": "/home/me",
        "PYTHONPATH": "/mine",
        "RANKING": "kept",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "HARNESS_JOB_ID": "id",
        "GLOO_SOCKET_IFNAME": "lo",
        "MINE": "1",
    }


@pytest.mark.parametrize("env, said", [({}, "1"), ({"HF_HUB_OFFLINE": "0"}, "0")])
def test_a_job_whose_model_was_fetched_asks_no_hub(tmp_path: Path, env: dict[str, str], said: str) -> None:
    job = JobPaths(tmp_path)
    fetched = environment(scenario(env=env), {}, job, gpus=[], cpus=1, job_id="id", offline=True)
    assert fetched["HF_HUB_OFFLINE"] == said
    assert environment(scenario(), {}, job, gpus=[], cpus=1, job_id="id").get("HF_HUB_OFFLINE") is None


OWN = {"kind": "script", "target": "trl", "form": "program", "args": ["sft"], "launcher": "own"}


@pytest.mark.parametrize(
    "outer, mine, path, signs",
    [
        ({}, {}, "{site}", "RANK,ACCELERATE_MIXED_PRECISION"),
        ({"PYTHONPATH": ""}, {}, "{site}", "RANK,ACCELERATE_MIXED_PRECISION"),
        ({"PYTHONPATH": "/a:/b", "RANK": "1"}, {}, "{site}:/a:/b", "RANK,ACCELERATE_MIXED_PRECISION"),
        ({"PYTHONPATH": "/a"}, {"PYTHONPATH": "/mine"}, "{site}:/mine", "RANK,ACCELERATE_MIXED_PRECISION"),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, {}, "{site}", "RANK"),
        ({}, {"ACCELERATE_MIXED_PRECISION": "bf16"}, "{site}", "RANK"),
        ({"HARNESS_RANK_PID": "1", "HARNESS_RANK_SIGNS": "X"}, {}, "{site}", "RANK,ACCELERATE_MIXED_PRECISION"),
    ],
)
def test_the_environment_of_a_target_that_starts_its_ranks(
    tmp_path: Path, outer: dict[str, str], mine: dict[str, str], path: str, signs: str
) -> None:
    job = JobPaths(tmp_path)
    got = environment(scenario(trainer=OWN, env=mine), outer, job, gpus=[], cpus=1, job_id="id")
    assert (got["PYTHONPATH"], got["HARNESS_RANK_SIGNS"]) == (path.format(site=tmp_path / "probe" / "site"), signs)
    assert "HARNESS_RANK_PID" not in got
    assert command(scenario(trainer=OWN), "/bin/py", job, {}) == ["/bin/trl", "sft"]


def test_the_scenario_has_the_last_word_over_its_environment(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    wanted = {"OMP_NUM_THREADS": "7", "NCCL_DEBUG": "INFO"}
    on_gpus = scenario(processes=None, gpus=2, env=wanted)
    got = environment(on_gpus, {}, job, gpus=["GPU-a", "GPU-b"], cpus=1, job_id="id")
    assert got["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert got | wanted == got
    assert "NCCL_DEBUG_FILE" not in got
    assert environment(scenario(processes=8), {}, job, gpus=[], cpus=2, job_id="id")["OMP_NUM_THREADS"] == "1"


def test_a_job_that_ends(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["sh", "-c", 'echo "$MINE $HARNESS_JOB_ID"; exit 3'], job_id="the-id")
    with LocalJob.start(job, argv_of(job), {"MINE": "1"}) as running:
        assert running.wait()
        assert running.wait(0)
        assert read_end(job)["exit_code"] == 3
    assert job.launcher_log().read_text() == "1 the-id\n"


def test_leaving_the_block_ends_a_job(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    with LocalJob.start(job, argv_of(job), os.environ) as running:
        eventually((tmp_path / "ready").exists)
        assert not running.wait(0.01)
    assert processes_naming(tmp_path) == []
    assert (read_end(job)["why"], read_end(job)["signal"]) == ("signal", "SIGTERM")


def test_an_unreadable_job_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"job\.json"):
        LocalJob.start(JobPaths(tmp_path), [], {})
    JobPaths(tmp_path).job.write_text('{"job_id": "x"}')
    with LocalJob.start(JobPaths(tmp_path), [], {}) as running:
        assert running.wait(DEADLINE_S)
    assert read_end(JobPaths(tmp_path))["why"] == "supervisor_died"
    assert "cannot use job.json" in JobPaths(tmp_path).launcher_log().read_text()


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    with LocalJob.start(job, argv_of(job), os.environ) as running:
        eventually((tmp_path / "ready").exists)
        os.kill(running.supervisor_pid, signal.SIGKILL)
        assert running.wait(DEADLINE_S)
        assert processes_naming(tmp_path) == []
    end = read_end(job)
    assert set(end) == set(END_KEYS)
    assert (end["why"], end["clean"]) == ("supervisor_died", True)
    assert len(end["killed"]) >= 3
    assert sorted(path.name for path in tmp_path.glob("end.json*")) == ["end.json"]


def test_the_sweep_follows_children_and_spares_others(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-{tmp_path}"
    spare = subprocess.Popen(["sleep", "600"], env={"HARNESS_JOB_ID": mark + "0", "OTHER": mark})
    code = (
        "import subprocess, time; subprocess.Popen(['sleep', '600'], env={}); print('up', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-S", "-c", code]
    marked = subprocess.Popen(argv, env={"HARNESS_JOB_ID": mark}, stdout=subprocess.PIPE)
    with spare, marked:
        assert marked.stdout is not None
        assert marked.stdout.readline() == b"up\n"
        below = supervise.descendants(marked.pid)
        assert len(below) == 1
        killed, clean = sweep(mark)
        assert (sorted(killed), clean) == (sorted([marked.pid, *below]), True)
        assert spare.poll() is None
        spare.kill()


@pytest.mark.slow
def test_a_stopped_supervisor_is_woken(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["sh", "-c", "kill -STOP $PPID; sleep 1"])
    with LocalJob.start(job, argv_of(job), os.environ) as running:
        assert running.wait(DEADLINE_S)
    assert (read_end(job)["why"], read_end(job)["exit_code"]) == ("exit", 0)


@pytest.mark.slow
def test_a_supervisor_that_misses_the_time_limit_is_killed_with_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.engines.local._MARGIN_S", 1.0)
    monkeypatch.setattr("harness.engines.local._WATCH_S", 0.2)
    stop_again = "while true; do kill -STOP $PPID; sleep 0.05; done"
    job = make_job(tmp_path, ["sh", "-c", stop_again], time_limit_s=0.5)
    with LocalJob.start(job, argv_of(job), os.environ) as running:
        assert running.wait(DEADLINE_S)
    assert read_end(job)["why"] == "time_limit"
    assert processes_naming(tmp_path) == []


def test_the_harness_is_killed(tmp_path: Path) -> None:
    """The lease is free only when nothing of the job is left, and it does become free."""
    job = make_job(tmp_path / "job", stubborn(tmp_path / "job"))
    with harness(job, tmp_path / "locks") as process:
        process.kill()
    with lease(["GPU-0"], 1, what="next", lock_dir=tmp_path / "locks"):
        assert all("stubborn.py" not in command_line(pid) for pid in processes_naming(job.root))
    eventually(lambda: not processes_naming(job.root))
    assert read_end(job)["why"] == "parent_died"


def test_ctrl_c_ends_the_job(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    with harness(job) as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in said
    assert processes_naming(tmp_path) == []
    assert (read_end(job)["why"], read_end(job)["clean"]) == ("signal", True)


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path), grace_s=3600)
    with harness(job) as process:
        process.send_signal(signal.SIGINT)
        eventually(lambda: any(event["e"] == "ending" for event in events(job)))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in said
    assert processes_naming(tmp_path) == []
    assert read_end(job)["clean"]


def test_a_whole_job_of_one_process(tmp_path: Path) -> None:
    case = scenario()
    paths = JobPaths(tmp_path)
    put_probe(paths)
    job = make_job(tmp_path, command(case, sys.executable, paths, {}), job_id="the-id")
    with LocalJob.start(
        job, argv_of(job), environment(case, os.environ, paths, gpus=[], cpus=2, job_id="the-id")
    ) as running:
        assert running.wait(DEADLINE_S)
    assert read_end(job)["exit_code"] == 0, job.launcher_log().read_text()
    got = json.loads((tmp_path / "rank-0" / "got.json").read_text())
    assert got["argv"] == ["/x/train.py", "--lr", "1e-4"]
    assert got["environ"]["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in got["environ"]


@pytest.mark.slow
def test_a_whole_job_of_two_ranks(tmp_path: Path) -> None:
    # Each could be several of torchrun's own options, or end them.
    words = ["--r", "4", "--n", "--nproc-per-node", "9", "--", "-x"]
    case = scenario(processes=2, trainer={"kind": "script", "target": "/x/train.py", "args": words})
    paths = JobPaths(tmp_path)
    put_probe(paths)
    (tmp_path / "queue.py").write_text("raise ImportError('the target's own module, not the launcher's')")
    job = make_job(tmp_path, command(case, sys.executable, paths, {}), job_id="the-id", cwd=str(tmp_path))
    with LocalJob.start(
        job, argv_of(job), environment(case, os.environ, paths, gpus=[], cpus=2, job_id="the-id")
    ) as running:
        assert running.wait(DEADLINE_S)
    assert read_end(job)["exit_code"] == 0, job.launcher_log().read_text()
    for rank in (0, 1):
        got = json.loads((tmp_path / f"rank-{rank}" / "got.json").read_text())
        assert got["argv"] == ["/x/train.py", *words]
        expected = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        expected |= {"MASTER_ADDR": "127.0.0.1", "HARNESS_JOB_ID": "the-id", "CUDA_VISIBLE_DEVICES": ""}
        assert got["environ"] | expected == got["environ"]
