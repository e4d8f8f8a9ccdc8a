"""GPU performance monitoring (GPM): how busy a GPU's parts were between two samples, exactly.  Hopper and later.

The driver counts all the time; a sample is a copy of its counters, and figures are made of two.  So each poll's are of
all that lies since the poll before, and nothing is missed in between."""

import math
import time
from dataclasses import dataclass
from typing import Any

from harness.sampling.gpu_reader import Unit

# field of gpu_sample -> number of the metric (nvml.h, nvmlGpmMetricId_t); all are percentages
METRICS = {
    "sm_active_percent": 2,  # SM_UTIL
    "sm_occupancy_percent": 3,  # SM_OCCUPANCY
    "tensor_active_percent": 5,  # ANY_TENSOR_UTIL
    "memory_bandwidth_percent": 10,  # DRAM_BW_UTIL
}

_SHORTEST_S = 0.05  # the last poll may follow another at once, and two equal samples have no figures


@dataclass
class _Samples:
    """The driver's buffers: the last sample, once there is one, and the one that the next goes to."""

    last: Any
    spare: Any
    taken_m: float | None = None


def gpm(nvml: Any, unit: Unit) -> dict[str, Any]:
    """The means since the last sample; empty at the first, and so soon after one that there is little to tell."""
    wanted = [column for column in METRICS if column not in unit.unavailable]
    if not wanted:  # each metric was refused by itself: nothing is left that a sample could tell
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    if "gpm" not in unit.memory:
        if not nvml.nvmlGpmQueryDeviceSupport(unit.whole).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        unit.memory["gpm"] = _Samples(nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
    samples: _Samples = unit.memory["gpm"]
    if samples.taken_m is not None and time.monotonic() - samples.taken_m < _SHORTEST_S:
        return {}
    _take(nvml, unit, samples.spare)
    before_m, samples.taken_m = samples.taken_m, time.monotonic()
    samples.last, samples.spare = samples.spare, samples.last
    if before_m is None:
        return {}
    values = _compared(nvml, unit, samples, wanted)
    return values | {"gpm_s": round(samples.taken_m - before_m, 6)} if values else {}


def _take(nvml: Any, unit: Unit, into: Any) -> None:
    if unit.uuid.startswith("MIG-"):
        nvml.nvmlGpmMigSampleGet(unit.whole, nvml.nvmlDeviceGetGpuInstanceId(unit.handle), into)
    else:
        nvml.nvmlGpmSampleGet(unit.whole, into)


def _compared(nvml: Any, unit: Unit, samples: _Samples, wanted: list[str]) -> dict[str, float]:
    """The metrics of the last sample and the one before, which is the next spare; each has a verdict of its own."""
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
    asked.sample1, asked.sample2 = samples.spare, samples.last
    for place, column in enumerate(wanted):
        asked.metrics[place].metricId = METRICS[column]
    nvml.nvmlGpmMetricsGet(asked)
    values: dict[str, float] = {}
    refusals = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_INVALID_ARGUMENT)
    for place, column in enumerate(wanted):
        metric = asked.metrics[place]
        if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value):
            values[column] = round(metric.value, 3)
        elif metric.nvmlReturn in refusals:
            unit.unavailable[column] = str(nvml.NVMLError(metric.nvmlReturn))
    return values
