"""The variables that make jobs diagnosable: which are given, that the user's win, and that torch knows their names."""

import importlib.metadata
import importlib.util
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.diagnostics import PIPE, VARIABLES, Variable, variables
from harness.probe.layout import JobPaths

RECORDER = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", PIPE]


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    job = JobPaths(tmp_path)
    job.node().mkdir()
    return job


def test_paths_lead_into_the_job_directory(job: JobPaths) -> None:
    got = variables(job, {}, "2.9.1+cu128")
    assert {got[name] for name in RECORDER} == {str(job.flight_recorder())}
    assert got["NCCL_DEBUG_FILE"] == f"{job.node()}/nccl.%h.%p.log"
    assert list(job.node().iterdir()) == []


def test_nccl_takes_no_part_of_the_folders_name_for_its_own(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / "100%host")
    assert variables(job, {}, None)["NCCL_DEBUG_FILE"] == f"{tmp_path}/100%%host/node-0/nccl.%h.%p.log"


@pytest.mark.parametrize(
    "torch, name",
    [
        pytest.param("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE", id="now"),
        pytest.param("2.8.0", "TORCH_FR_BUFFER_SIZE", id="renamed"),
        pytest.param("2.7.1", "TORCH_NCCL_TRACE_BUFFER_SIZE", id="before"),
        pytest.param(None, "TORCH_FR_BUFFER_SIZE", id="unknown"),
        pytest.param("nightly", "TORCH_FR_BUFFER_SIZE", id="no-version"),
    ],
)
def test_the_recorders_buffer_has_one_name(job: JobPaths, torch: str | None, name: str) -> None:
    """The old one beside the new is a warning, of which a program may have made an error."""
    assert [each for each in variables(job, {}, torch) if each.endswith("BUFFER_SIZE")] == [name]


@pytest.mark.parametrize("row", VARIABLES, ids=lambda row: row.name)
def test_the_users_own_wins(job: JobPaths, row: Variable) -> None:
    torch = "2.13" if row.until > (2, 13) else "2.7"
    assert row.name in variables(job, {}, torch)
    assert row.name not in variables(job, {row.name: "mine"}, torch)


@pytest.mark.parametrize(
    "name, other",
    [
        pytest.param("NCCL_DEBUG", "NCCL_DEBUG_FILE", id="who-says-what-says-where"),
        pytest.param("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", id="old-name-of-the-buffer"),
        pytest.param("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", id="old-name-of-the-dump"),
    ],
)
def test_the_users_own_wins_under_another_name(job: JobPaths, name: str, other: str) -> None:
    assert other in variables(job, {}, "2.13")
    assert other not in variables(job, {name: "mine"}, "2.13")


def test_no_pipe_where_there_can_be_none(tmp_path: Path) -> None:
    assert PIPE not in variables(JobPaths(tmp_path / "absent"), {}, None)


SLOWS = {"TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_ENABLE_TIMING", "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING"}


def test_nothing_that_slows_collective_operations() -> None:
    names = [row.name for row in VARIABLES]
    assert len(set(names)) == len(names)
    assert not SLOWS & set(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", [row.name for row in VARIABLES if row.library == "torch"])
def test_the_installed_torch_knows_the_name(name: str) -> None:
    """In its libraries, or in a header that only the build with NCCL compiles."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    if any(_holds(path, name) for path in sorted((folder / "lib").glob("libtorch_*.so"))):
        return
    headers = (folder / "include" / "torch" / "csrc" / "distributed" / "c10d").glob("*.hpp")
    assert any(_holds(path, name) for path in headers)


@pytest.mark.slow
@pytest.mark.parametrize("name", [row.name for row in VARIABLES if row.library == "nccl"])
def test_the_installed_nccl_knows_the_name(name: str) -> None:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = [path for place in places for path in Path(place).glob("nccl/lib/libnccl.so*")]
    if not found:
        pytest.skip("torch is a build for the CPU: no NCCL is installed")
    assert any(_holds(path, name) for path in found)


@pytest.mark.slow
def test_torch_takes_them_without_a_warning(job: JobPaths) -> None:
    torch = "import torch.distributed as d, os; os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0'); "
    torch += "d.init_process_group('gloo', rank=0, world_size=1); d.barrier(); d.destroy_process_group()"
    version = importlib.metadata.version("torch")
    environ = os.environ | variables(job, {}, version) | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", torch], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def _holds(path: Path, name: str) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0
