"""Figures of one GPU, gathered from its events."""

from typing import Any

from harness.telemetry.energy import FELL, NEEDED_COVERAGE, of_gpu
from harness.telemetry.gauges import FEW, Counter, Gauge, Sums, as_number, whole
from harness.telemetry.values import Energy, Event, GpuSpan, GpuTelemetry, Span

# What holds a GPU below the clocks it would have; the other reasons are settings, or that it has nothing to do.
THROTTLING = frozenset(["sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"])
_PIDS_LISTED = 20
_XIDS_LISTED = 100  # some come by the second
_GPU_GAUGES = ("memory_used_bytes", "memory_reserved_bytes", "sm_clock_mhz", "temperature_c")
_GPU_COUNTERS = (
    *("energy_j", "throttled_power_s", "throttled_thermal_s", "pcie_tx_bytes", "pcie_rx_bytes", "pcie_replays"),
    *("nvlink_tx_bytes", "nvlink_rx_bytes", "ecc_uncorrected"),
)
# Means over the seconds before a sample, which `gpm_s` tells; figure -> field.
_MEANS = {
    "sm_active_mean_percent": "sm_active_percent",
    "sm_occupancy_mean_percent": "sm_occupancy_percent",
    "tensor_active_mean_percent": "tensor_active_percent",
    "memory_bandwidth_mean_percent": "memory_bandwidth_percent",
}
_POWER = ("power_w", "power_average_w", "power_instant_w")


class GpuSpanReading:
    """Gathers a GpuSpan."""

    def __init__(self, span: Span, gap_s: float) -> None:
        self.span = span
        self._polls = Gauge(span, gap_s)  # of nothing: counts and coverage
        self._gauges = {name: Gauge(span, gap_s) for name in (*_GPU_GAUGES, "power", "utilization", "throttled")}
        self._counters = {name: Counter(span) for name in _GPU_COUNTERS}
        self._means = {name: Sums(span) for name in _MEANS}
        self._buffered = Sums(span)

    def take(self, event: Event) -> None:
        m = float(event["m"])
        self._polls.take(m, 0)
        for name in _GPU_GAUGES:
            self._gauges[name].take(m, event.get(name))
        for name, counter in self._counters.items():
            counter.take(m, event.get(name))
        if (seconds := as_number(event.get("gpm_s"))) is not None:
            for figure, name in _MEANS.items():
                if (mean := as_number(event.get(name))) is not None:
                    self._means[figure].take((m - seconds, m), mean * seconds)
        power = next((event[name] for name in _POWER if as_number(event.get(name)) is not None), None)
        self._gauges["power"].take(m, power)
        inside = self.span[0] <= m <= self.span[1]
        if inside and (instant := as_number(event.get("power_instant_w"))) is not None:
            self._gauges["power"].note(instant)
        if isinstance(buffer := event.get("power_buffer"), dict):
            piece = float(buffer["from_m"]), float(buffer["to_m"])
            self._buffered.take(piece, float(buffer["joules"]))
            if self.span[0] <= piece[0] and piece[1] <= self.span[1]:
                self._gauges["power"].note(float(buffer["peak_w"]))
        shares = event.get("utilization_buffer")
        share = shares.get("mean_percent") if isinstance(shares, dict) else event.get("utilization_percent")
        self._gauges["utilization"].take(m, share)
        reasons = event.get("throttle_reasons")
        self._gauges["throttled"].take(m, bool(THROTTLING & set(reasons)) + 0.0 if reasons is not None else None)

    def told(self, unavailable: dict[str, str]) -> GpuSpan:
        seconds = max(0.0, self.span[1] - self.span[0])
        gauge, counter = self._gauges, {name: counter.value for name, counter in self._counters.items()}
        figures: dict[str, Any] = {
            "utilization_mean_percent": gauge["utilization"].mean,
            **{name: sums.mean for name, sums in self._means.items()},
            "memory_used_mean_bytes": gauge["memory_used_bytes"].mean,
            "memory_used_peak_bytes": whole(gauge["memory_used_bytes"].peak),
            "memory_reserved_bytes": whole(gauge["memory_reserved_bytes"].peak),
            "power_mean_w": gauge["power"].mean,
            "power_peak_w": gauge["power"].peak,
            "sm_clock_mean_mhz": gauge["sm_clock_mhz"].mean,
            "temperature_mean_c": gauge["temperature_c"].mean,
            "temperature_peak_c": gauge["temperature_c"].peak,
            "throttled_share": gauge["throttled"].mean,
            **{name: counter[name] for name in _GPU_COUNTERS if name != "energy_j"},
        }
        reasons = {
            name: _why(_COLUMN.get(name, name), unavailable, self._counters.get(name), self._polls.samples)
            for name, value in figures.items()
            if value is None
        }
        return GpuSpan(
            seconds=seconds,
            samples=self._polls.samples,
            coverage=min(1.0, self._polls.covered / seconds) if seconds else 0.0,
            energy=self._energy(seconds, unavailable),
            reasons=reasons,
            **figures,
        )

    def _energy(self, seconds: float, unavailable: dict[str, str]) -> Energy:
        counter, polls = self._counters["energy_j"], self._gauges["power"]
        # The driver's own readings are closer together, unless its ring went round or the driver keeps none.
        buffered = self._buffered.covered >= NEEDED_COVERAGE * seconds
        integral = (self._buffered.total, self._buffered.covered) if buffered else (polls.area, polls.covered)
        return of_gpu(counter, integral, seconds, unavailable)


# figure -> the field it is made of, where that has another name
_COLUMN = {
    "utilization_mean_percent": "utilization_percent",
    **_MEANS,
    "memory_used_mean_bytes": "memory_used_bytes",
    "memory_used_peak_bytes": "memory_used_bytes",
    "power_mean_w": "power_w",
    "power_peak_w": "power_w",
    "sm_clock_mean_mhz": "sm_clock_mhz",
    "temperature_mean_c": "temperature_c",
    "temperature_peak_c": "temperature_c",
    "throttled_share": "throttle_reasons",
}


class GpuReading:
    """Gathers a GpuTelemetry."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.facts: Event = {}
        self.first: Event | None = None
        self.spans: list[GpuSpanReading | None] = []
        self.last_m = 0.0
        self.foreign: list[int] = []
        self.told_of_processes = False
        self.nameless: set[int] = set()  # processes of the sample before of which nobody knows whose they are
        self.hidden = False  # one of them stayed: it had not just ended
        self.xids: list[int] = []
        self.lost: str | None = None
        self.stalls = 0

    def take(self, event: Event, window: Span | None, gap_s: float) -> None:
        m = float(event["m"])
        if self.first is None:
            self.first = event
            # The end is not known yet: nothing after the last sample counts anyway.
            self.spans = [GpuSpanReading((m, float("inf")), gap_s), GpuSpanReading(window, gap_s) if window else None]
        self.last_m = m
        for span in self.spans:
            if span is not None:
                span.take(event)
        if (processes := event.get("processes")) is not None:
            owners = [(int(pid), own) for pid, _, own in processes]
            self.told_of_processes = self.told_of_processes or all(own is not None for _, own in owners)
            nameless = {pid for pid, own in owners if own is None}
            self.hidden = self.hidden or bool(nameless & self.nameless)
            self.nameless = nameless
            new = [pid for pid, own in owners if own is False and pid not in self.foreign]
            self.foreign += new[: _PIDS_LISTED - len(self.foreign)]

    def note_xid(self, xid: int) -> None:
        if len(self.xids) < _XIDS_LISTED:
            self.xids.append(xid)

    def told(self, ranks: tuple[int, ...]) -> GpuTelemetry:
        """`ranks`: those that trained on it."""
        unavailable = {str(k): str(v) for k, v in (self.facts.get("unavailable") or {}).items()}
        job, window = self.spans or [None, None]
        if job is not None:
            job.span = (job.span[0], self.last_m)
        whole, first = self.facts.get("whole_uuid"), self.first or {}
        return GpuTelemetry(
            uuid=self.uuid,
            whole_uuid=whole,
            index=self.facts.get("index"),
            name=self.facts.get("name"),
            ranks=ranks,
            shared=whole is not None and whole != self.uuid,
            memory_source=self.facts.get("memory_source"),
            start_temperature_c=as_number(first.get("temperature_c")),
            start_sm_clock_mhz=as_number(first.get("sm_clock_mhz")),
            foreign_pids=tuple(self.foreign),
            contended=True if self.foreign else False if self.told_of_processes and not self.hidden else None,
            xids=tuple(self.xids),
            lost=self.lost,
            stalls=self.stalls,
            job=job.told(unavailable) if job is not None else None,
            window=window.told(unavailable) if window is not None else None,
            unavailable=unavailable,
            reason=self.facts.get("reason") or (None if self.first else "the sampler has read nothing of it"),
        )


def _why(column: str, unavailable: dict[str, str], counter: Counter | None, samples: int) -> str:
    if counter is not None and counter.fell:
        return FELL
    if column in unavailable:
        return unavailable[column]
    return FEW if samples else "the span holds no sample of the GPU"
