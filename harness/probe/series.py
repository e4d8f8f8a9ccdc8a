"""From events to points of series: names, units, steps, times and contexts as Aim is to show them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .journal import net_seconds
from .layout import JobPaths
from .reading import Event, decode_event, open_regular

BLOCK_BYTES = 1 << 18  # read of one journal in one go: a few thousand values, so that deadlines are looked at between
REMEMBERED_STEPS = 4096  # steps that wait for their tokens, and tokens that wait for their step


@dataclass(frozen=True)
class Point:
    """A value of a series; `t` is when it came about, seconds since the epoch."""

    name: str
    value: float | None  # None, only where gaps were asked for: it was no finite number
    step: int
    t: float
    context: dict[str, Any]
    epoch: float | None = None


def labels_of(launched: Mapping[str, Any], program: Mapping[str, Any]) -> dict[str, Any]:
    """A job's labels: over the defaults those that the program gives itself, over both those given at launch.

    `launched`: job.json."""
    labels = launched.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    defaults = launched.get("default_labels") or ()
    given = {key: value for key, value in labels.items() if key not in defaults}
    return {**labels, **program, **given}


class Tail:
    """Reads a growing journal by whole lines; what follows the last line's end waits for the next read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._block = BLOCK_BYTES

    def read(self) -> list[Event] | None:
        """The events of the next block; None when there is no whole line beyond the last one read."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                block = file.read(self._block)
        except OSError:
            return None
        whole = block.rfind(b"\n") + 1
        if whole == 0:
            if len(block) < self._block:
                return None
            self._block *= 2  # a line longer than the block
            return []
        self._offset += whole
        return [event for line in block[:whole].splitlines() if (event := decode_event(line)) is not None]


class Journals:
    """All journals of a job, followed while they grow; `skipped` counts values that are no finite number.

    `gaps`: such a value is a point without a value, not left out."""

    def __init__(self, job: JobPaths, *, gaps: bool = False) -> None:
        self._job, self._gaps = job, gaps
        self.labels: dict[str, Any] = {}  # that the program gave itself, as far as read
        self._system = (Tail(job.system_journal()), SystemSeries(gaps))
        self._ranks: dict[int, tuple[Tail, RankSeries]] = {}

    @property
    def skipped(self) -> int:
        return self._system[1].skipped + sum(series.skipped for _, series in self._ranks.values())

    def read(self) -> list[Point] | None:
        """The next points of all journals; None when there is nothing new in any."""
        for rank in self._job.ranks():
            if rank not in self._ranks:
                self._ranks[rank] = (Tail(self._job.events(rank)), RankSeries(rank, self._gaps))
        found: list[Point] | None = None
        for tail, series in (*self._ranks.values(), self._system):
            events = tail.read()
            if events is not None:
                found = (found or []) + [point for event in events for point in series.points(event)]
                for event in events:
                    if event["e"] == "labels" and isinstance(event.get("labels"), dict):
                        self.labels |= event["labels"]
        return found


@dataclass
class _Series:
    gaps: bool = False
    skipped: int = 0

    def points(self, event: Event) -> Iterable[Point]:
        """The points that an event adds.  An event with odd fields adds none: it is of another version."""
        try:
            return list(self._points(event))
        except (KeyError, TypeError, ValueError):
            return ()

    def _points(self, event: Event) -> Iterable[Point]:
        raise NotImplementedError

    def _made(
        self, values: dict[str, Any], step: int, t: float, context: dict[str, Any], epoch: Any = None
    ) -> Iterable[Point]:
        for name, value in values.items():
            if value is None or isinstance(value, bool):
                continue
            number = _finite(value)
            if number is None:
                self.skipped += 1
            if number is not None or self.gaps:
                yield Point(name, number, step, t, context, _finite(epoch))


@dataclass
class RankSeries(_Series):
    """The series of one rank.  A segment after the first has a context of its own: its steps may begin again at 1.

    The segments of a process that follows another as this rank are numbered on."""

    rank: int = 0
    # (segment, step) -> seconds, end, epoch
    _waiting: dict[tuple[int, int], tuple[float, float, Any]] = field(default_factory=dict)
    _early: dict[tuple[int, int], Any] = field(default_factory=dict)  # tokens that were written before their step

    def __init__(self, rank: int, gaps: bool = False) -> None:
        super().__init__(gaps)
        self.rank, self._waiting, self._early = rank, {}, {}
        self._before = 0  # segments of the processes before this one
        self._next = 0  # number of the next segment

    def _points(self, event: Event) -> Iterable[Point]:
        if event["e"] == "start":
            self._before = self._next
        elif event["e"] == "step":
            yield from self._step(event)
        elif event["e"] == "tokens":
            yield from self._tokens(event)
        elif event["e"] == "log":  # what the program itself logged: evaluations, and what it counts besides
            logs, context = dict(event["logs"]), {"rank": self.rank, "subset": "log"}
            yield from self._made(logs, int(event["step"]), float(event["t"]), context, event.get("epoch"))

    def _step(self, event: Event) -> Iterable[Point]:
        key, seconds = self._key(event), net_seconds(event)
        values = {name: event.get(name) for name in ("loss", "grad_norm", "learning_rate")}
        ended, epoch = _ended(event), event.get("epoch")
        yield from self._made(values | {"step_time_s": seconds}, key[1], ended, self._context(key), epoch)
        if key in self._early:
            yield from self._rate(key, self._early.pop(key), (seconds, ended, epoch))
        else:
            _remember(self._waiting, key, (seconds, ended, epoch))

    def _tokens(self, event: Event) -> Iterable[Point]:
        key = self._key(event)
        if key in self._waiting:
            yield from self._rate(key, event.get("non_pad"), self._waiting.pop(key))
        else:
            _remember(self._early, key, event.get("non_pad"))

    def _rate(self, key: tuple[int, int], tokens: Any, step: tuple[float, float, Any]) -> Iterable[Point]:
        seconds, ended, epoch = step
        if isinstance(tokens, int) and seconds:
            rate = {"non_pad_tokens_per_s": tokens / seconds}
            yield from self._made(rate, key[1], ended, self._context(key), epoch)

    def _key(self, event: Event) -> tuple[int, int]:
        segment = self._before + int(event.get("segment") or 0)
        self._next = max(self._next, segment + 1)
        return segment, int(event["step"])

    def _context(self, key: tuple[int, int]) -> dict[str, Any]:
        return {"rank": self.rank} | ({"segment": key[0]} if key[0] else {})


@dataclass
class _SampledGpu:
    context: dict[str, Any]
    memory_bytes: int | None = None
    samples: int = 0


@dataclass
class SystemSeries(_Series):
    """The sampler's figures under the names that Aim gives its own, so that its UI shows them as system metrics.

    Unlike Aim's they are of all processes of the job: `cpu` may be above 100 (percent of one core)."""

    _samples: int = 0
    _before: tuple[float, float] | None = None  # (m, cpu_s) of the sample before
    _gpus: dict[str, "_SampledGpu"] = field(default_factory=dict)  # by UUID

    def _points(self, event: Event) -> Iterable[Point]:
        if event["e"] == "gpu":
            number = len(self._gpus) if event.get("index") is None else int(event["index"])
            known = self._gpus.setdefault(event["uuid"], _SampledGpu({"gpu": number}))
            if event["uuid"].startswith("MIG-"):  # several may share an index
                known.context["mig"] = event["uuid"]
            known.memory_bytes = event.get("memory_total_bytes")
        elif event["e"] == "gpu_sample":
            yield from self._gpu(event)
        if event["e"] != "sample":
            return
        tree, host = event["tree"], event["host"]
        total, m, cpu_s = host["memory_total_bytes"], float(event["m"]), tree["cpu_s"]
        values = {
            "__system__cpu": self._cpu_percent(m, cpu_s),
            "__system__p_memory_percent": _percent(tree.get("rss_bytes"), total),
            "__system__memory_percent": _percent(total - host["memory_available_bytes"], total),
        }
        yield from self._made(values, self._samples, float(event["t"]), {})
        self._samples += 1

    def _gpu(self, event: Event) -> Iterable[Point]:
        gpu = self._gpus[event["uuid"]]
        values = {
            "__system__gpu": event.get("utilization_percent"),
            "__system__gpu_memory_percent": _percent(event.get("memory_used_bytes"), gpu.memory_bytes),
            "__system__gpu_power_watts": event.get("power_w"),
            "__system__gpu_temp": event.get("temperature_c"),
        }
        yield from self._made(values, gpu.samples, float(event["t"]), gpu.context)
        gpu.samples += 1

    def _cpu_percent(self, m: float, cpu_s: float) -> float | None:
        before, self._before = self._before, (m, cpu_s)
        if before is None or m <= before[0]:
            return None
        return 100 * (cpu_s - before[1]) / (m - before[0])


def _ended(step: Event) -> float:
    """When a step ended, wall clock: on a GPU its line is written later, and tells when on the monotonic clock."""
    t, m, ended_m = step["t"], step.get("m"), step.get("ended_m")
    if isinstance(m, (int, float)) and isinstance(ended_m, (int, float)):
        return float(t) - max(0.0, m - ended_m)
    return float(t)


def _remember(place: dict[tuple[int, int], Any], key: tuple[int, int], value: Any) -> None:
    place[key] = value
    if len(place) > REMEMBERED_STEPS:
        del place[next(iter(place))]


def _percent(part: Any, whole: Any) -> float | None:
    return 100 * part / whole if isinstance(part, (int, float)) and whole else None


def _finite(value: Any) -> float | None:
    """None for anything else, the strings NaN, Infinity and -Infinity of a journal among it."""
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
