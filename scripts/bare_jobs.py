"""Jobs of the built-in trainer where nothing but torch, transformers and peft is installed: supervisor, sampler and
probe are the harness's own and need the standard library alone; scenarios, records and verdicts do not, and are left
out.  For `gpu_check.py`, which runs cases through pytest where it can."""

import json
import os
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import supervise
from harness.journal import read_document, read_events, read_rank
from harness.probe.journal import net_seconds
from harness.probe.layout import JobPaths
from harness.probe.staging import BUILT_IN, stage, start_command
from harness.sampling import sampler
from harness.telemetry import summarise

ROOT = Path(__file__).resolve().parents[1]
DATA = {"samples": 4096, "sequence_length": 2048, "lengths": "fixed", "packing": "padded", "workers": 0, "seed": 1}
FULL = {"kind": "full"}
LORA = {"kind": "lora", "rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": "all-linear"}
_CUT = 3  # steps at the start that are no measure of the rest
_GRACE_S = 60.0  # beyond the time limit: the supervisor ends the job by itself


def model(name: str, dtype: str = "bfloat16", attention: str | None = None) -> dict[str, Any]:
    """A model of the catalogue as a job's scenario holds it."""
    # By path: the package around the catalogue needs more than the standard library.
    models = runpy.run_path(str(ROOT / "harness" / "scenario" / "catalogue.py"))["MODELS"]
    return {"name": name, "shape": dict(models[name].shape), "path": None, "dtype": dtype, "attention": attention}


def run(folder: Path, scenario: Mapping[str, Any], *, limit_s: float, gpus: list[str], interval_s: float = 1.0) -> Any:
    """Run one job to its end, and say what it left: figures of steps and memory, errors, the GPU's own figures.

    `gpus`: UUIDs; empty where the driver cannot be asked: the job then has what CUDA_VISIBLE_DEVICES leaves."""
    job = JobPaths(folder)
    for made in (job.root, job.node(), job.outputs):
        made.mkdir(parents=True, exist_ok=True)
    stage(job)
    document = {
        "schema": 1,
        "job_id": f"bare-{os.getpid()}-{folder.name}",
        "scenario": dict(scenario),
        "cwd": str(job.outputs),
        "world_size": 1,
        "time_limit_s": limit_s,
        "grace_s": 5.0,
        "sampler": sampler.command(job.system_journal(), interval_s, gpus),
        "files": {
            "supervisor_journal": str(job.supervisor_journal()),
            "launcher_log": str(job.launcher_log()),
            "end": str(job.end),
        },
    }
    job.job.write_text(json.dumps(document))
    command = [sys.executable, "-u", *start_command(job, BUILT_IN, module=True)]
    environ = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
    argv = [sys.executable, "-I", "-S", supervise.__file__, str(job.job), "--", *command]
    begun = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=environ) as supervisor:  # it ends when the pipe does
        try:
            code = supervisor.wait(limit_s + _GRACE_S)
        finally:
            if supervisor.stdin is not None:
                supervisor.stdin.close()
    return {"exit_code": code, "seconds": time.monotonic() - begun, **_left(job)}


def _left(job: JobPaths) -> dict[str, Any]:
    rank = read_rank(job, 0)
    steps = rank.of("step")
    times = [net_seconds(step) for step in steps[_CUT:]]
    error = rank.error or {}
    tokens = {event["step"]: event["non_pad"] for event in rank.of("tokens")}
    counted = [tokens.get(step["step"]) for step in steps[_CUT:]]
    known = [count for count in counted if count is not None]
    memory = [event for event in rank.of("memory") if event.get("allocated_peak_bytes") is not None]
    window = (steps[_CUT]["ended_m"] - steps[_CUT]["seconds"], steps[-1]["ended_m"]) if len(steps) > _CUT else None
    gpus = summarise((event for _, event in read_events(job.system_journal())), window).gpus
    span = (gpus[0].window or gpus[0].job) if gpus else None
    return {
        "steps": len(steps),
        "step_time_median_s": statistics.median(times) if times else None,
        "non_pad_tokens_per_s": sum(known) / sum(times) if times and len(known) == len(times) else None,
        "loss_first": steps[0].get("loss") if steps else None,
        "loss_last": steps[-1].get("loss") if steps else None,
        "peak_allocated_bytes": max((event["allocated_peak_bytes"] for event in memory), default=None),
        "peak_reserved_bytes": max((event.get("reserved_peak_bytes") or 0 for event in memory), default=None),
        "allocator_when_it_ran_out": read_memory(job),
        "exception": {name: error.get(name) for name in ("type", "message", "step", "phase")} if error else None,
        "nvml_used_peak_bytes": span.memory_used_peak_bytes if span else None,
        "utilization_mean_percent": span.utilization_mean_percent if span else None,
        "tensor_active_mean_percent": span.tensor_active_mean_percent if span else None,
        "power_mean_w": span.power_mean_w if span else None,
        "energy_j": span.energy.joules if span else None,
    }


def read_memory(job: JobPaths) -> dict[str, Any] | None:
    """What the allocator held when the GPU's memory ran out, without its long table; None: it did not."""
    document = read_document(job.memory(0))
    return None if document is None else {key: value for key, value in document.items() if key != "summary"}


def jobs() -> dict[str, dict[str, Any]]:
    """LoRA of a 7B model, a small full fine-tuning, and what no GPU holds: 10.5 GiB of activations a row."""
    common = {"bf16": True, "optim": "adamw_torch_fused", "logging_steps": 5}
    lora = {"model": model("llama-7b", attention="sdpa"), "method": LORA, "data": DATA, "gpus": 1}
    trained = {"per_device_train_batch_size": 4, "max_steps": 25, "learning_rate": 2e-4, "gradient_checkpointing": True}
    small = {"per_device_train_batch_size": 8, "max_steps": 50, "learning_rate": 1e-3}
    too_large = {"per_device_train_batch_size": 512, "max_steps": 2, "learning_rate": 2e-4}
    return {
        "llama7b": lora | {"training": common | trained},
        "small": {"model": model("tiny-llama"), "method": FULL, "data": DATA, "gpus": 1, "training": common | small},
        "too-large": lora | {"training": common | too_large},
    }
