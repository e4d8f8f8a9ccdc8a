"""The doctor: facts, made up, and what it says of them; and the command on this machine, with fake GPUs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.doctor import Facts, file_system, judge
from tests.conftest import FakeNvml

GIB = 2**30

GPU = {
    "index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA H100 80GB HBM3",
    "persistence": True,
    "processes": [],
    "ecc_uncorrected": 0,
    "temperature_c": 35,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
}

HEALTHY = Facts(
    system="Linux",
    kernel="6.8",
    harness="0.1.0",
    python="3.11.7",
    cpus=16,
    cpu_model="EPYC",
    governors=("performance",),
    memory_total_bytes=256 * GIB,
    memory_available_bytes=200 * GIB,
    cgroup_version=2,
    memory_limit_bytes=None,
    memory_used_bytes=GIB,
    cpu_limit=None,
    shm_bytes=128 * GIB,
    open_files=1 << 20,
    processes=None,
    locked_bytes=None,
    infiniband=True,
    results="/data/results",
    results_file_system="xfs",
    results_free_bytes=500 * GIB,
    results_writable=True,
    locks="/tmp/tuning-harness",
    locks_file_system="overlay",
    locks_writable=True,
    driver="580.00.00",
    driver_cuda="13.0",
    gpu_reason=None,
    gpus=(GPU,),
    nvidia_loaded=True,
    interpreter="/usr/bin/python3",
    interpreter_version="3.11.7",
    interpreter_error=None,
    packages={"torch": "2.13.0", "transformers": "5.24.0", "aim": None},
    torch_cuda="12.8",
    torch_hip=None,
    aim_error=None,
)


def test_a_healthy_machine() -> None:
    found = list(judge(HEALTHY))
    assert {finding.level for finding in found} == {"ok"}
    assert all(finding.remedy is None for finding in found)
    assert "1 x NVIDIA H100 80GB HBM3; driver 580.00.00, CUDA 13.0" in [finding.text for finding in found]


def gpu(**changed: Any) -> dict[str, Any]:
    return {"gpus": (GPU | changed,)}


@pytest.mark.parametrize(
    ("changed", "subject", "level", "says"),
    [
        pytest.param({"system": "Darwin"}, "system", "error", "Darwin", id="system"),
        pytest.param(
            {"governors": ("performance", "powersave")}, "CPU governor", "warning", "powersave", id="governor"
        ),
        pytest.param({"memory_available_bytes": GIB}, "memory", "warning", "1.00 GiB of 256.00 GiB", id="memory"),
        pytest.param(
            {"memory_limit_bytes": 2 * GIB, "memory_used_bytes": 2 * GIB - 1},
            *("control group", "warning", "limited to 2.00 GiB"),
            id="memory-limit-reached",
        ),
        pytest.param({"shm_bytes": 64 << 20}, "/dev/shm", "warning", "64.00 MiB", id="shm"),
        pytest.param({"shm_bytes": None}, "/dev/shm", "warning", "not there", id="no-shm"),
        pytest.param({"open_files": 1024}, "ulimit", "warning", "1024 open files", id="open-files"),
        pytest.param({"processes": 512}, "ulimit", "warning", "512 processes", id="processes"),
        pytest.param({"locked_bytes": 65536}, "ulimit", "warning", "InfiniBand", id="locked-memory"),
        pytest.param({"results_free_bytes": 100 << 20}, "disk", "error", "100.00 MiB free", id="disk-full"),
        pytest.param({"results_free_bytes": GIB}, "disk", "warning", "1.00 GiB free", id="disk-small"),
        pytest.param({"results_writable": False}, "disk", "error", "may not be written", id="read-only"),
        pytest.param({"results_file_system": "nfs4"}, "disk", "warning", "lies on nfs4", id="results-on-nfs"),
        pytest.param({"results_file_system": "fuse.sshfs"}, "disk", "warning", "fuse.sshfs", id="results-on-fuse"),
        pytest.param({"locks_file_system": "lustre"}, "leases", "error", "lustre", id="locks-on-lustre"),
        pytest.param({"locks_writable": False}, "leases", "error", "may not be written", id="locks-read-only"),
        pytest.param({"gpus": (), "gpu_reason": "no NVML"}, "GPUs", "error", "although the kernel", id="gpus-hidden"),
        pytest.param({"gpu_reason": "GPU 1: GPU is lost"}, "GPUs", "warning", "GPU is lost", id="gpu-lost"),
        pytest.param(gpu(persistence=False), "GPU 0", "warning", "persistence mode is off", id="persistence"),
        pytest.param(gpu(processes=[77, 99]), "GPU 0", "warning", "in use by process 77, 99", id="foreign"),
        pytest.param(gpu(ecc_uncorrected=3), "GPU 0", "warning", "3 uncorrected", id="ecc"),
        pytest.param(gpu(power_limit_w=400.0), "GPU 0", "warning", "400 W, by default 700 W", id="power-limit"),
        pytest.param(
            {"interpreter_error": "there is no interpreter x"}, "stack", "error", "no interpreter", id="stack"
        ),
        pytest.param({"packages": {"torch": None}}, "stack", "warning", "no torch and no transformers", id="no-torch"),
        pytest.param({"torch_cuda": None}, "torch", "error", "built for the CPU alone", id="torch-for-cpu"),
        pytest.param({"torch_cuda": "14.1"}, "torch", "error", "runs up to 13.0", id="driver-too-old"),
        pytest.param({"aim_error": "aim 4.0 is installed"}, "Aim", "warning", "aim 4.0", id="aim"),
    ],
)
def test_what_is_wrong_is_said_with_what_helps(changed: dict[str, Any], subject: str, level: str, says: str) -> None:
    bad = [finding for finding in judge(replace(HEALTHY, **changed)) if finding.level != "ok"]
    assert [(finding.subject, finding.level) for finding in bad] == [(subject, level)]
    assert says in bad[0].text
    assert bad[0].remedy is not None


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"gpus": (), "nvidia_loaded": False, "gpu_reason": "no NVIDIA driver"}, id="no-gpu"),
        pytest.param({"torch_cuda": "13.2"}, id="a-newer-minor-version"),
        pytest.param({"torch_cuda": None, "torch_hip": "7.0"}, id="rocm"),
        pytest.param({"results_file_system": "fuse.lxcfs"}, id="a-local-fuse"),
        pytest.param(
            {"results_free_bytes": None, "results_file_system": None, "memory_total_bytes": None}, id="unknown"
        ),
        pytest.param(gpu(**dict.fromkeys(set(GPU) - {"index", "name"})), id="a-gpu-that-tells-nothing"),
        pytest.param({"memory_limit_bytes": 64 * GIB, "cpu_limit": 1.5}, id="limits"),
    ],
)
def test_what_is_not_wrong(changed: dict[str, Any]) -> None:
    found = list(judge(replace(HEALTHY, **changed)))
    assert [finding for finding in found if finding.level != "ok"] == []


def test_the_file_system_of_a_path(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    place = tmp_path.resolve()
    spaced = str(place / "a b").replace(" ", "\\040")
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {place} rw shared:1 - xfs /dev/b rw\n"
        f"3 2 0:9 / {spaced} rw - nfs4 server:/x rw\n4 2 0:9 / {place}/c rw - tmpfs none rw\n"
    )
    found = {name: file_system(tmp_path / name, str(mounts)) for name in ("", "new", "a b/new", "a b", "cc", "c/d")}
    assert found == {"": "xfs", "new": "xfs", "a b/new": "nfs4", "a b": "nfs4", "cc": "xfs", "c/d": "tmpfs"}
    assert file_system(Path("/nowhere"), str(mounts)) == "ext4"
    assert file_system(Path("/nowhere"), str(tmp_path / "absent")) is None


def doctor(environ: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from harness.cli import main; main()", "doctor", *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_command_with_gpus(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    script = tmp_path / "gpus.txt"
    script.write_text("0 0 persistence 0\n0 1 procs 4242:10\n0 * cuda 12080\n")
    environ = fake_nvml.environ(2, script) | {"HARNESS_LOCK_DIR": str(tmp_path / "locks")}
    done = doctor(environ, "--results", str(tmp_path / "results"), "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["fit"]) == (1, False)  # torch here is built for the CPU alone
    assert [found["index"] for found in told["facts"]["gpus"]] == [0, 1]
    assert (told["facts"]["driver"], told["facts"]["driver_cuda"]) == ("580.00.00", "12.8")
    bad = {(found["subject"], found["level"]) for found in told["findings"] if found["level"] != "ok"}
    assert {("GPU 0", "warning"), ("GPU 1", "warning"), ("torch", "error")} <= bad
    screen = doctor(environ, "--results", str(tmp_path / "results"))
    assert screen.returncode == 1
    assert "-> nvidia-smi -i 0 -pm 1" in screen.stdout
    assert len(screen.stdout.splitlines()) < 40
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "locks").exists()


@pytest.mark.slow
def test_the_command_without_gpus(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    environ = fake_nvml.environ(1) | {"LD_LIBRARY_PATH": "", "HARNESS_LOCK_DIR": str(tmp_path)}
    done = doctor(environ, "--results", str(tmp_path), "--json")
    told = json.loads(done.stdout)
    levels = {found["level"] for found in told["findings"]}
    assert done.returncode == (1 if "error" in levels else 0)
    assert told["facts"]["packages"]["torch"] is not None
    assert "no NVIDIA driver" in told["facts"]["gpu_reason"]
    assert doctor(environ, "--python", "/no/such/python").returncode == 1
