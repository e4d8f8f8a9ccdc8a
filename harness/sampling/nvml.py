"""NVIDIA's GPUs for the sampler, by NVML through nvidia-ml-py, which is imported when they are opened.

Refused once (not supported, no permission, a function that the driver or the binding lacks) is not asked again.  Any
other error is null this time; a GPU of which every answer is one has left, as has one that the driver calls lost."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.sampling.gpu_reader import Lost, Unit
from harness.sampling.nvml_calls import CALLS, meminfo

_GPU_NOT_FOUND = 28  # older bindings have no name for it


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
            return meminfo("MemTotal"), "host"
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


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value
