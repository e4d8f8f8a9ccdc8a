"""Reads a sampler's journal, event by event."""

from collections.abc import Iterable, Mapping, Sequence

from harness.telemetry.gauges import Gauge
from harness.telemetry.gpu import GpuReading
from harness.telemetry.host import HostSpanReading
from harness.telemetry.job import of_span
from harness.telemetry.values import Event, Span, Telemetry

GAP_INTERVALS = 3.0  # between two samples that are further apart nothing is known


def summarise(
    events: Iterable[Event], window: Span | None = None, *, window_tokens: int | None = None, tokens: int | None = None
) -> Telemetry:
    """The figures of a job.  `events`: its system.jsonl in order, read once.

    `window`: first and last moment of the measured steps.  The rest is as in Reading.told."""
    reading = Reading(window)
    for event in events:
        reading.take(event)
    return reading.told(window_tokens=window_tokens, tokens=tokens)


class Reading:
    """What has been read of a journal so far; `window`: first and last moment of the measured steps."""

    def __init__(self, window: Span | None = None) -> None:
        self._window = window
        self._start: Event = {}
        self._gap_s = GAP_INTERVALS
        self._gpus: dict[str, GpuReading] = {}
        self._host: list[HostSpanReading | None] = []
        self._last_m = 0.0
        self._gaps, self._silent_s = 0, 0.0
        self._busy = Gauge((float("-inf"), float("inf")), float("inf"))

    def take(self, event: Event) -> None:
        """The next event; an odd one, of another version, is left out."""
        try:
            self._take(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _take(self, event: Event) -> None:
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
                    gpu.note_xid(int(event["xid"]))
        elif kind == "start":
            self._gap_s = GAP_INTERVALS * max(0.1, float(event["interval_s"]))
            self._start = event
            for span in self._host:
                if span is not None:
                    span.restart()
        elif kind == "gap":
            self._silent_s += float(event["seconds"])
            self._gaps += 1

    def _gpu(self, uuid: str) -> GpuReading:
        return self._gpus.setdefault(uuid, GpuReading(uuid))

    def _sample(self, event: Event) -> None:
        m = float(event["m"])
        if not self._host:
            job = HostSpanReading((m, float("inf")), self._gap_s)
            self._host = [job, HostSpanReading(self._window, self._gap_s) if self._window else None]
        for span in self._host:
            if span is not None:
                span.take(event)
        self._last_m = m
        self._busy.take(m, (event.get("sampler") or {}).get("busy_fraction"))

    def told(
        self,
        *,
        window_tokens: int | None = None,
        tokens: int | None = None,
        ranks: Mapping[str, Sequence[int]] | None = None,
    ) -> Telemetry:
        """The figures.  `window_tokens`: the non-pad tokens of the measured steps, all ranks; `tokens`: those of the
        whole job; `ranks`: which trained on a GPU, by the UUID that torch told."""
        reasons = {str(k): str(v) for k, v in (self._start.get("reasons") or {}).items()}
        gpus = tuple(gpu.told(self._ranks_on(gpu, ranks or {})) for gpu in self._gpus.values())
        job, window = self._host or [None, None]
        if job is not None:
            job.span = (job.span[0], self._last_m)
        told = [gpu.contended for gpu in gpus]
        in_window = of_span(window.told(reasons) if window else None, [(g, g.window) for g in gpus], window_tokens)
        return Telemetry(
            interval_s=self._start.get("interval_s"),
            cgroup_version=self._start.get("cgroup_version"),
            memory_limit_bytes=self._start.get("memory_limit_bytes"),
            cpu_limit=self._start.get("cpu_limit"),
            gpus=gpus,
            job=of_span(job.told(reasons) if job else None, [(gpu, gpu.job) for gpu in gpus], tokens),
            window=in_window if self._window else None,
            contended=True if True in told else None if None in told or not told else False,
            gaps=self._gaps,
            gap_s=self._silent_s,
            sampler_busy_mean=self._busy.mean,
            sampler_busy_peak=self._busy.peak,
            reasons=reasons,
        )

    def _ranks_on(self, gpu: GpuReading, ranks: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """By its own UUID, else by the whole GPU's, where the job has no other device of that GPU."""
        by_uuid = {_bare(uuid): numbers for uuid, numbers in ranks.items()}
        whole = gpu.facts.get("whole_uuid")
        alone = sum(other.facts.get("whole_uuid") == whole for other in self._gpus.values()) == 1
        names = [gpu.uuid, *([whole] if whole is not None and alone else [])]
        return next((tuple(sorted(by_uuid[_bare(name)])) for name in names if _bare(name) in by_uuid), ())


def _bare(uuid: str) -> str:
    """Without what it is of: torch tells UUIDs without it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")
