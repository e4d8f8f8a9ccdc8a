"""The record: the JSON result of a case, its schema, and reading and writing it.

Units stand in the names: `_s` seconds, `_bytes` bytes, `_per_s` per second.  A figure that is not known is null, never
0, and `Measurements.reasons` says why."""

import contextlib
import json
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.telemetry import Telemetry

SCHEMA = 2  # 1: before steady state, FLOPs, memory by rank, flags; still read


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


class Asset(Frozen):
    """A model or data that was given to the program as a path."""

    path: str
    source: Literal["made", "local", "hub"]
    sha256: str | None  # made: of all that it follows from; a local file: of its contents; else null
    revision: str | None = None  # hub: the commit


class Attempt(Frozen):
    """One launch of the case."""

    number: int
    directory: str  # relative to the record's folder
    started: float  # seconds since the epoch
    ended: float | None = None
    lease: Lease
    assets_s: float | None = None  # making or fetching model and data, before the lease; None: nothing was to
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


class RankMemory(Frozen):
    """What torch's allocator told of one rank, in bytes; null on CPU."""

    rank: int
    total_bytes: int | None  # memory of the device
    allocated_peak_bytes: dict[str, int]  # by phase
    active_peak_bytes: dict[str, int]
    reserved_peak_bytes: dict[str, int]
    covers: Literal["phase", "process"] | None  # what a phase's peaks cover: it alone, or all before it too
    alloc_retries: int | None  # whole job
    ooms: int | None
    reason: str | None  # why there are no figures


class Built(Frozen):
    """The model that was really built, as it told itself; null: its config does not say, or it has no such part."""

    type: str | None
    dtype: str | None  # of the first parameter
    compute_dtype: str | None  # that matrices are multiplied in
    attention: str | None  # implementation in effect
    checkpointing: str | None  # of activations: reentrant, non_reentrant
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    intermediate: int | None
    vocab: int | None
    experts: int | None
    experts_per_token: int | None
    tied: bool | None  # the output head is the embedding
    device_name: str | None
    torch: str | None
    transformers: str | None


class Reported(Frozen):
    """A figure of the program's own beside ours."""

    name: str  # as the program logged it
    value: float
    ours: float | None
    ratio: float | None  # its figure over ours
    why: str  # what makes the two differ


State = Literal["steady", "drifting", "bimodal", "unsettled", "too_few_steps"]


class Measurements(Frozen):
    """What was measured.  docs/metrics.md says of each figure its unit, scope, formula, source and what null means.

    Over the measured steps, unless said otherwise: those of the last segment that all ranks have, after the first
    `first_cut`, without those left out for logging, saving or evaluating.  Fields with a default came with schema 2."""

    ranks: int
    device: Literal["cuda", "cpu"] | None
    steps_seen: int
    first_cut: int
    steps_measured: int
    steps_left_out: int | None = None
    left_out_for: list[str] = []
    steady_state: State | None = None
    window_s: float | None
    step_time_median_s: float | None
    step_time_median_low_s: float | None = None
    step_time_median_high_s: float | None = None
    step_time_mad_s: float | None = None
    step_time_mean_s: float | None
    step_time_stdev_s: float | None
    step_time_min_s: float | None
    step_time_p5_s: float | None = None
    step_time_p95_s: float | None = None
    step_time_max_s: float | None
    stragglers: int | None = None
    straggler_bound_s: float | None = None
    slowest_rank: int | None = None
    rank_step_time_median_s: dict[int, float] = {}
    stopped_by: Literal["interval", "max_time", "max_steps"] | None = None
    stop_interval: float | None = None
    data_wait_s: float | None = None
    forward_backward_s: float | None = None
    optimizer_s: float | None = None
    step_rest_s: float | None = None
    step_shares: dict[str, float] = {}
    rank_data_wait_s: dict[int, float] = {}
    log_save_eval_s: float | None = None
    data_ranks: int | None = None
    samples_per_s: float | None
    padded_tokens_per_s: float | None
    non_pad_tokens_per_s: float | None
    trainable_tokens_per_s: float | None
    samples_per_s_per_device: float | None = None
    padded_tokens_per_s_per_device: float | None = None
    non_pad_tokens_per_s_per_device: float | None
    trainable_tokens_per_s_per_device: float | None = None
    model_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    model_flops_per_s_per_device: float | None = None
    hardware_flops_per_s_per_device: float | None = None
    peak_flops_per_s: float | None = None
    peak_source: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    loss_first: float | None
    loss_last: float | None
    grad_norm_last: float | None
    learning_rate_sum: float | None = None
    trainable_tensors: int | None = None
    changed_tensors: int | None = None
    ranks_agree: bool | None = None
    peak_allocated_bytes: int | None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None
    largest_memory_rank: int | None = None
    alloc_retries: int | None = None
    allocator_ooms: int | None = None
    memory: list[RankMemory] = []
    host_peak_rss_bytes: int | None
    host_peak_pss_bytes: int | None
    wall_s: float | None = None
    phases_s: dict[str, float | None]
    compile_s: float | None = None
    compilations: int | None = None
    recompiles: int | None = None
    graph_breaks: int | None = None
    compile_cache: Literal["cold", "warm", "mixed"] | None = None
    parameters: int | None
    trainable_parameters: int | None
    built: Built | None = None
    tokens: dict[str, int | None]
    segments: list[Segment]
    reported: list[Reported] = []
    flags: dict[str, str] = {}
    series: list[str] = []
    reasons: dict[str, str]


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
    telemetry: Telemetry | None = None  # what the sampler saw of GPUs, host and container; None before schema_version 2
    assets: dict[str, Asset] = {}  # model and data of the last attempt that lie on disk, where the program reads such
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
        with contextlib.suppress(FileNotFoundError):  # Ctrl-C just after it was renamed
            os.unlink(name)
        raise
