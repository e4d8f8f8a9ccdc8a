"""GPUs in the sampler: the real binding over the compiled fake library, whose GPUs follow a script."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.probe.journal import JournalFile
from harness.sampling import sampler
from harness.sampling.gpu_poll import GpuPoll
from harness.sampling.gpu_reader import GPU_EVENTS, Unit
from harness.sampling.nvml_gpm import METRICS
from harness.telemetry import Telemetry, summarise
from tests.conftest import FakeNvml
from tests.unit.jobs import DEADLINE_S, eventually
from tests.unit.sampling.test_gpus import gpu, mig

MIB = 2**20


@dataclass
class Sampled:
    """A sampler that runs; `epoch` is time 0 of the script."""

    journal: Path
    script: Path
    epoch: float
    process: "subprocess.Popen[bytes]"

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        text = self.journal.read_text() if self.journal.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in found if kind is None or event["e"] == kind]

    def samples(self, uuid: str) -> list[dict[str, Any]]:
        return [event for event in self.events("gpu_sample") if event["uuid"] == uuid]

    def described(self, uuid: str) -> dict[str, Any]:
        return [event for event in self.events("gpu") if event["uuid"] == uuid][-1]

    def at(self, seconds: float) -> float:
        """A time of the script on the clock of m."""
        return self.epoch + seconds + time.monotonic() - time.time()

    def wait_until(self, seconds: float) -> None:
        time.sleep(max(0.0, self.epoch + seconds - time.time()))

    def change(self, line: str) -> None:
        """Add a change that holds from now on: `GPU KEY VALUE`."""
        with self.script.open("a") as file:
            file.write(f"{time.time() - self.epoch} {line}\n")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0

    def summary(self, window: tuple[float, float] | None = None) -> Telemetry:
        return summarise(self.events(), window and (self.at(window[0]), self.at(window[1])))


@pytest.fixture
def start(fake_nvml: FakeNvml, tmp_path: Path) -> Any:
    @contextmanager
    def started(
        script: str, uuids: list[str], *, count: int = 2, interval_s: float = 0.1, environ: dict[str, str] | None = None
    ) -> Iterator[Sampled]:
        path, out, epoch = tmp_path / "gpus.txt", tmp_path / "system.jsonl", time.time()
        path.write_text(script)
        surroundings = fake_nvml.environ(count, path) | {"FAKE_NVML_T0": repr(epoch)} | (environ or {})
        command = [*sampler.command(out, interval_s, uuids), "--root-pid", str(os.getpid())]
        with subprocess.Popen(command, env=surroundings) as process:
            try:
                yield Sampled(out, path, epoch, process)
            finally:
                process.kill()

    return started


def test_what_is_read_of_a_gpu(start: Any) -> None:
    script = "0 0 used_mib 1200\n0 0 util 97\n0 0 mem_util 40\n0 0 power_mw 400000\n0 0 inst_power_mw 431000\n"
    script += (
        "0 0 reasons 0x24\n0 0 temp 61\n0 0 ecc 2\n0 0 pcie_tx_bytes 5e9\n0 0 nvlink_tx_kib 1000\n0 0 sm_mhz 1755\n"
    )
    with start(script, [gpu(0)]) as sampled:
        eventually(lambda: len(sampled.samples(gpu(0))) >= 4)
        sampled.end()
    for event in sampled.events():
        if event["e"] in GPU_EVENTS:
            assert set(event) == {"t", "m", "e", *GPU_EVENTS[event["e"]]}
    told = sampled.described(gpu(0))
    assert {key: told[key] for key in ("whole_uuid", "index", "driver", "memory_source", "reason", "unavailable")} == {
        "whole_uuid": gpu(0),
        "index": 0,
        "driver": "580.00.00",
        "memory_source": "device",
        "reason": None,
        "unavailable": {},
    }
    assert told["memory_total_bytes"] == 81559 * MIB
    assert (told["power_limit_w"], told["max_sm_clock_mhz"], told["compute_capability"]) == (700.0, 1980, "9.0")
    last = sampled.samples(gpu(0))[-2]  # the last one follows it at once, before the driver has a new reading
    expected = {
        "utilization_percent": 97,
        "memory_utilization_percent": 40,
        "memory_used_bytes": 1200 * MIB,
        "memory_reserved_bytes": 600 * MIB,
        "memory_free_bytes": (81559 - 1800) * MIB,
        "processes": [],
        "power_w": 400.0,
        "power_average_w": 400.0,
        "power_instant_w": 431.0,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttle_reasons": ["sw_power_cap", "sw_thermal"],
        "temperature_c": 61,
        "memory_temperature_c": 40,
        "pcie_tx_bytes": 5_000_000_000,
        "nvlink_tx_bytes": 2 * 1000 * 1024,
        "ecc_uncorrected": 2,
    }
    assert {key: last[key] for key in expected} == expected
    assert last["power_buffer"]["peak_w"] == last["power_buffer"]["mean_w"] == 400.0
    assert last["utilization_buffer"]["mean_percent"] == 97
    host = sampled.events("sample")
    assert len(host) >= 4
    assert host[-1]["sampler"]["busy_fraction"] > 0


def test_only_the_leased_gpus_are_read(start: Any) -> None:
    with start("", [gpu(5), gpu(2)], count=8) as sampled:
        eventually(lambda: len(sampled.events("gpu_sample")) >= 4)
        sampled.end()
    assert {event["uuid"] for event in sampled.events("gpu_sample")} == {gpu(2), gpu(5)}
    assert [sampled.described(gpu(n))["index"] for n in (5, 2)] == [5, 2]


@pytest.mark.slow
def test_energy_peaks_and_throttle_times_are_exact(start: Any) -> None:
    """A second at 100 W, then 1.5 s at 500 W of which 1 s under the power cap, then idle."""
    script = "0 * power_mw 100000\n1.6 0 power_mw 500000\n1.6 0 used_mib 60000\n2.1 0 reasons 0x4\n3.1 0 reasons 0\n"
    script += "3.1 0 power_mw 70000\n3.1 0 used_mib 1000\n"
    with start(script, [gpu(0), gpu(1)]) as sampled:
        sampled.wait_until(4.0)
        sampled.end()
    told = sampled.summary((1.1, 3.6))
    assert told.window is not None
    first, second = (found.window for found in told.gpus)
    assert first is not None
    assert second is not None
    # 0.5 s at 100 W, 1.5 s at 500 W, 0.5 s at 70 W.  The counter moves each 100 ms, the ring each 20 ms.
    assert first.energy.counter_j == pytest.approx(50 + 750 + 35, rel=0.03)
    assert first.energy.integrated_j == pytest.approx(50 + 750 + 35, rel=0.03)
    assert second.energy.counter_j == pytest.approx(250, rel=0.03)
    assert told.window.energy is not None
    assert told.window.energy.counter_j == first.energy.counter_j + second.energy.counter_j
    assert first.throttled_power_s == pytest.approx(1.0, abs=0.02)
    assert first.throttled_thermal_s == 0.0
    assert first.throttled_share == pytest.approx(1.0 / 2.5, abs=0.1)
    assert second.throttled_share == 0.0
    assert (first.power_peak_w, first.memory_used_peak_bytes) == (500.0, 60000 * MIB)
    assert first.coverage > 0.95
    assert "too short" in first.energy.flags[0]


def test_a_lost_gpu_is_marked_and_the_other_goes_on(start: Any) -> None:
    with start("", [gpu(0), gpu(1)]) as sampled:
        eventually(lambda: len(sampled.samples(gpu(1))) >= 2)
        sampled.change("1 xid 79")
        eventually(lambda: sampled.events("xid"))
        sampled.change("1 err 15")
        eventually(lambda: sampled.events("gpu_lost"))
        before = len(sampled.samples(gpu(0)))
        eventually(lambda: len(sampled.samples(gpu(0))) >= before + 3)
        sampled.end()
    [lost] = sampled.events("gpu_lost")
    assert (lost["uuid"], lost["reason"]) == (gpu(1), "GPU is lost")
    assert [(event["uuid"], event["xid"]) for event in sampled.events("xid")] == [(gpu(1), 79)]
    assert all(event["m"] < lost["m"] for event in sampled.samples(gpu(1)))
    one, other = sampled.summary().gpus
    assert (one.lost, one.xids) == (None, ())
    assert (other.lost, other.xids) == ("GPU is lost", (79,))


def test_a_gpu_of_which_every_answer_is_an_error_is_lost(start: Any) -> None:
    with start("0 1 err 999\n0 1 err:nvmlDeviceGetHandleByUUID 0\n", [gpu(0), gpu(1)]) as sampled:
        eventually(lambda: len(sampled.samples(gpu(0))) >= 3)
        sampled.end()
    assert sampled.samples(gpu(1)) == []
    assert sampled.described(gpu(1))["reason"] == "NVML: Unknown Error"


def test_an_error_that_passes_costs_one_value(start: Any) -> None:
    with start("", [gpu(0)]) as sampled:
        eventually(lambda: len(sampled.samples(gpu(0))) >= 2)
        sampled.change("0 err:nvmlDeviceGetPowerUsage 999")
        eventually(lambda: sampled.samples(gpu(0))[-1]["power_w"] is None)
        sampled.change("0 err:nvmlDeviceGetPowerUsage 0")
        eventually(lambda: sampled.samples(gpu(0))[-1]["power_w"] is not None)
        sampled.end()
    assert sampled.described(gpu(0))["unavailable"] == {}


def test_what_a_gpu_refuses_is_null_with_the_reason_and_asked_no_more(start: Any) -> None:
    refused = ["nvmlDeviceGetUtilizationRates 3", "nvmlDeviceGetTotalEnergyConsumption 4", "field:186 3"]
    script = "".join(f"0 0 err:{line}\n" for line in [*refused, "nvmlDeviceGetSamples 3"]) + "0 0 mem_temp 0\n"
    with start(script, [gpu(0)]) as sampled:
        eventually(lambda: len(sampled.samples(gpu(0))) >= 2)
        sampled.change("0 err:nvmlDeviceGetUtilizationRates 0")  # it would answer now
        before = len(sampled.samples(gpu(0)))
        eventually(lambda: len(sampled.samples(gpu(0))) >= before + 3)
        sampled.end()
    assert len(sampled.events("gpu")) == 1
    assert sampled.described(gpu(0))["unavailable"] == {
        "utilization_percent": "Not Supported",
        "memory_utilization_percent": "Not Supported",
        "energy_j": "Insufficient Permissions",
        "power_instant_w": "Not Supported",
        "memory_temperature_c": "the driver says 0 degrees, which no memory has",
        "power_buffer": "Not Supported",
        "utilization_buffer": "Not Supported",
    }
    last = sampled.samples(gpu(0))[-1]
    assert last["utilization_percent"] is last["energy_j"] is last["power_instant_w"] is last["power_buffer"] is None
    assert last["power_average_w"] == 70.0
    job = sampled.summary().gpus[0].job
    assert job is not None
    assert job.utilization_mean_percent is job.energy.counter_j is None
    assert job.energy.integrated_j > 0  # of the polls
    assert job.reasons["utilization_mean_percent"] == "Not Supported"
    assert job.energy.reasons["counter_j"] == "Insufficient Permissions"


def test_gpm_tells_what_lies_between_two_polls(start: Any) -> None:
    """10 % for 0.55 s, 90 % for 0.4 s, then 10 %: no poll sees more than a moment, and the mean is exact."""
    script = "0 0 sm_active 10\n0.55 0 sm_active 90\n0.95 0 sm_active 10\n0 0 tensor_active 40\n"
    script += "0 0 sm_occupancy 30\n0 0 dram_active 62.5\n"
    with start(script, [gpu(0)], interval_s=0.2) as sampled:
        sampled.wait_until(1.5)
        sampled.end()
    samples = sampled.samples(gpu(0))
    assert samples[0]["sm_active_percent"] is samples[0]["gpm_s"] is None
    told = [sample for sample in samples if sample["gpm_s"] is not None]
    assert len(told) >= 3
    assert all(sample["gpm_s"] >= 0.05 for sample in told)
    begin, end = told[0]["m"] - told[0]["gpm_s"], told[-1]["m"]
    busy_s = min(end, sampled.at(0.95)) - max(begin, sampled.at(0.55))
    job = summarise(sampled.events(), (begin, end)).gpus[0].window
    assert job is not None
    assert job.sm_active_mean_percent == pytest.approx(10 + 80 * busy_s / (end - begin), abs=5)
    assert job.tensor_active_mean_percent == pytest.approx(40)
    assert job.sm_occupancy_mean_percent == pytest.approx(30)
    assert job.memory_bandwidth_mean_percent == pytest.approx(62.5)


def test_gpm_before_hopper_and_a_metric_that_is_refused(start: Any) -> None:
    refused = "".join(f"0 2 err:gpm:{number} 3\n" for number in METRICS.values())
    script = "0 0 cc 80\n0 1 err:gpm:5 3\n0 1 sm_active 50\n" + refused
    with start(script, [gpu(0), gpu(1), gpu(2)], count=3) as sampled:
        eventually(lambda: len(sampled.samples(gpu(1))) >= 4)
        eventually(lambda: "gpm_s" in sampled.described(gpu(2))["unavailable"])
        sampled.end()
    names = {"sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "memory_bandwidth_percent", "gpm_s"}
    assert sampled.described(gpu(0))["unavailable"] == dict.fromkeys(names, "Not Supported")
    assert sampled.described(gpu(1))["unavailable"] == {"tensor_active_percent": "Not Supported"}
    assert sampled.described(gpu(2))["unavailable"] == dict.fromkeys(names, "Not Supported")  # each by itself, then all
    older, newer, _ = (found.job for found in sampled.summary().gpus)
    assert older is not None
    assert newer is not None
    assert (older.sm_active_mean_percent, older.reasons["sm_active_mean_percent"]) == (None, "Not Supported")
    assert newer.sm_active_mean_percent == pytest.approx(50)
    assert newer.tensor_active_mean_percent is None
    assert newer.reasons["tensor_active_mean_percent"] == "Not Supported"


def test_gpm_of_a_mig_device(start: Any) -> None:
    with start("0 0 mig 1\n0 0 mig_devices 2\n0 0 sm_active 25\n", [mig(0, 2)]) as sampled:
        eventually(lambda: len(sampled.samples(mig(0, 2))) >= 3)
        sampled.end()
    assert sampled.samples(mig(0, 2))[1]["sm_active_percent"] == 25


def test_memory_of_an_older_driver(start: Any) -> None:
    with start("0 0 err:nvmlDeviceGetMemoryInfo_v2 13\n0 0 used_mib 1200\n", [gpu(0)]) as sampled:
        eventually(lambda: sampled.samples(gpu(0)))
        sampled.end()
    told, sample = sampled.described(gpu(0)), sampled.samples(gpu(0))[0]
    assert told["memory_source"] == "device_with_reserved"
    assert (sample["memory_used_bytes"], sample["memory_reserved_bytes"]) == (1800 * MIB, None)
    assert "version 1" in told["unavailable"]["memory_reserved_bytes"]


def test_memory_that_is_the_hosts(start: Any) -> None:
    script = "0 0 err:nvmlDeviceGetMemoryInfo_v2 3\n0 0 err:nvmlDeviceGetMemoryInfo 3\n"
    with start(script, [gpu(0)]) as sampled:
        eventually(lambda: sampled.samples(gpu(0)))
        sampled.end()
    told, sample = sampled.described(gpu(0)), sampled.samples(gpu(0))[0]
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert (told["memory_source"], told["memory_total_bytes"]) == ("host", total)
    assert sample["memory_used_bytes"] + sample["memory_free_bytes"] == total


def test_a_mig_device_has_its_own_memory_and_the_whole_gpus_power(start: Any) -> None:
    script = "0 0 mig 1\n0 0 mig_devices 0,2\n0 0 used_mib 7000\n0 0 power_mw 300000\n"
    with start(script, [mig(0, 2)]) as sampled:
        eventually(lambda: sampled.samples(mig(0, 2)))
        sampled.end()
    told, sample = sampled.described(mig(0, 2)), sampled.samples(mig(0, 2))[0]
    assert (told["whole_uuid"], told["index"]) == (gpu(0), 0)
    assert (sample["memory_used_bytes"], sample["power_w"]) == (1000 * MIB, 300.0)
    assert sample["utilization_percent"] is None
    assert told["unavailable"]["utilization_percent"] == "Not Supported"
    assert sampled.summary().gpus[0].shared


def test_processes_of_the_job_and_foreign_ones(start: Any) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as own:
        script = f"0 0 procs {own.pid}:600,{os.getppid()}:50,4194303\n"
        with start(script, [gpu(0)]) as sampled:
            eventually(lambda: sampled.samples(gpu(0)))
            sampled.end()
        own.kill()
    assert sampled.samples(gpu(0))[0]["processes"] == [
        [own.pid, 600 * MIB, True],
        [os.getppid(), 50 * MIB, False],
        [4194303, None, None],  # there is no such process
    ]
    told = sampled.summary()
    assert (told.contended, told.gpus[0].foreign_pids) == (True, (os.getppid(),))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("nvmlDeviceGetPowerUsage", id="poll"),
        pytest.param("nvmlDeviceGetHandleByUUID", id="open", marks=pytest.mark.slow),
    ],
)
def test_a_call_that_hangs_does_not_stop_the_hosts_samples(start: Any, call: str) -> None:
    hangs_at_start = call == "nvmlDeviceGetHandleByUUID"
    with start(f"0 0 hang:{call} 1\n" if hangs_at_start else "", [gpu(0)]) as sampled:
        if not hangs_at_start:
            eventually(lambda: sampled.samples(gpu(0)))
            sampled.change(f"0 hang:{call} 1")
        eventually(lambda: sampled.events("gpu_stalled"))
        [stalled] = sampled.events("gpu_stalled")
        during = [event for event in sampled.events("sample") if event["m"] > stalled["m"] - stalled["seconds"]]
        assert len(during) > 10
        if hangs_at_start:
            assert stalled["call"] == call
            sampled.end()  # while it hangs
            return
        assert stalled["uuid"] == gpu(0)
        assert stalled["seconds"] > 5
        before = len(sampled.samples(gpu(0)))
        sampled.change(f"0 hang:{call} 0")
        eventually(lambda: len(sampled.samples(gpu(0))) > before + 2)
        sampled.end()
    assert sampled.summary().gpus[0].stalls == 1


def test_a_program_that_starts_itself_has_the_visible_gpus(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Neither a lease nor UUIDs: what CUDA_VISIBLE_DEVICES leaves."""
    out = tmp_path / "system.jsonl"
    script = Path(sampler.__file__).with_name("__main__.py")
    command = [sys.executable, "-I", str(script), "--out", str(out), "--interval", "0.1", "--visible-gpus"]
    environ = fake_nvml.environ(4) | {"CUDA_VISIBLE_DEVICES": "3,1"}
    with subprocess.Popen([*command, "--root-pid", str(os.getpid())], env=environ) as process:
        sampled = Sampled(out, out, 0.0, process)
        eventually(lambda: len(sampled.events("gpu_sample")) >= 4)
        sampled.end()
    assert [event["uuid"] for event in sampled.events("gpu")] == [gpu(3), gpu(1)]


class Broken:
    """A vendor's reader with a fault of its own."""

    doing: tuple[str | None, str] = (None, "open")

    def open(self) -> list[Unit]:
        raise KeyError("unheard of")

    def poll(self, unit: Unit) -> dict[str, Any]:
        raise NotImplementedError

    def wait_for_xid(self, timeout_s: float) -> tuple[str | None, int] | None:
        raise NotImplementedError


def test_a_fault_of_a_reader_is_told(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "system.jsonl")
    poll = GpuPoll(Broken(), journal, 0.1, os.getpid(), with_root=True, without=())
    poll.start()
    assert poll.stop(DEADLINE_S)
    poll.tell_of_stall()
    journal.close()
    [event] = [json.loads(line) for line in (tmp_path / "system.jsonl").read_text().splitlines()]
    assert (event["e"], event["message"]) == ("gpu_error", "KeyError: 'unheard of'")


def test_no_driver(start: Any) -> None:
    with start("", [gpu(0)], environ={"LD_LIBRARY_PATH": ""}) as sampled:
        eventually(lambda: len(sampled.events("sample")) >= 3 and sampled.events("gpu"))
        sampled.end()
    assert sampled.described(gpu(0))["reason"] == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert sampled.events("gpu_sample") == []
    told = sampled.summary().gpus[0]
    assert (told.job, told.contended) == (None, None)
    assert told.reason == "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def test_a_uuid_that_is_not_there(start: Any) -> None:
    with start("", [gpu(9), gpu(0)]) as sampled:
        eventually(lambda: sampled.samples(gpu(0)))
        sampled.end()
    assert sampled.described(gpu(9))["reason"] == "NVML: Not Found"
