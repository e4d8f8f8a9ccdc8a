"""Figures of the host, the job's processes and its control group, gathered from the samples."""

from typing import Any

from harness.telemetry.gauges import FEW, Counter, Gauge, first_known, whole
from harness.telemetry.values import Event, HostSpan, Span


class HostSpanReading:
    """Gathers a HostSpan."""

    _GAUGES = (
        *(("tree", name) for name in ("rss_bytes", "pss_bytes", "open_files", "threads", "processes")),
        *(("host", name) for name in ("cpu_percent", "memory_available_bytes")),
        ("cgroup", "memory_bytes"),
    )
    _COUNTERS = (
        *(("tree", name) for name in ("cpu_s", "read_bytes", "write_bytes")),
        *(("host", name) for name in ("network_rx_bytes", "network_tx_bytes", "cpu_energy_j")),
        *((group, f"{kind}_pressure_s") for group in ("host", "cgroup") for kind in ("memory", "cpu", "io")),
        ("cgroup", "cpu_throttled_s"),
    )

    def __init__(self, span: Span, gap_s: float) -> None:
        self.span = span
        self._polls = Gauge(span, gap_s)
        self._gauges = {key: Gauge(span, gap_s) for key in self._GAUGES}
        self._counters = {key: Counter(span) for key in self._COUNTERS}

    def take(self, event: Event) -> None:
        m = float(event["m"])
        self._polls.take(m, 0)
        for (group, name), gauge in self._gauges.items():
            gauge.take(m, (event.get(group) or {}).get(name))
        for (group, name), counter in self._counters.items():
            counter.take(m, (event.get(group) or {}).get(name))

    def restart(self) -> None:
        """Another sampler goes on: what it counts from its own start begins anew."""
        self._counters["host", "cpu_energy_j"].forget()

    def told(self, cgroup_reasons: dict[str, str]) -> HostSpan:
        seconds = max(0.0, self.span[1] - self.span[0])
        gauge = self._gauges
        counter = {key: counter.value for key, counter in self._counters.items()}
        cpu = self._counters["tree", "cpu_s"]
        figures: dict[str, Any] = {
            "cpu_s": cpu.value,
            "cpu_mean_cores": cpu.value / cpu.covered if cpu.value is not None else None,
            "host_cpu_mean_percent": gauge["host", "cpu_percent"].mean,
            "rss_mean_bytes": gauge["tree", "rss_bytes"].mean,
            "rss_peak_bytes": whole(gauge["tree", "rss_bytes"].peak),
            "pss_peak_bytes": whole(gauge["tree", "pss_bytes"].peak),
            "open_files_peak": whole(gauge["tree", "open_files"].peak),
            "threads_peak": whole(gauge["tree", "threads"].peak),
            "processes_peak": whole(gauge["tree", "processes"].peak),
            "cgroup_memory_peak_bytes": whole(gauge["cgroup", "memory_bytes"].peak),
            "memory_available_least_bytes": whole(gauge["host", "memory_available_bytes"].least),
            "read_bytes": counter["tree", "read_bytes"],
            "write_bytes": counter["tree", "write_bytes"],
            "network_rx_bytes": counter["host", "network_rx_bytes"],
            "network_tx_bytes": counter["host", "network_tx_bytes"],
            **{name: first_known(counter["cgroup", name], counter["host", name]) for name in _PRESSURES},
            "cpu_throttled_s": counter["cgroup", "cpu_throttled_s"],
            "cpu_energy_j": counter["host", "cpu_energy_j"],
        }
        told = {"cgroup_memory_peak_bytes": "memory_bytes"}
        reasons = {
            name: cgroup_reasons.get(told.get(name, name)) or _HOST_REASONS.get(name) or FEW
            for name, value in figures.items()
            if value is None
        }
        coverage = min(1.0, self._polls.covered / seconds) if seconds else 0.0
        return HostSpan(seconds=seconds, samples=self._polls.samples, coverage=coverage, reasons=reasons, **figures)


_PRESSURES = ("memory_pressure_s", "cpu_pressure_s", "io_pressure_s")
_HOST_REASONS = {
    "rss_mean_bytes": "no sample saw a process of the job",
    "rss_peak_bytes": "no sample saw a process of the job",
    "pss_peak_bytes": "no sample in the span has it: it is read in few, and may not be permitted",
    "read_bytes": "may not be read, or the span holds too few samples of it",
    "write_bytes": "may not be read, or the span holds too few samples of it",
    "cpu_energy_j": "the processors' energy counters are not there, or may not be read",
}
