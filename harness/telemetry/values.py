"""What the figures of a job's sampler are: frozen values, as the record holds them.  None is not known."""

from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float]  # seconds on the clock of m


@dataclass(frozen=True)
class Energy:
    """Joules of a GPU, or of all GPUs of the job, by two ways."""

    counter_j: float | None  # difference of the driver's counter
    integrated_j: float | None  # integral of sampled power
    disagreement: float | None  # their difference as a share of the larger
    seconds: float
    flags: tuple[str, ...]  # why the figures are not to be relied on; empty: nothing speaks against them
    reasons: dict[str, str]

    @property
    def joules(self) -> float | None:
        """The counter's, which misses nothing between two samples; without one the integral."""
        return self.integrated_j if self.counter_j is None else self.counter_j


@dataclass(frozen=True)
class GpuSpan:
    """A GPU over a span."""

    seconds: float
    samples: int
    coverage: float  # share of the span between samples that are at most three intervals apart
    utilization_mean_percent: float | None
    sm_active_mean_percent: float | None
    sm_occupancy_mean_percent: float | None
    tensor_active_mean_percent: float | None
    memory_bandwidth_mean_percent: float | None
    memory_used_mean_bytes: float | None
    memory_used_peak_bytes: int | None  # of all processes, by samples: shorter peaks are the allocator's to tell
    memory_reserved_bytes: int | None
    power_mean_w: float | None
    power_peak_w: float | None
    sm_clock_mean_mhz: float | None
    temperature_mean_c: float | None
    temperature_peak_c: float | None
    throttled_share: float | None  # share of the samples' time in which one of THROTTLING held
    throttled_power_s: float | None  # by the driver's own counters
    throttled_thermal_s: float | None
    pcie_tx_bytes: float | None
    pcie_rx_bytes: float | None
    pcie_replays: float | None
    nvlink_tx_bytes: float | None
    nvlink_rx_bytes: float | None
    ecc_uncorrected: float | None
    energy: Energy
    reasons: dict[str, str]


@dataclass(frozen=True)
class GpuTelemetry:
    """What the sampler saw of one GPU or MIG device."""

    uuid: str
    whole_uuid: str | None
    index: int | None
    name: str | None
    ranks: tuple[int, ...]  # that trained on it, by the UUID that torch told; empty: none told
    shared: bool  # a MIG device: power, energy, clocks and temperature are of the whole GPU
    memory_source: str | None  # as in the `gpu` event
    start_temperature_c: float | None
    start_sm_clock_mhz: float | None
    foreign_pids: tuple[int, ...]  # that computed on it without being of the job; at most 20
    contended: bool | None  # whether there were any; None: nobody can tell
    xids: tuple[int, ...]
    lost: str | None  # what the driver said when it left
    stalls: int  # calls that the driver did not answer for seconds
    job: GpuSpan | None
    window: GpuSpan | None
    unavailable: dict[str, str]  # field of gpu_sample -> why the GPU does not tell
    reason: str | None  # why nothing was read of it


@dataclass(frozen=True)
class HostSpan:
    """The job's processes, its control group and the machine over a span."""

    seconds: float
    samples: int
    coverage: float
    cpu_s: float | None  # of the job's processes
    cpu_mean_cores: float | None  # CPU seconds of the job's processes a second
    host_cpu_mean_percent: float | None
    rss_mean_bytes: float | None
    rss_peak_bytes: int | None
    pss_peak_bytes: int | None
    open_files_peak: int | None
    threads_peak: int | None
    processes_peak: int | None
    cgroup_memory_peak_bytes: int | None  # the largest sample; the kernel's own peak may be older than the job
    memory_available_least_bytes: int | None
    read_bytes: float | None
    write_bytes: float | None
    network_rx_bytes: float | None
    network_tx_bytes: float | None
    memory_pressure_s: float | None  # of the control group where it tells, else of the machine
    cpu_pressure_s: float | None
    io_pressure_s: float | None
    cpu_throttled_s: float | None
    cpu_energy_j: float | None
    reasons: dict[str, str]


@dataclass(frozen=True)
class AllGpus:
    """All GPUs of the job over a span; a figure is None where one of them does not tell it."""

    gpus: int  # GPUs and MIG devices
    samples: int  # of the one that has fewest
    coverage: float  # of the one that has least
    utilization_mean_percent: float | None  # mean over the GPUs
    sm_active_mean_percent: float | None
    tensor_active_mean_percent: float | None
    memory_used_mean_bytes: float | None  # of all together
    memory_used_peak_bytes: int | None  # of the fullest
    power_mean_w: float | None  # of all together, each whole GPU once
    temperature_peak_c: float | None  # of the hottest
    throttled_share: float | None  # of the one that was held down most
    throttled_power_s: float | None
    throttled_thermal_s: float | None
    pcie_tx_bytes: float | None  # of all together, each whole GPU once
    pcie_rx_bytes: float | None
    nvlink_tx_bytes: float | None
    nvlink_rx_bytes: float | None
    ecc_uncorrected: float | None
    reasons: dict[str, str]


@dataclass(frozen=True)
class SpanFigures:
    """All of a span."""

    host: HostSpan | None
    gpus: AllGpus | None  # None: the job had none
    energy: Energy | None  # of all GPUs, each whole GPU counted once; None: the job had none
    joules_per_million_tokens: float | None  # of energy.joules and the non-pad tokens of the span
    reasons: dict[str, str]


@dataclass(frozen=True)
class Telemetry:
    """What the sampler's journal tells of a job."""

    interval_s: float | None
    cgroup_version: int | None
    memory_limit_bytes: int | None
    cpu_limit: float | None
    gpus: tuple[GpuTelemetry, ...]
    job: SpanFigures
    window: SpanFigures | None  # None: there is no window
    contended: bool | None  # a GPU was; None: nobody can tell, or there is none
    gaps: int  # times that a sampler died
    gap_s: float
    sampler_busy_mean: float | None  # share of one core
    sampler_busy_peak: float | None
    reasons: dict[str, str] = field(default_factory=dict)  # of the limits and of the cgroup's fields
