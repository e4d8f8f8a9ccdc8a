"""What JUnit says of a case besides its outcome: the properties, as (name, text) pairs.

They are on every case of a harness session: `verdict`, `verdict_reason`, then, where there is a record, its path, the
verdict that was expected, the attempts if there were several, the labels as `label.KEY`, and the headline figures that
are known."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.record import Record

Property = tuple[str, str]

NOT_RUN = "not_run"  # the verdict of a case that was never launched
FIGURES = (
    "non_pad_tokens_per_s_per_device",
    "samples_per_s",
    "step_time_median_s",
    "step_time_median_low_s",
    "step_time_median_high_s",
    "steps_measured",
    "steady_state",
    "mfu",
    "hfu",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "host_peak_rss_bytes",
    "loss_last",
)
# What XML 1.0 does not allow, and what moves the cursor of a terminal; tab and newline stay.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
ESCAPE = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")


def printable(text: str) -> str:
    """The text without colours and control characters, so that it fits XML and does no harm in a terminal."""
    return UNPRINTABLE.sub("", ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def of_record(record: "Record", path: str) -> list[Property]:
    """Properties of a case that was launched; `path` is where its record lies, from the folder of all sessions."""
    verdict = record.verdict
    rows = [
        ("verdict", str(verdict.kind) if verdict else "unknown"),
        ("verdict_reason", verdict.reason if verdict else "the record holds no verdict"),
        ("case", record.case_id),
        ("record", path),
    ]
    if record.expected is not None:
        rows.append(("expected", str(record.expected)))
    if len(record.attempts) > 1:
        rows += [("attempts", str(len(record.attempts))), ("retried", _earlier(record))]
    return [*_printable(rows), *figures(record), *conditions(record), *labels_of(record.labels)]


def _earlier(record: "Record") -> str:
    """How the attempts before the last one ended."""
    ends = [(attempt.number, attempt.verdict) for attempt in record.attempts[:-1]]
    return "; ".join(
        f"attempt {number}: {f'{verdict.kind}: {verdict.reason}' if verdict else 'cut off'}" for number, verdict in ends
    )


def not_run(reason: str, labels: Mapping[str, str]) -> list[Property]:
    """Properties of a case that was never launched."""
    return [*_printable([("verdict", NOT_RUN), ("verdict_reason", reason)]), *labels_of(labels)]


def figures(record: "Record") -> list[Property]:
    """The headline figures that are known, units in their names; `flags` names what a reader must know of them."""
    measured = record.measurements
    if measured is None:
        return []
    values = {name: getattr(measured, name) for name in FIGURES}
    known = [(name, _text(value)) for name, value in values.items() if value is not None]
    return [*known, *([("flags", ", ".join(sorted(measured.flags)))] if measured.flags else [])]


def conditions(record: "Record") -> list[Property]:
    """What is known of its GPUs: who else computed there, what held them down, how they began; energy of a token."""
    telemetry = record.telemetry
    if telemetry is None or not telemetry.gpus:
        return []
    span = telemetry.window or telemetry.job
    pids = sorted({pid for gpu in telemetry.gpus for pid in gpu.foreign_pids})
    degrees = [gpu.start_temperature_c for gpu in telemetry.gpus if gpu.start_temperature_c is not None]
    clocks = [gpu.start_sm_clock_mhz for gpu in telemetry.gpus if gpu.start_sm_clock_mhz is not None]
    share, joules = span.gpus.throttled_share if span.gpus else None, span.joules_per_million_tokens
    rows = {
        "contended": None if telemetry.contended is None else str(telemetry.contended).lower(),
        "foreign_pids": ", ".join(map(str, pids)) or None,
        "throttled_share": None if share is None else f"{share:.6g}",
        "gpu_start_temperature_c": f"{max(degrees):g}" if degrees else None,
        "gpu_start_sm_clock_mhz": f"{min(clocks):g}" if clocks else None,
        "joules_per_million_tokens": None if joules is None else f"{joules:.6g}",
    }
    return [(name, text) for name, text in rows.items() if text is not None]


def labels_of(labels: Mapping[str, str]) -> list[Property]:
    return _printable((f"label.{key}", value) for key, value in sorted(labels.items()))


def _text(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _printable(rows: Iterable[Property]) -> list[Property]:
    return [(name, printable(value)) for name, value in rows]
