"""Figures of GPUs, host and energy from the events of the sampler's journal.  Pure; one pass, in memory that does not
grow with the journal.

Times are seconds on the clock of `m`, as in the ranks' `ended_m`.  A figure is taken over a span: the whole job, and
the window of the steps that are measured.  Means weigh by time; between two samples further apart than three intervals
nothing is known, and `coverage` is the share of the span that is.  What is not known is None; `reasons` says why."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float]

DISAGREEMENT = 0.05  # between the energy counter and integrated power; beyond, one of them is wrong
SHORTEST_S = 10.0  # the counter moves each 100 ms, and A100 and H100 look at a quarter of the time (arXiv 2312.02741)
NEEDED_COVERAGE = 0.9  # below, an energy is not told; above, the rest counts at the mean of what is covered
# What holds a GPU below the clocks it would have; the other reasons are settings, or that it has nothing to do.
THROTTLING = frozenset(["sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"])
_GAP_INTERVALS = 3.0
_PIDS_LISTED = 20


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
    coverage: float
    utilization_mean_percent: float | None
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
class SpanFigures:
    """All of a span."""

    host: HostSpan | None
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


def summarise(
    events: Iterable[Event], window: Span | None = None, *, window_tokens: int | None = None, tokens: int | None = None
) -> Telemetry:
    """The figures of a job.  `events`: its system.jsonl in order, read once.

    `window`: first and last moment of the measured steps; `window_tokens`: the non-pad tokens of those steps, all
    ranks; `tokens`: those of the whole job.  Odd events, of another version, are left out."""
    reading = _Reading(window)
    for event in events:
        try:
            reading.take(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return reading.told(window_tokens, tokens)


def joules_per_million(joules: float | None, tokens: int | None) -> float | None:
    return joules / tokens * 1e6 if joules is not None and tokens else None


@dataclass
class _Gauge:
    """Mean by time and extremes of something that is read now and then."""

    span: Span
    gap_s: float
    area: float = 0.0
    covered: float = 0.0
    samples: int = 0
    peak: float | None = None
    least: float | None = None
    _before: tuple[float, float] | None = None

    def take(self, m: float, value: Any) -> None:
        number = _number(value)
        before, self._before = self._before, (m, number) if number is not None else None
        if number is None:
            return
        if self.span[0] <= m <= self.span[1]:
            self.samples += 1
            self.note(number)
        if before is not None and 0 < m - before[0] <= self.gap_s:
            low, high = max(before[0], self.span[0]), min(m, self.span[1])
            if high > low:
                slope = (number - before[1]) / (m - before[0])
                middle = before[1] + slope * ((low + high) / 2 - before[0])
                self.area += middle * (high - low)
                self.covered += high - low

    def note(self, number: float) -> None:
        """An extreme that is not weighed."""
        self.peak = number if self.peak is None else max(self.peak, number)
        self.least = number if self.least is None else min(self.least, number)

    @property
    def mean(self) -> float | None:
        if self.covered:
            return self.area / self.covered
        return self.peak if self.samples == 1 else None


@dataclass
class _Counter:
    """How much something that only rises rose within a span; what lies between two readings counts in proportion."""

    span: Span
    rose: float = 0.0
    covered: float = 0.0
    fell: bool = False
    _before: tuple[float, float] | None = None

    def take(self, m: float, value: Any) -> None:
        number = _number(value)
        if number is None:
            return
        before, self._before = self._before, (m, number)
        if before is None or m <= before[0]:
            return
        share = _overlap((before[0], m), self.span) / (m - before[0])
        self.covered += share * (m - before[0])
        self.fell = self.fell or (number < before[1] and share > 0)
        self.rose += (number - before[1]) * share

    def forget(self) -> None:
        """The next reading is a first one."""
        self._before = None

    @property
    def value(self) -> float | None:
        return None if self.fell or not self.covered else self.rose


@dataclass
class _Sums:
    """Joules that come in pieces, each over a time of its own."""

    span: Span
    joules: float = 0.0
    covered: float = 0.0

    def take(self, piece: Span, joules: float) -> None:
        length = piece[1] - piece[0]
        if length > 0:
            overlap = _overlap(piece, self.span)
            self.joules += joules * overlap / length
            self.covered += overlap


_GPU_GAUGES = ("memory_used_bytes", "memory_reserved_bytes", "sm_clock_mhz", "temperature_c")
_GPU_COUNTERS = (
    *("energy_j", "throttled_power_s", "throttled_thermal_s", "pcie_tx_bytes", "pcie_rx_bytes", "pcie_replays"),
    *("nvlink_tx_bytes", "nvlink_rx_bytes", "ecc_uncorrected"),
)
_POWER = ("power_w", "power_average_w", "power_instant_w")


class _GpuSpan:
    """Gathers a GpuSpan."""

    def __init__(self, span: Span, gap_s: float) -> None:
        self.span = span
        self._polls = _Gauge(span, gap_s)  # of nothing: counts and coverage
        self._gauges = {name: _Gauge(span, gap_s) for name in (*_GPU_GAUGES, "power", "utilization", "throttled")}
        self._counters = {name: _Counter(span) for name in _GPU_COUNTERS}
        self._buffered = _Sums(span)

    def take(self, event: Event) -> None:
        m = float(event["m"])
        self._polls.take(m, 0)
        for name in _GPU_GAUGES:
            self._gauges[name].take(m, event.get(name))
        for name, counter in self._counters.items():
            counter.take(m, event.get(name))
        power = next((event[name] for name in _POWER if _number(event.get(name)) is not None), None)
        self._gauges["power"].take(m, power)
        inside = self.span[0] <= m <= self.span[1]
        if inside and (instant := _number(event.get("power_instant_w"))) is not None:
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
            "memory_used_mean_bytes": gauge["memory_used_bytes"].mean,
            "memory_used_peak_bytes": _whole(gauge["memory_used_bytes"].peak),
            "memory_reserved_bytes": _whole(gauge["memory_reserved_bytes"].peak),
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
        integral = (self._buffered.joules, self._buffered.covered) if buffered else (polls.area, polls.covered)
        reasons: dict[str, str] = {}
        flags: list[str] = []
        values: dict[str, float | None] = {"counter_j": None, "integrated_j": None}
        for name, (joules, covered), column, fell in (
            ("counter_j", (counter.rose, counter.covered), "energy_j", counter.fell),
            ("integrated_j", integral, "power_w", False),
        ):
            if fell:
                reasons[name] = "the counter fell: the driver was loaded anew"
            elif not covered:
                reasons[name] = unavailable.get(column) or "there are no two samples of it in the span"
            elif covered < NEEDED_COVERAGE * seconds:
                reasons[name] = f"{covered:.1f} s of {seconds:.1f} s are covered by samples"
            else:
                values[name] = joules * seconds / covered
                if covered < 0.99 * seconds:
                    flags.append(f"{name}: {1 - covered / seconds:.1%} of the span is not covered, taken at the mean")
        return _energy(values["counter_j"], values["integrated_j"], seconds, flags, reasons)


# figure -> the field it is made of, where that has another name
_COLUMN = {
    "utilization_mean_percent": "utilization_percent",
    "memory_used_mean_bytes": "memory_used_bytes",
    "memory_used_peak_bytes": "memory_used_bytes",
    "power_mean_w": "power_w",
    "power_peak_w": "power_w",
    "sm_clock_mean_mhz": "sm_clock_mhz",
    "temperature_mean_c": "temperature_c",
    "temperature_peak_c": "temperature_c",
    "throttled_share": "throttle_reasons",
}


def _energy(
    counter: float | None, integrated: float | None, seconds: float, flags: list[str], reasons: dict[str, str]
) -> Energy:
    disagreement = None
    if counter is not None and integrated is not None and (larger := max(counter, integrated)) > 0:
        disagreement = abs(counter - integrated) / larger
        if disagreement > DISAGREEMENT:
            flags = [*flags, f"the energy counter and integrated power disagree by {disagreement:.1%}"]
    if disagreement is None:
        reasons = reasons | {"disagreement": "there are no two figures to compare"}
    if seconds < SHORTEST_S:
        flags = [*flags, f"{seconds:.1f} s are too short for an energy: at least {SHORTEST_S:.0f} s"]
    return Energy(counter, integrated, disagreement, seconds, tuple(flags), reasons)


class _Gpu:
    """Gathers a GpuTelemetry."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.facts: Event = {}
        self.first: Event | None = None
        self.spans: list[_GpuSpan | None] = []
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
            self.spans = [_GpuSpan((m, float("inf")), gap_s), _GpuSpan(window, gap_s) if window else None]
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

    def told(self) -> GpuTelemetry:
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
            shared=whole is not None and whole != self.uuid,
            memory_source=self.facts.get("memory_source"),
            start_temperature_c=_number(first.get("temperature_c")),
            start_sm_clock_mhz=_number(first.get("sm_clock_mhz")),
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


class _HostSpan:
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
        self._polls = _Gauge(span, gap_s)
        self._gauges = {key: _Gauge(span, gap_s) for key in self._GAUGES}
        self._counters = {key: _Counter(span) for key in self._COUNTERS}

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
            "cpu_mean_cores": cpu.value / cpu.covered if cpu.value is not None else None,
            "host_cpu_mean_percent": gauge["host", "cpu_percent"].mean,
            "rss_mean_bytes": gauge["tree", "rss_bytes"].mean,
            "rss_peak_bytes": _whole(gauge["tree", "rss_bytes"].peak),
            "pss_peak_bytes": _whole(gauge["tree", "pss_bytes"].peak),
            "open_files_peak": _whole(gauge["tree", "open_files"].peak),
            "threads_peak": _whole(gauge["tree", "threads"].peak),
            "processes_peak": _whole(gauge["tree", "processes"].peak),
            "cgroup_memory_peak_bytes": _whole(gauge["cgroup", "memory_bytes"].peak),
            "memory_available_least_bytes": _whole(gauge["host", "memory_available_bytes"].least),
            "read_bytes": counter["tree", "read_bytes"],
            "write_bytes": counter["tree", "write_bytes"],
            "network_rx_bytes": counter["host", "network_rx_bytes"],
            "network_tx_bytes": counter["host", "network_tx_bytes"],
            **{name: _first(counter["cgroup", name], counter["host", name]) for name in _PRESSURES},
            "cpu_throttled_s": counter["cgroup", "cpu_throttled_s"],
            "cpu_energy_j": counter["host", "cpu_energy_j"],
        }
        told = {"cgroup_memory_peak_bytes": "memory_bytes"}
        reasons = {
            name: cgroup_reasons.get(told.get(name, name)) or _HOST_REASONS.get(name) or _FEW
            for name, value in figures.items()
            if value is None
        }
        coverage = min(1.0, self._polls.covered / seconds) if seconds else 0.0
        return HostSpan(seconds=seconds, samples=self._polls.samples, coverage=coverage, reasons=reasons, **figures)


_PRESSURES = ("memory_pressure_s", "cpu_pressure_s", "io_pressure_s")
_FEW = "the span holds too few samples of it"
_HOST_REASONS = {
    "rss_mean_bytes": "no sample saw a process of the job",
    "rss_peak_bytes": "no sample saw a process of the job",
    "pss_peak_bytes": "no sample in the span has it: it is read in few, and may not be permitted",
    "read_bytes": "may not be read, or the span holds too few samples of it",
    "write_bytes": "may not be read, or the span holds too few samples of it",
    "cpu_energy_j": "the processors' energy counters are not there, or may not be read",
}


class _Reading:
    """What has been read of a journal so far."""

    def __init__(self, window: Span | None) -> None:
        self._window = window
        self._start: Event = {}
        self._gap_s = _GAP_INTERVALS
        self._gpus: dict[str, _Gpu] = {}
        self._host: list[_HostSpan | None] = []
        self._last_m = 0.0
        self._gaps, self._silent_s = 0, 0.0
        self._busy = _Gauge((float("-inf"), float("inf")), float("inf"))

    def take(self, event: Event) -> None:
        kind = event["e"]
        if kind == "sample":
            self._sample(event)
        elif kind == "gpu_sample":
            self._gpu(event["uuid"]).take(event, self._window, self._gap_s)
        elif kind == "gpu":
            self._gpu(event["uuid"]).facts = event
        elif kind == "gpu_lost":
            self._gpu(event["uuid"]).lost = str(event.get("reason"))
        elif kind == "gpu_stalled":
            for gpu in [self._gpu(event["uuid"])] if event.get("uuid") else self._gpus.values():
                gpu.stalls += 1
        elif kind == "xid":
            # The whole GPU's: of all MIG devices on it; of every GPU where nobody says whose.
            of = event.get("uuid")
            for gpu in self._gpus.values():
                if of is None or of in (gpu.uuid, gpu.facts.get("whole_uuid")):
                    gpu.xids.append(int(event["xid"]))
        elif kind == "start":
            self._gap_s = _GAP_INTERVALS * max(0.1, float(event["interval_s"]))
            self._start = event
            for span in self._host:
                if span is not None:
                    span.restart()
        elif kind == "gap":
            self._silent_s += float(event["seconds"])
            self._gaps += 1

    def _gpu(self, uuid: str) -> _Gpu:
        return self._gpus.setdefault(uuid, _Gpu(uuid))

    def _sample(self, event: Event) -> None:
        m = float(event["m"])
        if not self._host:
            job = _HostSpan((m, float("inf")), self._gap_s)
            self._host = [job, _HostSpan(self._window, self._gap_s) if self._window else None]
        for span in self._host:
            if span is not None:
                span.take(event)
        self._last_m = m
        self._busy.take(m, (event.get("sampler") or {}).get("busy_fraction"))

    def told(self, window_tokens: int | None, tokens: int | None) -> Telemetry:
        reasons = {str(k): str(v) for k, v in (self._start.get("reasons") or {}).items()}
        gpus = tuple(gpu.told() for gpu in self._gpus.values())
        job, window = self._host or [None, None]
        if job is not None:
            job.span = (job.span[0], self._last_m)
        told = [gpu.contended for gpu in gpus]
        return Telemetry(
            interval_s=self._start.get("interval_s"),
            cgroup_version=self._start.get("cgroup_version"),
            memory_limit_bytes=self._start.get("memory_limit_bytes"),
            cpu_limit=self._start.get("cpu_limit"),
            gpus=gpus,
            job=_figures(job.told(reasons) if job else None, [(gpu, gpu.job) for gpu in gpus], tokens),
            window=_figures(window.told(reasons) if window else None, [(g, g.window) for g in gpus], window_tokens)
            if self._window
            else None,
            contended=True if True in told else None if None in told or not told else False,
            gaps=self._gaps,
            gap_s=self._silent_s,
            sampler_busy_mean=self._busy.mean,
            sampler_busy_peak=self._busy.peak,
            reasons=reasons,
        )


def _figures(host: HostSpan | None, gpus: list[tuple[GpuTelemetry, GpuSpan | None]], tokens: int | None) -> SpanFigures:
    energy = _total(gpus) if gpus else None
    joules = joules_per_million(energy.joules if energy else None, tokens)
    reasons: dict[str, str] = {}
    if host is None:
        reasons["host"] = "the sampler left no sample"
    if energy is None:
        reasons["energy"] = "the job had no GPU"
    if joules is None:
        known = energy is not None and energy.joules is not None
        reasons["joules_per_million_tokens"] = "the tokens are not known" if known else "the energy is not known"
    return SpanFigures(host, energy, joules, reasons)


def _total(gpus: list[tuple[GpuTelemetry, GpuSpan | None]]) -> Energy:
    """The energy of all GPUs; each whole GPU once, whatever MIG devices of it the job has."""
    wholes = {gpu.whole_uuid or gpu.uuid: (gpu, span) for gpu, span in gpus}
    spans = [span.energy for _, span in wholes.values() if span is not None]
    flags = list(dict.fromkeys(flag for energy in spans for flag in energy.flags))
    if any(gpu.shared for gpu, _ in gpus):
        flags.append("the figures of MIG devices are of whole GPUs, other jobs' share included")
    reasons: dict[str, str] = {}
    totals: dict[str, float | None] = {}
    for name in ("counter_j", "integrated_j"):
        values = [None if span is None else getattr(span.energy, name) for _, span in wholes.values()]
        known = [value for value in values if value is not None]
        totals[name] = sum(known) if known and len(known) == len(values) else None
        if totals[name] is None:
            said = next(
                (
                    f"GPU {gpu.uuid}: {gpu.reason if span is None else span.energy.reasons.get(name)}"
                    for (gpu, span), value in zip(wholes.values(), values, strict=True)
                    if value is None
                ),
                "",
            )
            reasons[name] = said
    seconds = max((energy.seconds for energy in spans), default=0.0)
    total = _energy(totals["counter_j"], totals["integrated_j"], seconds, [], reasons)
    return Energy(
        total.counter_j,
        total.integrated_j,
        total.disagreement,
        seconds,
        tuple(dict.fromkeys([*flags, *total.flags])),
        total.reasons,
    )


def _why(column: str, unavailable: dict[str, str], counter: _Counter | None, samples: int) -> str:
    if counter is not None and counter.fell:
        return "the counter fell: the driver was loaded anew"
    if column in unavailable:
        return unavailable[column]
    return _FEW if samples else "the span holds no sample of the GPU"


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _first(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
