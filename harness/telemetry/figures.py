"""Every figure of a record's `telemetry`: its unit, what it is, where it comes from, and what null means.

`docs/metrics.md` prints these tables, and a test keeps them and the dataclasses of `values` equal."""

from dataclasses import dataclass

_FEW = "too few samples in the span"
_REFUSED = "the GPU does not tell, or too few samples in the span"
_HOPPER = "a GPU before Hopper, or the driver does not permit it"
_ONE = "one of the GPUs does not tell"
_NO_PROCESS = "no sample saw a process of the job"
_PRESSURE = "the kernel keeps no pressure"


@dataclass(frozen=True)
class Row:
    """What a field holds; `source`: fields of the sampler's journal."""

    unit: str
    what: str
    source: str
    null: str = "never null"


_SPAN = {
    "seconds": Row("s", "length of the span", "`m`"),
    "samples": Row("samples", "number of samples in it", "`m`"),
    "coverage": Row("share", "share of it that lies between samples at most three intervals apart", "`m`"),
}
_REASONS = {"reasons": Row("text by figure", "why a figure is null", "all")}

TELEMETRY = {
    "interval_s": Row("s", "time between two samples", "`start`", "no sampler started"),
    "cgroup_version": Row("number", "version of the control groups that rule the job", "`start`", "none does"),
    "memory_limit_bytes": Row("B", "smallest limit of the job's control group and those above", "`start`", "no limit"),
    "cpu_limit": Row("CPUs", "CPUs that they allow to be used at once", "`start`", "no limit"),
    "gpus": Row("list", "each GPU and MIG device of the job", "`gpu`"),
    "job": Row("table", "from the first sample to the last", "all"),
    "window": Row("table", "from the start of the first measured step to the end of the last", "all", "no such steps"),
    "contended": Row(
        "yes or no",
        "a process that is not the job's computed on one of its GPUs: **the figures are not to be compared**",
        "`processes`",
        "no GPU, or nobody can tell",
    ),
    "gaps": Row("times", "that a sampler died", "`gap`"),
    "gap_s": Row("s", "in which none sampled for that", "`gap`"),
    "sampler_busy_mean": Row("share of a core", "what the sampler used, GPUs included", "`busy_fraction`", _FEW),
    "sampler_busy_peak": Row("share of a core", "the same between the two samples with most", "`busy_fraction`", _FEW),
    "reasons": Row("text by figure", "why a limit or a figure of the control group is null", "`start`"),
}

GPU = {
    "uuid": Row("text", "of the GPU or MIG device", "`gpu`"),
    "whole_uuid": Row("text", "of the GPU that a MIG device is part of", "`gpu`", "nothing was read of it"),
    "index": Row("number", "the driver's, of the whole GPU", "`gpu`", "nothing was read of it"),
    "name": Row("text", "of the GPU", "`gpu`", "nothing was read of it"),
    "ranks": Row("list", "ranks that trained on it, joined by UUID; empty where none told", "`model`"),
    "shared": Row("yes or no", "a MIG device: power, energy, clocks, temperature are the whole GPU's", "`gpu`"),
    "memory_source": Row("text", "device, device_with_reserved or host", "`gpu`", "its memory cannot be read"),
    "start_temperature_c": Row(
        "degrees C", "at the first sample: tells a warm GPU from a cold one", "`temperature_c`", _REFUSED
    ),
    "start_sm_clock_mhz": Row("MHz", "at the first sample", "`sm_clock_mhz`", _REFUSED),
    "foreign_pids": Row("list", "processes that computed on it and are not the job's, at most 20", "`processes`"),
    "contended": Row("yes or no", "there was one, at the start or later", "`processes`", "nobody can tell"),
    "xids": Row("list", "numbers of the driver's Xid errors, at most 100", "`xid`"),
    "lost": Row("text", "what the driver said when it left", "`gpu_lost`", "it did not leave"),
    "stalls": Row("times", "that the driver did not answer for seconds", "`gpu_stalled`"),
    "job": Row("table", "from its first sample to its last", "`gpu_sample`", "nothing was read of it"),
    "window": Row("table", "over the measured steps", "`gpu_sample`", "nothing was read of it, or no such steps"),
    "unavailable": Row("text by field", "fields of `gpu_sample` that it refuses, and why", "`gpu`"),
    "reason": Row("text", "why nothing was read of it", "`gpu`", "something was"),
}

GPU_SPAN = {
    **_SPAN,
    "utilization_mean_percent": Row(
        "%", "time in which any kernel ran; by the driver's ring where it keeps one", "`utilization_buffer`", _REFUSED
    ),
    "sm_active_mean_percent": Row("%", "multiprocessors that were busy, exact", "`sm_active_percent`", _HOPPER),
    "sm_occupancy_mean_percent": Row("%", "warps resident of those that fit, exact", "`sm_occupancy_percent`", _HOPPER),
    "tensor_active_mean_percent": Row("%", "time of the tensor cores, exact", "`tensor_active_percent`", _HOPPER),
    "memory_bandwidth_mean_percent": Row("%", "of the memory's peak, exact", "`memory_bandwidth_percent`", _HOPPER),
    "memory_used_mean_bytes": Row("B", "all processes together", "`memory_used_bytes`", _REFUSED),
    "memory_used_peak_bytes": Row(
        "B", "largest sample; a shorter peak is the allocator's to tell", "`memory_used_bytes`", _REFUSED
    ),
    "memory_reserved_bytes": Row(
        "B", "what driver and firmware keep, largest sample", "`memory_reserved_bytes`", _REFUSED
    ),
    "power_mean_w": Row("W", "mean of the polls", "`power_w`", _REFUSED),
    "power_peak_w": Row(
        "W", "largest reading, the driver's ring included", "`power_buffer`, `power_instant_w`", _REFUSED
    ),
    "sm_clock_mean_mhz": Row("MHz", "clock of the multiprocessors", "`sm_clock_mhz`", _REFUSED),
    "temperature_mean_c": Row("degrees C", "of the GPU", "`temperature_c`", _REFUSED),
    "temperature_peak_c": Row("degrees C", "largest sample", "`temperature_c`", _REFUSED),
    "throttled_share": Row(
        "share",
        "time in which power cap, slowdown, heat or power brake held its clocks down, by polls",
        "`throttle_reasons`",
        _REFUSED,
    ),
    "throttled_power_s": Row("s", "under the power limit, by the driver's counter", "`throttled_power_s`", _REFUSED),
    "throttled_thermal_s": Row("s", "under heat, by the driver's counter", "`throttled_thermal_s`", _REFUSED),
    "pcie_tx_bytes": Row("B", "sent over PCIe", "`pcie_tx_bytes`", _REFUSED),
    "pcie_rx_bytes": Row("B", "received over PCIe", "`pcie_rx_bytes`", _REFUSED),
    "pcie_replays": Row("packets", "sent again over PCIe", "`pcie_replays`", _REFUSED),
    "nvlink_tx_bytes": Row("B", "sent over all NVLinks", "`nvlink_tx_bytes`", _REFUSED),
    "nvlink_rx_bytes": Row("B", "received over all NVLinks", "`nvlink_rx_bytes`", _REFUSED),
    "ecc_uncorrected": Row("errors", "of its memory that could not be corrected", "`ecc_uncorrected`", _REFUSED),
    "energy": Row("table", "see `energy`", "`energy_j`, `power_buffer`"),
    **_REASONS,
}

SPAN = {
    "host": Row("table", "processes, control group and machine", "`sample`", "no sample"),
    "gpus": Row("table", "all GPUs together", "`gpu_sample`", "the job had none"),
    "energy": Row("table", "all GPUs together, each whole GPU once", "`gpu_sample`", "the job had none"),
    "joules_per_million_tokens": Row(
        "J",
        "energy (the counter's, without one the integral) / non-pad tokens of the span, in millions",
        "`energy_j`, `tokens`",
        "one of the two is not known",
    ),
    **_REASONS,
}

ALL_GPUS = {
    "gpus": Row("GPUs", "their number, MIG devices counted each", "`gpu`"),
    "samples": Row("samples", "of the GPU that has fewest", "`gpu_sample`"),
    "coverage": Row("share", "of the GPU that has least", "`gpu_sample`"),
    "utilization_mean_percent": Row("%", "mean over the GPUs", "`gpus`", _ONE),
    "sm_active_mean_percent": Row("%", "mean over the GPUs", "`gpus`", _ONE),
    "tensor_active_mean_percent": Row("%", "mean over the GPUs", "`gpus`", _ONE),
    "memory_used_mean_bytes": Row("B", "sum", "`gpus`", _ONE),
    "memory_used_peak_bytes": Row("B", "of the fullest GPU", "`gpus`", _ONE),
    "power_mean_w": Row("W", "sum, each whole GPU once", "`gpus`", _ONE),
    "temperature_peak_c": Row("degrees C", "of the hottest GPU", "`gpus`", _ONE),
    "throttled_share": Row("share", "of the GPU that was held down most", "`gpus`", _ONE),
    "throttled_power_s": Row("s", "of the GPU with most", "`gpus`", _ONE),
    "throttled_thermal_s": Row("s", "of the GPU with most", "`gpus`", _ONE),
    "pcie_tx_bytes": Row("B", "sum, each whole GPU once", "`gpus`", _ONE),
    "pcie_rx_bytes": Row("B", "sum, each whole GPU once", "`gpus`", _ONE),
    "nvlink_tx_bytes": Row("B", "sum, each whole GPU once", "`gpus`", _ONE),
    "nvlink_rx_bytes": Row("B", "sum, each whole GPU once", "`gpus`", _ONE),
    "ecc_uncorrected": Row("errors", "sum, each whole GPU once", "`gpus`", _ONE),
    **_REASONS,
}

ENERGY = {
    "counter_j": Row("J", "difference of the driver's counter", "`energy_j`", "before Volta, or under 90 % is covered"),
    "integrated_j": Row(
        "J",
        "integral of power: of the driver's own readings where the ring covers 90 %, else of the polls",
        "`power_buffer`, `power_w`",
        "no power is told, or under 90 % is covered",
    ),
    "disagreement": Row("share", "their difference / the larger", "both", "one is not known, or both are 0"),
    "seconds": Row("s", "length of the span", "`m`"),
    "flags": Row("list", "what speaks against them: see [telemetry.md](telemetry.md#energy)", "all"),
    **_REASONS,
}

HOST = {
    **_SPAN,
    "cpu_s": Row("s", "CPU time of the job's processes, ended ones included", "`tree.cpu_s`", _FEW),
    "cpu_mean_cores": Row("cores", "the same a second", "`tree.cpu_s`", _FEW),
    "host_cpu_mean_percent": Row("%", "of all the machine's CPUs, whoever used them", "`host.cpu_percent`", _FEW),
    "rss_mean_bytes": Row("B", "resident memory, a shared page once for each process", "`tree.rss_bytes`", _NO_PROCESS),
    "rss_peak_bytes": Row("B", "largest sample of it", "`tree.rss_bytes`", _NO_PROCESS),
    "pss_peak_bytes": Row(
        "B", "the same with shared pages shared out", "`tree.pss_bytes`", "not permitted, or in none of the few samples"
    ),
    "open_files_peak": Row("files", "files, sockets and pipes open at once", "`tree.open_files`", "not permitted"),
    "threads_peak": Row("threads", "at once", "`tree.threads`", _FEW),
    "processes_peak": Row("processes", "at once", "`tree.processes`", _FEW),
    "cgroup_memory_peak_bytes": Row(
        "B", "largest sample of the control group", "`cgroup.memory_bytes`", "none rules memory"
    ),
    "memory_available_least_bytes": Row(
        "B", "least that programs could still have had", "`host.memory_available_bytes`", _FEW
    ),
    "read_bytes": Row("B", "read from storage", "`tree.read_bytes`", "not permitted, or too few samples"),
    "write_bytes": Row("B", "written to storage", "`tree.write_bytes`", "not permitted, or too few samples"),
    "network_rx_bytes": Row("B", "received in the job's network namespace", "`host.network_rx_bytes`", _FEW),
    "network_tx_bytes": Row("B", "sent in it", "`host.network_tx_bytes`", _FEW),
    "memory_pressure_s": Row(
        "s",
        "some task waited for memory: of the control group, where it tells not, of the machine",
        "`memory_pressure_s`",
        _PRESSURE,
    ),
    "cpu_pressure_s": Row("s", "the same for a CPU", "`cpu_pressure_s`", _PRESSURE),
    "io_pressure_s": Row("s", "the same for storage", "`io_pressure_s`", _PRESSURE),
    "cpu_throttled_s": Row(
        "s", "its CPU limit has stopped the control group", "`cgroup.cpu_throttled_s`", "no CPU limit"
    ),
    "cpu_energy_j": Row("J", "of the processors, by RAPL", "`host.cpu_energy_j`", "not there, or root's to read"),
    **_REASONS,
}

# dataclass of `values` -> where it stands in a record, its fields
TABLES: dict[str, tuple[str, dict[str, Row]]] = {
    "Telemetry": ("telemetry", TELEMETRY),
    "SpanFigures": ("telemetry.job, telemetry.window", SPAN),
    "AllGpus": ("gpus of a span", ALL_GPUS),
    "Energy": ("energy of a span, and of a GPU's", ENERGY),
    "HostSpan": ("host of a span", HOST),
    "GpuTelemetry": ("telemetry.gpus, each", GPU),
    "GpuSpan": ("job and window of a GPU", GPU_SPAN),
}


def tables() -> str:
    """All of them as Markdown."""
    lines: list[str] = []
    for place, rows in TABLES.values():
        lines += [f"### {place}", "", "| figure | unit | what it is | source | null means |", "|---|---|---|---|---|"]
        lines += [f"| `{name}` | {r.unit} | {r.what} | {r.source} | {r.null} |" for name, r in rows.items()]
        lines += [""]
    return "\n".join(lines)
