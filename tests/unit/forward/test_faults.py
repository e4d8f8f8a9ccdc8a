"""Everything that Aim, its repo or its server can do to a forwarder: it says so in time, and ends by itself."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.forward.start import Aim, Forwarder
from harness.probe.layout import JobPaths
from tests.aim_faults import bare_python, delete, fill, free_port, make_old, make_read_only, needs_aim, server, tmpfs
from tests.unit import journals
from tests.unit.forward.recorded import aim, append, end, make_job, names, query
from tests.unit.forward.test_forward import running, told

TIMEOUT_S = 12.0
HANGING_S = 6.0  # where Aim hangs, and this is waited for from the job's end on


def forwarded(job: JobPaths, where: Aim) -> dict[str, Any]:
    return ended_by_itself(Forwarder.start(job, where))


def ended_by_itself(forwarder: Forwarder, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    done = forwarder.wait(timeout_s + 5)
    assert "was killed" not in str(done["reason"])
    assert "ended early" not in str(done["reason"])
    return done


def test_no_interpreter(tmp_path: Path) -> None:
    job = make_job(tmp_path / "case")
    done = Forwarder.start(job, Aim(str(tmp_path / "repo"), str(tmp_path / "python"))).wait(1)
    assert (done["state"], done["tracked"], done["run_hash"]) == ("failed", 0, None)
    assert "could not be started" in done["reason"]
    assert told(job) == done


def test_no_aim(tmp_path: Path) -> None:
    where = Aim(str(tmp_path / "repo"), str(bare_python(tmp_path / "venv")))
    done = forwarded(make_job(tmp_path / "case"), where)
    assert (done["state"], done["run_hash"]) == ("failed", None)
    assert "aim is not installed" in done["reason"]
    assert not (tmp_path / "repo").exists()


def test_another_aim(tmp_path: Path) -> None:
    """On Python 3.13 pip installs a version of another age."""
    python = bare_python(tmp_path / "venv")
    [packages] = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "aim").mkdir()
    (packages / "aim" / "__init__.py").touch()
    (packages / "aim" / "__version__.py").write_text("__version__ = '2.7.4'")
    done = forwarded(make_job(tmp_path / "case"), Aim(str(tmp_path), str(python)))
    assert done["state"] == "failed"
    assert "aim 2.7.4 is installed" in done["reason"]


@pytest.mark.slow
def test_an_aim_that_keeps_the_interpreters_lock(tmp_path: Path) -> None:
    """No thread of the process runs any more: it ends all the same."""
    python = bare_python(tmp_path / "venv")
    [packages] = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "aim.py").write_text("import ctypes; ctypes.PyDLL(None).sleep(600)")
    job = make_job(tmp_path / "case", timeout_s=1.0)
    done = Forwarder.start(job, Aim(str(tmp_path), str(python), 1.0)).wait(6)
    assert done["state"] == "failed"
    assert "exit code 1" in done["reason"]
    assert "aim.py" in job.forwarder_log.read_text()


def test_the_harness_has_died(tmp_path: Path) -> None:
    """Nobody holds the pipe: the end of a job that is over is still told."""
    python = bare_python(tmp_path / "venv")
    job = make_job(tmp_path / "case")
    script = Path(__file__).parents[3] / "harness" / "forward" / "__main__.py"
    argv = [str(python), "-I", str(script), str(job.root)]
    environ = {**os.environ, "HARNESS_AIM_REPO": "aim://user:hunter22@host:1"}
    subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert told(job)["state"] == "failed"
    assert "hunter22" not in json.dumps(told(job))


@needs_aim
@pytest.mark.slow
def test_a_read_only_repo(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        make_read_only(disk)
        done = forwarded(make_job(tmp_path / "case", timeout_s=TIMEOUT_S), aim(disk))
    assert (done["state"], done["run_hash"]) == ("failed", None)
    assert "Read-only file system" in done["reason"]


@needs_aim
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.9", "9.9"])
def test_a_repo_of_another_version(tmp_path: Path, version: str) -> None:
    make_old(tmp_path / "repo", version)
    done = forwarded(make_job(tmp_path / "case", timeout_s=TIMEOUT_S), aim(tmp_path / "repo"))
    assert (done["state"], done["run_hash"]) == ("failed", None)
    assert f"version {version}" in done["reason"]


@needs_aim
@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "3m") as disk:
        job, forwarder = running(tmp_path, disk, HANGING_S)
        fill(disk / "filler")
        append(job.events(0), *[journals.step(n) for n in range(7, 2000)])
        end(job)
        done = ended_by_itself(forwarder, HANGING_S)
    assert (done["state"], done["indexed"]) == ("partial", False)
    assert "free on the disk" in done["reason"]


@needs_aim
@pytest.mark.slow
def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "200k") as disk:
        done = forwarded(make_job(tmp_path / "case", timeout_s=TIMEOUT_S), aim(disk))
    assert (done["state"], done["indexed"]) == ("failed", False)
    assert "free on the disk" in done["reason"]


@needs_aim
@pytest.mark.slow
def test_a_repo_deleted_under_the_job(tmp_path: Path) -> None:
    job, forwarder = running(tmp_path, tmp_path / "repo", TIMEOUT_S)
    delete(tmp_path / "repo")
    append(job.events(0), *[journals.step(n) for n in range(7, 20)])
    end(job)
    done = ended_by_itself(forwarder)
    assert (done["state"], done["indexed"]) == ("partial", False)
    assert "gone" in done["reason"]


@needs_aim
@pytest.mark.slow
def test_no_server(tmp_path: Path) -> None:
    done = forwarded(make_job(tmp_path / "case", timeout_s=TIMEOUT_S), aim(f"aim://u:hunter22@127.0.0.1:{free_port()}"))
    assert (done["state"], done["run_hash"]) == ("failed", None)
    assert "Aim Server" in done["reason"]
    assert "hunter22" not in json.dumps(done)


@needs_aim
@pytest.mark.slow
def test_a_server(tmp_path: Path) -> None:
    with server(tmp_path / "repo") as (url, _):
        done = ended_by_itself(Forwarder.start(make_job(tmp_path / "case", timeout_s=30.0), aim(url)), 30.0)
    assert (done["state"], done["reason"], done["indexed"]) == ("complete", None, True)
    assert names(query(tmp_path / "repo", "run.benchmark.labels.team == 'tuning'")) == ["case"]


@needs_aim
@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_lost_under_the_job(tmp_path: Path, by: signal.Signals) -> None:
    with server(tmp_path / "repo") as (url, process):
        job, forwarder = running(tmp_path, url, HANGING_S)
        os.killpg(process.pid, by)
        append(job.events(0), *[journals.step(n) for n in range(7, 20)])
        end(job)
        done = ended_by_itself(forwarder, HANGING_S)
    assert (done["state"], done["indexed"]) == ("partial", False)
    assert "wait for the server" in done["reason"]
    assert done["tracked"] < 6 * 5 + 4 * 2 + 3 + 13 * 4
