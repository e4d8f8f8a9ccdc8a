"""The record: the JSON result of a case, its schema, and reading and writing it.

Units stand in the names: `_s` seconds, `_bytes` bytes, `_per_s` per second.  A figure that is not known is null, never
0, and `Measurements.reasons` says why."""

import json
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1


class Kind(StrEnum):
    """How a job ended.  `none` is success; a case that was never launched has no verdict (`not_run` in reports)."""

    NONE = "none"
    USER_ERROR = "user_error"
    NO_TRAINING = "no_training"
    NAN_LOSS = "nan_loss"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    NCCL = "nccl"
    RENDEZVOUS = "rendezvous"
    CUDA_ERROR = "cuda_error"
    DISK_FULL = "disk_full"
    NETWORK = "network"
    TIMEOUT = "timeout"
    KILLED = "killed"
    CRASH = "crash"
    UNKNOWN = "unknown"


class Frozen(BaseModel):
    """A part of the record: cannot change, and knows its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(Frozen):
    """One fact a verdict rests on: where it was read, and what it says."""

    file: str  # relative to the job directory
    line: int | None = None  # from 1; None for a file that is one JSON document
    text: str


class Secondary(Evidence):
    """A failure that another one explains."""

    kind: Kind
    rank: int | None = None


class Verdict(Frozen):
    """How a job ended, and what that rests on."""

    kind: Kind
    reason: str  # one line, with the figures that matter
    transient: bool | None = None  # worth a retry; None: the evidence does not tell
    rank: int | None = None  # where the first cause was seen
    step: int | None = None
    phase: str | None = None
    part: str | None = None  # of a step: data, forward, backward, optimizer, save, eval
    evidence: list[Evidence] = []
    secondary: list[Secondary] = []  # what was set aside, the likeliest cause first
    hint: str | None = None  # what the figures show; None: they do not decide


class Lease(Frozen):
    """What an attempt held while its job ran."""

    gpus: list[str] = []  # UUIDs
    gpu_names: list[str] = []
    cpus: list[int] = []  # slot numbers, not core numbers
    wait_s: float


class Attempt(Frozen):
    """One launch of the case."""

    number: int
    directory: str  # relative to the record's folder
    started: float  # seconds since the epoch
    ended: float | None = None
    lease: Lease
    probe_sha256: str | None = None  # of the probe that ran, which lies in the attempt's folder
    end: dict[str, Any] | None = None  # end.json as the supervisor wrote it; None: it never did
    verdict: Verdict | None = None


class Segment(Frozen):
    """A stretch of training in the process: a call of train(), or a restart within one."""

    segment: int
    restart: bool = False  # train() began again by itself, with a smaller batch
    steps: int
    batch_asked: int | None
    batch_ran: int | None
    accumulation: int | None


class Measurements(Frozen):
    """What was measured: over the steps of the last segment after its first `first_cut`, unless a field says else."""

    ranks: int
    device: Literal["cuda", "cpu"] | None
    steps_seen: int  # all segments, rank 0
    first_cut: int  # steps left out at the start of the segment
    steps_measured: int
    window_s: float | None  # the longest rank's, log/save/eval time taken out
    step_time_median_s: float | None
    step_time_mean_s: float | None
    step_time_stdev_s: float | None
    step_time_min_s: float | None
    step_time_max_s: float | None
    samples_per_s: float | None
    padded_tokens_per_s: float | None
    non_pad_tokens_per_s: float | None
    trainable_tokens_per_s: float | None
    non_pad_tokens_per_s_per_device: float | None  # the headline; a device is a GPU, or a process on CPU
    loss_first: float | None
    loss_last: float | None
    grad_norm_last: float | None
    peak_allocated_bytes: int | None  # allocator, largest rank, whole job
    peak_reserved_bytes: int | None
    host_peak_rss_bytes: int | None  # sum over the job's process tree; shared pages count once a process
    host_peak_pss_bytes: int | None  # the same, shared pages shared out
    phases_s: dict[str, float]  # rank 0, wall time by phase
    parameters: int | None
    trainable_parameters: int | None
    tokens: dict[str, int | None]  # padded, non_pad, trainable, samples: all ranks, all steps of the last segment
    segments: list[Segment]
    reasons: dict[str, str]  # field -> why it is null


class Record(Frozen):
    """A case's result."""

    schema_version: int = SCHEMA
    case_id: str
    nodeid: str | None = None
    session: str
    state: Literal["running", "finished"]
    scenario: dict[str, Any]  # resolved
    source: str  # file:line of the scenario
    labels: dict[str, str]
    command: list[str]
    environment: dict[str, Any]
    attempts: list[Attempt] = []
    expected: Kind | None = None  # what the scenario expects on the GPUs of the last attempt; None: nothing special
    verdict: Verdict | None = None  # the last attempt's; None while running
    measurements: Measurements | None = None
    aim: dict[str, Any] | None = None  # what reached Aim, as the forwarder says; None: nothing was to
    artifacts: dict[str, str] = Field(default_factory=dict)  # name -> path relative to the record's folder
    tail: str = ""  # end of the log of the rank the verdict names, secrets redacted


def write_record(record: Record, path: Path) -> None:
    """Replace the record atomically: a reader sees the old one or the new one, whole."""
    write_json(record.model_dump(mode="json"), path)


def read_record(path: Path) -> Record:
    """Raises OSError, or pydantic.ValidationError when the file is no record of this schema."""
    return Record.model_validate_json(path.read_bytes())


def write_json(document: Any, path: Path) -> None:
    """Write JSON to a temporary file beside `path` and rename it over: mode 0600, fsynced."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
