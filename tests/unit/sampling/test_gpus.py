"""GPU discovery through the real NVML binding, against the compiled fake library."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.sampling.gpus import Gpu, select_visible
from tests.conftest import FakeNvml

DISCOVER = """
import dataclasses, json, os
from harness.sampling.gpus import discover
print(json.dumps(dataclasses.asdict(discover(os.environ))))
"""
FOREIGN = """
import json, sys
from harness.sampling.gpus import foreign_processes
print(json.dumps(foreign_processes(sys.argv[1])))
"""


def gpu(number: int) -> str:
    return f"GPU-fa4e0000-0000-4000-8000-{number:012}"


def mig(number: int, slot: int) -> str:
    return f"MIG-fa4e0000-0000-4000-{slot:04}-{number:012}"


def ask(environ: dict[str, str], code: str, *args: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code, *args], env=environ, check=True, capture_output=True)
    return json.loads(done.stdout)


def discover(environ: dict[str, str], **more: str) -> Any:
    return ask(environ | more, DISCOVER)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "gpus.txt"


def test_all_gpus_without_a_choice(fake_nvml: FakeNvml) -> None:
    found = discover(fake_nvml.environ(2))
    assert found["driver"] == "580.00.00"
    assert found["reason"] is None
    assert [unit["uuid"] for unit in found["gpus"]] == [gpu(0), gpu(1)]
    assert found["gpus"][1] == {
        "uuid": gpu(1),
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 * 2**20,
        "index": 1,
    }


def test_the_choice_gives_the_order(fake_nvml: FakeNvml) -> None:
    found = discover(fake_nvml.environ(3), CUDA_VISIBLE_DEVICES=f"2,{gpu(0)}")
    assert [unit["uuid"] for unit in found["gpus"]] == [gpu(2)]  # kinds do not mix: torch and CUDA read "2" and stop
    found = discover(fake_nvml.environ(3), CUDA_VISIBLE_DEVICES="2,0")
    assert [unit["uuid"] for unit in found["gpus"]] == [gpu(2), gpu(0)]


def test_a_machine_without_a_driver(fake_nvml: FakeNvml) -> None:
    environ = fake_nvml.environ(1) | {"LD_LIBRARY_PATH": ""}
    found = discover(environ)
    assert (found["gpus"], found["driver"]) == ([], None)
    assert "no NVIDIA driver" in found["reason"]
    assert ask(environ, FOREIGN, gpu(0)) == []


def test_a_driver_that_is_not_loaded(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 * err:nvmlInit_v2 9\n")
    found = discover(fake_nvml.environ(1, script))
    assert (found["gpus"], found["driver"]) == ([], None)
    assert "NVML" in found["reason"]


def test_no_gpu_at_all(fake_nvml: FakeNvml) -> None:
    found = discover(fake_nvml.environ(0))
    assert (found["gpus"], found["reason"]) == ([], "the driver reports no GPU")


def test_a_lost_gpu_is_left_out(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 1 err 15\n")
    found = discover(fake_nvml.environ(3, script))
    assert [unit["index"] for unit in found["gpus"]] == [0, 2]
    assert found["reason"].startswith("GPU 1: ")


def test_a_gpu_that_shares_the_hosts_memory(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 0 err:nvmlDeviceGetMemoryInfo 3\n")
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert discover(fake_nvml.environ(1, script))["gpus"][0]["memory_bytes"] == total


def test_mig_devices_stand_in_for_their_gpu(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 0 mig 1\n0 0 mig_devices 0,2\n0 2 mig 1\n")
    environ = fake_nvml.environ(3, script)
    found = discover(environ)
    assert [(unit["uuid"], unit["index"]) for unit in found["gpus"]] == [(mig(0, 0), 0), (mig(0, 2), 0), (gpu(1), 1)]
    assert found["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert found["gpus"][0]["memory_bytes"] == 81559 * 2**20 // 7
    assert found["reason"] == "GPU 2: MIG is enabled, but it has no MIG device"
    found = discover(environ, CUDA_VISIBLE_DEVICES=mig(0, 2))
    assert [unit["uuid"] for unit in found["gpus"]] == [mig(0, 2)]
    found = discover(environ, CUDA_VISIBLE_DEVICES="0")
    assert [unit["uuid"] for unit in found["gpus"]] == [mig(0, 0), mig(0, 2)]


def test_mig_is_not_supported(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 * err:nvmlDeviceGetMigMode 3\n")
    assert len(discover(fake_nvml.environ(2, script))["gpus"]) == 2


def test_foreign_processes(fake_nvml: FakeNvml, script: Path) -> None:
    script.write_text("0 0 procs 77:600,4242,99:1\n0 1 mig 1\n0 1 mig_devices 3\n0 1 mig_procs 55\n0 2 err 15\n")
    environ = fake_nvml.environ(3, script)
    assert ask(environ, FOREIGN, gpu(0)) == [77, 99, 4242]
    assert ask(environ, FOREIGN, mig(1, 3)) == [55]
    assert ask(environ, FOREIGN, gpu(2)) == []  # lost
    assert ask(environ, FOREIGN, gpu(7)) == []  # not there


UNITS = [(Gpu(uuid, "H100", 80, index), parent) for uuid, index, parent in [
    ("GPU-aa11", 0, "GPU-aa11"),
    ("MIG-b1", 1, "GPU-bb"),
    ("MIG-b2", 1, "GPU-bb"),
    ("GPU-aa22", 2, "GPU-aa22"),
]]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "uuids", "reason"),
    [
        pytest.param(None, "GPU-aa11 MIG-b1 MIG-b2 GPU-aa22", None, id="unset"),
        pytest.param("", "", "hides all", id="empty"),
        pytest.param("-1", "", "hides all", id="minus-one"),
        pytest.param("NoDevFiles", "", "ends at 'NoDevFiles'", id="slurm-without-gpus"),
        pytest.param("0", "GPU-aa11", None, id="one"),
        pytest.param(" 2 , 0 ", "GPU-aa22 GPU-aa11", None, id="order-and-blanks"),
        pytest.param("2,-1,0", "GPU-aa22", "ends at '-1'", id="stops-at-minus-one"),
        pytest.param("2,9,0", "GPU-aa22", "ends at '9'", id="stops-at-missing"),
        pytest.param("0,0", "", "twice", id="twice"),
        pytest.param("0x,2", "GPU-aa11 GPU-aa22", None, id="what-follows-a-number-is-ignored"),
        pytest.param("1", "MIG-b1 MIG-b2", None, id="index-of-a-mig-gpu"),
        pytest.param("GPU-bb", "MIG-b1 MIG-b2", None, id="uuid-of-a-mig-gpu"),
        pytest.param("MIG-b2,MIG-b1", "MIG-b2 MIG-b1", None, id="mig-uuids"),
        pytest.param("GPU-bb,MIG-b1", "MIG-b1 MIG-b2", "ends at 'MIG-b1'", id="mixed-uuids"),
        pytest.param("GPU-aa2", "GPU-aa22", None, id="uuid-prefix"),
        pytest.param("GPU-aa", "", "ends at 'GPU-aa'", id="prefix-of-two"),
        pytest.param("GPU-aa11,GPU-a", "GPU-aa11", "ends at 'GPU-a'", id="stops-at-prefix-of-two"),
        pytest.param("GPU-zz", "", "ends at 'GPU-zz'", id="unknown-uuid"),
    ],
)
def test_cuda_visible_devices(wanted: str | None, uuids: str, reason: str | None) -> None:
    chosen, why = select_visible(wanted, UNITS)
    assert [unit.uuid for unit in chosen] == uuids.split()
    if reason is None:
        assert why is None
    else:
        assert why is not None
        assert reason in why
