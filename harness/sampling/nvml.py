"""NVIDIA's GPUs for the sampler, by NVML through nvidia-ml-py, which is imported when they are opened.

Refused once (not supported, no permission, a function that the driver or the binding lacks) is not asked again.  Any
other error is null this time; a GPU of which every answer is one has left, as has one that the driver calls lost."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.sampling.gpu_reader import Lost, Unit

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


class Nvml:
    """The GPUs and MIG devices named by UUID; None: all that CUDA_VISIBLE_DEVICES in `environ` leaves."""

    def __init__(self, uuids: Sequence[str] | None, environ: Mapping[str, str]) -> None:
        self._uuids, self._environ = uuids, environ
        self.doing: tuple[str | None, str] = (None, "import pynvml")
        self._nvml: Any = None
        self._units: list[Unit] = []
        self._events: Any = None

    def open(self) -> list[Unit]:
        try:
            import pynvml
        except ImportError as error:
            return self._none(f"nvidia-ml-py cannot be imported: {error}")
        self.doing = (None, "nvmlInit")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError_LibraryNotFound:
            return self._none("no NVIDIA driver: libnvidia-ml.so.1 was not found")
        except pynvml.NVMLError as error:
            return self._none(f"NVML: {error}")
        self._nvml = pynvml
        self._units = [self._unit(uuid) for uuid in (self._visible() if self._uuids is None else self._uuids)]
        self._register()
        return self._units

    @property
    def binding(self) -> Any:
        """pynvml, once `open` has found a driver."""
        return self._nvml

    def _none(self, reason: str) -> list[Unit]:
        return [Unit(uuid, reason=reason) for uuid in self._uuids or ()]

    def _visible(self) -> list[str]:
        from harness.sampling.gpus import discover

        self.doing = (None, "nvmlDeviceGetCount")
        return [gpu.uuid for gpu in discover(self._environ).gpus]

    def _unit(self, uuid: str) -> Unit:
        nvml, unit = self._nvml, Unit(uuid)
        self.doing = (uuid, "nvmlDeviceGetHandleByUUID")
        try:
            unit.handle = unit.whole = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                unit.whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(unit.handle)
            unit.facts = {
                "whole_uuid": nvml.nvmlDeviceGetUUID(unit.whole),
                "index": nvml.nvmlDeviceGetIndex(unit.whole),
                "name": nvml.nvmlDeviceGetName(unit.handle),
                "driver": nvml.nvmlSystemGetDriverVersion(),
                "power_limit_w": self._told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(unit.whole) / 1e3),
                "max_sm_clock_mhz": self._told(lambda: nvml.nvmlDeviceGetMaxClockInfo(unit.whole, nvml.NVML_CLOCK_SM)),
                "compute_capability": self._told(
                    lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(unit.whole))
                ),
            }
        except nvml.NVMLError as error:
            unit.reason = f"NVML: {error}"
            return unit
        total, source = self._memory_kind(unit)
        unit.facts |= {"memory_total_bytes": total, "memory_source": source}
        return unit

    def _told(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _memory_kind(self, unit: Unit) -> tuple[int | None, str | None]:
        """Total memory, and what the figures of a poll will be of."""
        nvml = self._nvml
        if (told := self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(unit.handle, nvml.nvmlMemory_v2))) is not None:
            return int(told.total), "device"
        try:
            told = nvml.nvmlDeviceGetMemoryInfo(unit.handle)
        except nvml.NVMLError_NotSupported:  # GB10: GPU and CPU share one memory
            return _meminfo("MemTotal"), "host"
        except nvml.NVMLError:
            return None, None
        unit.unavailable["memory_reserved_bytes"] = "the driver tells version 1 alone: memory_used_bytes holds it"
        return int(told.total), "device_with_reserved"

    def _register(self) -> None:
        """Ask for Xid errors of the whole GPUs; where that is refused, none come."""
        nvml = self._nvml
        wholes = {unit.facts["whole_uuid"]: unit.whole for unit in self._units if unit.reason is None}
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        asked = False
        for handle in wholes.values():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                asked = True
            except nvml.NVMLError:
                continue
        if not asked:
            self._events = None

    def wait_for_xid(self, timeout_s: float) -> tuple[str | None, int] | None:
        nvml = self._nvml
        if nvml is None or self._events is None:
            raise Lost("no Xid events can be waited for")
        try:
            event = nvml.nvmlEventSetWait(self._events, int(timeout_s * 1000))
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError as error:  # as long as a lost GPU is in the set; other GPUs' events still come
            time.sleep(timeout_s)
            if isinstance(error, nvml.NVMLError_Uninitialized):
                raise Lost(str(error)) from error
            return None
        if not event.eventType & nvml.nvmlEventTypeXidCriticalError:
            return None
        same = (
            unit for unit in self._units if unit.whole is not None and _address(unit.whole) == _address(event.device)
        )
        found = next(same, None)
        return (None if found is None else found.facts["whole_uuid"]), int(event.eventData)

    def poll(self, unit: Unit) -> dict[str, Any]:
        nvml, values = self._nvml, dict[str, Any]()
        asked = failed = 0
        said = ""
        for ask, columns in CALLS:
            if all(column in unit.unavailable for column in columns):
                continue
            asked += 1
            self.doing = (unit.uuid, ask.__name__.strip("_"))
            try:
                values |= ask(nvml, unit)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission) as error:
                unit.unavailable |= {column: str(error) for column in columns if column not in unit.unavailable}
            except AttributeError as error:
                unit.unavailable |= dict.fromkeys(columns, f"nvidia-ml-py: {error}")
            except nvml.NVMLError as error:
                said = str(error)
                if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED, _GPU_NOT_FOUND):
                    raise Lost(said) from error
                failed += 1
        if asked and asked == failed:
            raise Lost(said)
        return values


_GPU_NOT_FOUND = 28  # older bindings have no name for it


def _utilization(nvml: Any, unit: Unit) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(unit.handle)
    return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}


def _memory(nvml: Any, unit: Unit) -> dict[str, Any]:
    source = unit.facts["memory_source"]
    if source == "host":
        total, available = _meminfo("MemTotal"), _meminfo("MemAvailable")
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
)


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
