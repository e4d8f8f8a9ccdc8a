"""What a poll asks of NVML: a function a call, which gives fields of `gpu_sample` and raises NVML's errors."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.sampling.gpu_reader import Unit
from harness.sampling.nvml_gpm import METRICS, gpm

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h).
REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}

# Field values (nvml.h): column -> (field, scope, factor).  Those of the other slowdowns' times have changed their
# numbers between releases (251 to 253, later 269 to 271), and a driver would answer with something else.
_ALL_LINKS = 0xFFFFFFFF  # scope 0 would be the first NVLink alone
_FIELDS: dict[str, tuple[int, int, float]] = {
    "power_average_w": (185, 0, 1e-3),
    "power_instant_w": (186, 0, 1e-3),
    "memory_temperature_c": (82, 0, 1),
    "throttled_power_s": (74, 0, 1e-9),
    "throttled_thermal_s": (75, 0, 1e-9),
    "pcie_replays": (94, 0, 1),
    "pcie_tx_bytes": (197, 0, 1),
    "pcie_rx_bytes": (198, 0, 1),
    "nvlink_tx_bytes": (138, _ALL_LINKS, 1024),
    "nvlink_rx_bytes": (139, _ALL_LINKS, 1024),
}
_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t

_BUFFER_GAP_US = 2_000_000  # between two readings of the driver's ring: it went round in between
_CLOCK_SLACK_S = 60.0  # readings further from now than this are on a clock that nobody here knows


def _utilization(nvml: Any, unit: Unit) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(unit.handle)
    return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}


def _memory(nvml: Any, unit: Unit) -> dict[str, Any]:
    source = unit.facts["memory_source"]
    if source == "host":
        total, available = meminfo("MemTotal"), meminfo("MemAvailable")
        unit.unavailable.setdefault("memory_reserved_bytes", "the GPU shares the host's memory")
        used = None if total is None or available is None else total - available
        return {"memory_used_bytes": used, "memory_free_bytes": available}
    if source == "device":
        told = nvml.nvmlDeviceGetMemoryInfo(unit.handle, nvml.nvmlMemory_v2)
        values = {"memory_reserved_bytes": int(told.reserved)}
    else:
        told, values = nvml.nvmlDeviceGetMemoryInfo(unit.handle), {}
    return values | {"memory_used_bytes": int(told.used), "memory_free_bytes": int(told.free)}


def _processes(nvml: Any, unit: Unit) -> dict[str, Any]:
    running = nvml.nvmlDeviceGetComputeRunningProcesses(unit.handle)
    return {"processes": [[process.pid, process.usedGpuMemory] for process in running]}


def _power(nvml: Any, unit: Unit) -> dict[str, Any]:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(unit.whole) / 1e3}


def _energy(nvml: Any, unit: Unit) -> dict[str, Any]:
    return {"energy_j": nvml.nvmlDeviceGetTotalEnergyConsumption(unit.whole) / 1e3}


def _sm_clock(nvml: Any, unit: Unit) -> dict[str, Any]:
    return {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(unit.whole, nvml.NVML_CLOCK_SM)}


def _memory_clock(nvml: Any, unit: Unit) -> dict[str, Any]:
    return {"memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(unit.whole, nvml.NVML_CLOCK_MEM)}


def _throttle_reasons(nvml: Any, unit: Unit) -> dict[str, Any]:
    name = unit.memory.get("reasons", "nvmlDeviceGetCurrentClocksEventReasons")
    try:
        bits = getattr(nvml, name)(unit.whole)
    except (nvml.NVMLError_FunctionNotFound, AttributeError):
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"  # before driver 535
        bits = getattr(nvml, name)(unit.whole)
    unit.memory["reasons"] = name
    return {"throttle_reasons": [text for bit, text in REASONS.items() if bits & bit]}


def _temperature(nvml: Any, unit: Unit) -> dict[str, Any]:
    try:
        return {"temperature_c": nvml.nvmlDeviceGetTemperatureV(unit.whole, nvml.NVML_TEMPERATURE_GPU)}
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, AttributeError):  # before driver 570
        return {"temperature_c": nvml.nvmlDeviceGetTemperature(unit.whole, nvml.NVML_TEMPERATURE_GPU)}


def _ecc(nvml: Any, unit: Unit) -> dict[str, Any]:
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {"ecc_uncorrected": nvml.nvmlDeviceGetTotalEccErrors(unit.whole, kind, counter)}


def _fields(nvml: Any, unit: Unit) -> dict[str, Any]:
    """All field values by one call; each has a verdict of its own."""
    wanted = [column for column in _FIELDS if column not in unit.unavailable]
    told = nvml.nvmlDeviceGetFieldValues(unit.whole, [_FIELDS[column][:2] for column in wanted])
    values: dict[str, Any] = {}
    refusals = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_INVALID_ARGUMENT)
    for column, field in zip(wanted, told, strict=True):
        if field.nvmlReturn == nvml.NVML_SUCCESS and field.valueType < len(_VALUE):
            number = getattr(field.value, _VALUE[field.valueType])
            if column == "memory_temperature_c" and number == 0:
                unit.unavailable[column] = "the driver says 0 degrees, which no memory has"
                continue
            factor = _FIELDS[column][2]
            values[column] = number if factor == 1 else round(number * factor, 6)
        elif field.nvmlReturn in refusals:  # an old driver does not know a number: invalid argument
            unit.unavailable[column] = str(nvml.NVMLError(field.nvmlReturn))
    return values


def _power_buffer(nvml: Any, unit: Unit) -> dict[str, Any]:
    readings = [(t, value / 1e3) for t, value in _drained(nvml, unit, "power_buffer", nvml.NVML_TOTAL_POWER_SAMPLES)]
    before = unit.memory.get("last_power")
    if readings:
        unit.memory["last_power"] = readings[-1]
    if before is not None and readings and readings[0][0] - before[0] <= _BUFFER_GAP_US:
        readings.insert(0, before)
    if len(readings) < 2:
        return {}
    # From the wall clock to that of m.  A step of the wall clock between two polls shifts one of them.
    shift = time.monotonic() - time.time()
    pairs = list(itertools.pairwise(readings))
    joules = sum((late - early) / 1e6 * (a + b) / 2 for (early, a), (late, b) in pairs)
    seconds = (readings[-1][0] - readings[0][0]) / 1e6
    buffer = {
        "n": len(readings),
        "from_m": round(readings[0][0] / 1e6 + shift, 6),
        "to_m": round(readings[-1][0] / 1e6 + shift, 6),
        "joules": round(joules, 6),
        "mean_w": round(joules / seconds, 3) if seconds else None,
        "peak_w": max(watts for _, watts in readings),
    }
    return {"power_buffer": buffer}


def _utilization_buffer(nvml: Any, unit: Unit) -> dict[str, Any]:
    shares = [value for _, value in _drained(nvml, unit, "utilization_buffer", nvml.NVML_GPU_UTILIZATION_SAMPLES)]
    if not shares:
        return {}
    mean = round(sum(shares) / len(shares), 2)
    return {"utilization_buffer": {"n": len(shares), "mean_percent": mean, "peak_percent": max(shares)}}


def _drained(nvml: Any, unit: Unit, column: str, kind: int) -> list[tuple[int, float]]:
    """What the driver's ring got since the last time: (microseconds since the epoch, value)."""
    now = int(time.time() * 1e6)
    since = unit.memory.setdefault(column, now)  # what came before the job is not its own
    try:
        kind_of_value, samples = nvml.nvmlDeviceGetSamples(unit.whole, kind, since)
    except nvml.NVMLError_NotFound:  # nothing new
        return []
    attribute = _VALUE[kind_of_value]
    found = sorted((int(sample.timeStamp), getattr(sample.sampleValue, attribute)) for sample in samples)
    found = [(t, value) for t, value in found if t > since]
    if found and abs(found[-1][0] - now) > _CLOCK_SLACK_S * 1e6:
        unit.unavailable[column] = "the times of the driver's readings are not on the wall clock"
        return []
    if found:
        unit.memory[column] = found[-1][0]
    return found


def meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


# What a poll asks for, and the fields of gpu_sample that come of it.
CALLS: tuple[tuple[Callable[[Any, Unit], dict[str, Any]], tuple[str, ...]], ...] = (
    (_utilization, ("utilization_percent", "memory_utilization_percent")),
    (_memory, ("memory_used_bytes", "memory_reserved_bytes", "memory_free_bytes")),
    (_processes, ("processes",)),
    (_power, ("power_w",)),
    (_energy, ("energy_j",)),
    (_sm_clock, ("sm_clock_mhz",)),
    (_memory_clock, ("memory_clock_mhz",)),
    (_throttle_reasons, ("throttle_reasons",)),
    (_temperature, ("temperature_c",)),
    (_ecc, ("ecc_uncorrected",)),
    (_fields, tuple(_FIELDS)),
    (_power_buffer, ("power_buffer",)),
    (_utilization_buffer, ("utilization_buffer",)),
    (gpm, (*METRICS, "gpm_s")),
)
