"""Which GPUs there are, which of them this process may use, and who computes on them; by NVML.

Indices in CUDA_VISIBLE_DEVICES are taken in NVML's order, which is PCI order (CUDA_DEVICE_ORDER=PCI_BUS_ID).  CUDA's
own default, FASTEST_FIRST, cannot be known without CUDA and differs only between unequal GPUs; jobs are given UUIDs,
which mean the same under either.  Where MIG is enabled, the MIG devices of a GPU stand in its place."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """A GPU or a MIG device."""

    uuid: str  # GPU-... or MIG-...
    name: str
    memory_bytes: int
    index: int  # NVML's, of the whole GPU


@dataclass(frozen=True)
class Discovery:
    """What was found.  `reason` says why GPUs are missing, also when only some are; None when nothing is."""

    gpus: tuple[Gpu, ...]  # visible ones, in the order of CUDA_VISIBLE_DEVICES
    driver: str | None
    reason: str | None


def discover(environ: Mapping[str, str]) -> Discovery:
    """The GPUs of this machine and those that CUDA_VISIBLE_DEVICES in `environ` leaves; never raises."""
    try:
        with _nvml() as nvml:
            driver = nvml.nvmlSystemGetDriverVersion()
            units, faults = _units(nvml)
    except _NoNvml as error:
        return Discovery((), None, str(error))
    visible, why = select_visible(environ.get("CUDA_VISIBLE_DEVICES"), units)
    reasons = [*faults, *([why] if why else []), *([] if units or faults else ["the driver reports no GPU"])]
    return Discovery(visible, driver, "; ".join(reasons) or None)


def foreign_processes(uuid: str) -> list[int]:
    """Process ids that compute on a GPU or MIG device; empty where the driver does not tell.

    To who holds the lease and has started nothing yet, all of them are foreign.
    In a container the driver may give the host's ids, or none."""
    try:
        with _nvml() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except _NoNvml:
        return []
    return sorted({process.pid for process in running})


def conditions() -> list[dict[str, Any]]:
    """Of each GPU of the machine what may disturb a measurement; null where the driver does not tell.

    Fields: index, uuid, name, persistence (kept awake), processes (ids that compute on it), ecc_uncorrected,
    temperature_c, power_limit_w, power_limit_default_w.  Empty where there is no driver."""
    try:
        with _nvml() as nvml:
            return [_condition(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except _NoNvml:
        return []


def _condition(nvml: Any, index: int) -> dict[str, Any]:
    def told(read: Callable[[Any], Any]) -> Any:
        try:
            return read(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            return None

    running = told(nvml.nvmlDeviceGetComputeRunningProcesses)
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {
        "index": index,
        "uuid": told(nvml.nvmlDeviceGetUUID),
        "name": told(nvml.nvmlDeviceGetName),
        "persistence": told(lambda gpu: nvml.nvmlDeviceGetPersistenceMode(gpu) == nvml.NVML_FEATURE_ENABLED),
        "processes": None if running is None else sorted({process.pid for process in running}),
        "ecc_uncorrected": told(lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, counter)),
        "temperature_c": told(lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        "power_limit_w": told(lambda gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
        "power_limit_default_w": told(lambda gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1e3),
    }


def cuda_of_driver() -> str | None:
    """The newest CUDA that the driver runs, such as `13.0`; None where there is no driver."""
    try:
        with _nvml() as nvml:
            version = nvml.nvmlSystemGetCudaDriverVersion()
    except _NoNvml:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def select_visible(wanted: str | None, units: Sequence[tuple[Gpu, str]]) -> tuple[tuple[Gpu, ...], str | None]:
    """What CUDA_VISIBLE_DEVICES=`wanted` leaves of `units` (each with its whole GPU's UUID), and why GPUs are left out.

    CUDA's rules: unset is all; the list ends at the first entry that names nothing, or is of another kind (index, GPU-,
    MIG-) than the first; a GPU named twice leaves none; a UUID may be cut short as long as one GPU fits.  An index or
    UUID of a GPU in MIG mode stands for all its MIG devices (CUDA itself would use the first)."""
    if wanted is None:
        return tuple(gpu for gpu, _ in units), None
    chosen: list[Gpu] = []
    kind = wanted.strip()[:4]
    for entry in (part.strip() for part in wanted.split(",")):
        found = _named(entry, kind if kind in ("GPU-", "MIG-") else "", units)
        if not found:
            hidden = entry in ("", "-1") and not chosen
            return tuple(chosen), f"CUDA_VISIBLE_DEVICES={wanted} " + ("hides all" if hidden else f"ends at {entry!r}")
        if any(gpu in chosen for gpu in found):
            return (), f"CUDA_VISIBLE_DEVICES={wanted} names a GPU twice, which hides all"
        chosen += found
    return tuple(chosen), None


def _named(entry: str, kind: str, units: Sequence[tuple[Gpu, str]]) -> list[Gpu]:
    """What an entry stands for, in a list whose first entry was of `kind`: GPU-, MIG- or, by index, none."""
    if not kind:
        number = re.match(r"\+?\d+", entry, re.ASCII)  # as CUDA's strtoul: what follows the digits does not count
        return [gpu for gpu, _ in units if number and gpu.index == int(number[0])]
    uuids = {uuid for gpu, parent in units for uuid in (gpu.uuid, parent)}
    fits = [uuid for uuid in uuids if uuid.startswith(entry)] if entry.startswith(kind) else []
    return [gpu for gpu, parent in units if len(fits) == 1 and fits[0] in (gpu.uuid, parent)]


class _NoNvml(Exception):
    """NVML cannot be asked; the text says why."""


@contextmanager
def _nvml() -> Iterator[ModuleType]:
    """The binding, initialised.  Raises _NoNvml, also for an NVML error inside the block."""
    try:
        import pynvml
    except ImportError as error:
        raise _NoNvml(f"nvidia-ml-py cannot be imported: {error}") from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise _NoNvml("no NVIDIA driver: libnvidia-ml.so.1 was not found") from error
    except pynvml.NVMLError as error:
        raise _NoNvml(f"NVML: {error}") from error


def _units(nvml: Any) -> tuple[list[tuple[Gpu, str]], list[str]]:
    """What can be leased, each with its whole GPU's UUID, and what is wrong with the others."""
    units: list[tuple[Gpu, str]] = []
    faults: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            parent = nvml.nvmlDeviceGetUUID(handle)
            if not _mig_enabled(nvml, handle):
                units.append((_gpu(nvml, handle, index), parent))
                continue
            instances = list(_mig_devices(nvml, handle))
            units += [(_gpu(nvml, instance, index), parent) for instance in instances]
            if not instances:
                faults.append(f"GPU {index}: MIG is enabled, but it has no MIG device")
        except nvml.NVMLError as error:
            faults.append(f"GPU {index}: {error}")
    return units, faults


def _gpu(nvml: Any, handle: Any, index: int) -> Gpu:
    memory = _unless_refused(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
    # GPUs that share the host's memory (GB10) refuse this reading.
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=_host_memory_bytes() if memory is None else int(memory),
        index=index,
    )


def _mig_enabled(nvml: Any, handle: Any) -> bool:
    mode = _unless_refused(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE


def _mig_devices(nvml: Any, handle: Any) -> Iterator[Any]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError_NotFound:
            continue  # slots may be empty between two devices


def _unless_refused(nvml: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


def _host_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0
