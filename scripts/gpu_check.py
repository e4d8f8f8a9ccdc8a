"""What only a GPU can show: the driver's answers and their cost, clocks, memory, energy, and real jobs, in minutes.

    python scripts/gpu_check.py [--out FOLDER] [--seconds 12] [--no-jobs]

Needs the repository and an environment with torch, transformers and peft; nothing is installed.  A part that cannot be
done says why and the others go on: without nvidia-ml-py nothing is asked of the driver, without pytest and the rest of
what the harness needs the jobs are run without verdicts, without a GPU only the machine is described.  Writes
gpu_check.json and gpu_check.md to FOLDER and prints the latter.  The exit code is 1 when a part failed, 0 when some
were skipped."""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import bare_jobs  # noqa: E402

from harness.sampling import sampler  # noqa: E402
from harness.telemetry import summarise  # noqa: E402

# LoRA of a 7B model, a small full fine-tuning, and what no GPU holds: 10.5 GiB of activations a row of 2,048 tokens.
SCENARIOS = """
defaults:
  data: {samples: 4096, sequence_length: 2048, lengths: fixed, seed: 1}
  training: {bf16: true, optim: adamw_torch_fused, logging_steps: 5}
  gpus: 1
scenarios:
  - name: llama7b
    model: {name: llama-7b, dtype: bfloat16, attention: sdpa}
    method: lora
    training: {per_device_train_batch_size: 4, max_steps: 25, learning_rate: 2e-4, gradient_checkpointing: true}
  - name: small
    model: {name: tiny-llama, dtype: bfloat16}
    method: full
    training: {per_device_train_batch_size: 8, max_steps: 50, learning_rate: 1e-3}
  - name: too-large
    model: {name: llama-7b, dtype: bfloat16, attention: sdpa}
    method: lora
    expect: {kind: gpu_oom}
    training: {per_device_train_batch_size: 512, max_steps: 2, learning_rate: 2e-4}
"""
JOBS_S = 240.0
JOB_S = 120.0
GPM_PAUSE_S = 0.06  # a pair of samples that are closer is not asked for

# Matrix products for SECONDS in bf16, timed three ways; prints JSON.  A process of its own: its memory goes with it.
LOAD = """
import json, sys, time, torch
seconds = float(sys.argv[1])
device = torch.device("cuda:0")
torch.empty(1, device=device)
context_free, total = torch.cuda.mem_get_info()
a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
for _ in range(5):
    c = a @ b
torch.cuda.synchronize()
started = time.monotonic()
marks, hosts = [torch.cuda.Event(enable_timing=True)], [time.perf_counter()]
marks[0].record()
while time.monotonic() < started + seconds:
    for _ in range(10):
        c = a @ b
    marks.append(torch.cuda.Event(enable_timing=True))
    marks[-1].record()
    marks[-1].synchronize()
    hosts.append(time.perf_counter())
ended = time.monotonic()
events = [early.elapsed_time(late) / 1e3 for early, late in zip(marks, marks[1:])]
walls = [late - early for early, late in zip(hosts, hosts[1:])]
begun = time.perf_counter()
for _ in range(1000):
    torch.cuda.Event(enable_timing=True).record()
record_us = (time.perf_counter() - begun) * 1e3
print(json.dumps({
    "window_m": [started, ended],
    "rounds": len(events),
    "event_s": sum(events),
    "host_s": sum(walls),
    "event_median_s": sorted(events)[len(events) // 2],
    "host_median_s": sorted(walls)[len(walls) // 2],
    "event_record_us": record_us,
    "flops_per_s": len(events) * 10 * 2 * 8192**3 / sum(events),
    "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
    "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
    "device_used_bytes": total - torch.cuda.mem_get_info()[0],
    "context_bytes": total - context_free,
    "uuid": str(torch.cuda.get_device_properties(0).uuid),
}))
"""

# Asks for more than there is; prints what torch says.
EXHAUST = """
import json, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free * 0.5), dtype=torch.uint8, device="cuda:0")
try:
    more = torch.empty(int(free * 0.8), dtype=torch.uint8, device="cuda:0")
    print(json.dumps({"message": None}))
except torch.OutOfMemoryError as error:
    stats = torch.cuda.memory_stats()
    names = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "num_ooms", "num_alloc_retries")
    told = {name: stats.get(name) for name in names}
    print(json.dumps({"message": str(error), "stats": told, "total_bytes": total}))
"""


class Skipped(Exception):
    """A part cannot be done here; the text says why."""


def machine() -> dict[str, Any]:
    """The doctor's facts, and torch's."""
    from dataclasses import asdict

    from harness.doctor import read

    told = asdict(read(os.environ, ROOT / "results"))
    code = "import json, torch; found = torch.cuda.is_available(); print(json.dumps([torch.__version__, found, "
    code += "torch.cuda.get_device_name(0) if found else None]))"
    version, available, name = json.loads(asked([sys.executable, "-c", code]).splitlines()[-1])
    return {"torch": version, "cuda_available": available, "gpu": name, "doctor": told}


def calls() -> dict[str, Any]:
    """Cost of every reading of a poll in microseconds, and what the driver refuses."""
    from harness.sampling.nvml import Nvml
    from harness.sampling.nvml_calls import CALLS
    from harness.sampling.nvml_gpm import gpm

    reader = Nvml(None, os.environ)
    begun = time.perf_counter()
    units = [unit for unit in reader.open() if unit.reason is None]
    opened = time.perf_counter() - begun
    if not units:
        raise Skipped("NVML shows no GPU: no driver, or no nvidia-ml-py in this interpreter")
    unit = units[0]
    first = reader.poll(unit)
    costs: dict[str, Any] = {}
    for ask, columns in CALLS:
        if all(column in unit.unavailable for column in columns):
            continue
        name, took = ask.__name__.strip("_"), []
        try:
            for _ in range(50):
                time.sleep(GPM_PAUSE_S if ask is gpm else 0.0)
                begun = time.perf_counter()
                ask(reader.binding, unit)
                took.append((time.perf_counter() - begun) * 1e6)
        except reader.binding.NVMLError as error:
            costs[name] = str(error)
        else:
            costs[name] = {"median_us": statistics.median(took), "most_us": max(took)}
    return {"open_s": opened, "facts": unit.facts, "refused": unit.unavailable, "first": first, "cost": costs}


def load(seconds: float, folder: Path) -> dict[str, Any]:
    """Matrix products: clocks of GPU and host, memory by torch; under the sampler also energy and memory by NVML."""
    has_cuda()
    try:
        uuids = visible()
    except Skipped as error:
        return product(seconds, None) | {"nvml": str(error)}
    journal = folder / "system.jsonl"
    command = [*sampler.command(journal, 1.0, uuids[:1]), "--root-pid", str(os.getpid())]
    with subprocess.Popen(command) as beside:
        try:
            time.sleep(2.0)
            told = product(seconds, uuids[0])
            time.sleep(2.0)
        finally:
            beside.send_signal(signal.SIGTERM)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    figures = summarise(events, (told["window_m"][0], told["window_m"][1]))
    [gpu] = figures.gpus
    if gpu.window is None:
        return told | {"nvml": gpu.reason}
    rings = [event["power_buffer"] for event in events if event.get("power_buffer")]
    ring_s = sum(ring["to_m"] - ring["from_m"] for ring in rings)
    owners = [own for event in events for _, _, own in event.get("processes") or ()]
    return told | {
        "energy_counter_j": gpu.window.energy.counter_j,
        "energy_integrated_j": gpu.window.energy.integrated_j,
        "energy_disagreement": gpu.window.energy.disagreement,
        "energy_flags": gpu.window.energy.flags,
        "power_mean_w": gpu.window.power_mean_w,
        "power_peak_w": gpu.window.power_peak_w,
        "utilization_mean_percent": gpu.window.utilization_mean_percent,
        "sm_active_mean_percent": gpu.window.sm_active_mean_percent,
        "sm_occupancy_mean_percent": gpu.window.sm_occupancy_mean_percent,
        "tensor_active_mean_percent": gpu.window.tensor_active_mean_percent,
        "memory_bandwidth_mean_percent": gpu.window.memory_bandwidth_mean_percent,
        "nvml_used_peak_bytes": gpu.window.memory_used_peak_bytes,
        "throttled_share": gpu.window.throttled_share,
        "throttled_power_s": gpu.window.throttled_power_s,
        "ring_readings_per_s": sum(ring["n"] - 1 for ring in rings) / ring_s if ring_s else None,
        "own_process_recognised": True in owners,
        "owners": sorted({str(own) for own in owners}),
        "sampler_busy_mean": figures.sampler_busy_mean,
        "unavailable": gpu.unavailable,
    }


def product(seconds: float, uuid: str | None) -> dict[str, Any]:
    """What LOAD tells."""
    environ = os.environ | ({"CUDA_VISIBLE_DEVICES": uuid} if uuid else {})
    told: dict[str, Any] = json.loads(asked([sys.executable, "-c", LOAD, str(seconds)], environ).splitlines()[-1])
    return told


def out_of_memory() -> dict[str, Any]:
    """A deliberate out-of-memory error: torch's text and the allocator's figures."""
    has_cuda()
    told: dict[str, Any] = json.loads(asked([sys.executable, "-c", EXHAUST]).splitlines()[-1])
    if told["message"] is None:
        raise RuntimeError("more memory than the GPU has was given: it is shared with the host, or oversubscribed")
    return told


def has_cuda() -> None:
    """Raises Skipped where torch has no GPU."""
    code = "import torch; print(torch.cuda.is_available(), torch.version.cuda)"
    available, build = asked([sys.executable, "-c", code]).split()[-2:]
    if available != "True":
        raise Skipped(f"torch sees no GPU (it is built for CUDA {build})")


def jobs(folder: Path) -> dict[str, Any]:
    """Real cases through pytest: verdicts and figures, and what the allocator held when memory ran out."""
    has_cuda()
    uuids: list[str] = []
    lacking = [name for name in ("pytest", "pydantic", "yaml", "xdist", "pytest_benchmark") if not importable(name)]
    lacking = [f"{sys.executable} has no {', '.join(lacking)}"] if lacking else []
    try:
        uuids = visible()[:1]
    except Skipped as error:  # torch has a GPU, and nobody can lease it
        lacking.append(str(error))
    if lacking:
        return {"without_verdicts": "; ".join(lacking), **jobs_without_pytest(folder, uuids)}
    (folder / "scenarios").mkdir(exist_ok=True)
    (folder / "scenarios" / "check.yaml").write_text(SCENARIOS)
    (folder / "test_check.py").write_text("def test_check(tuning):\n    tuning.check()\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    results = folder / "results" / time.strftime("%Y%m%d-%H%M%S")
    command = [sys.executable, "-m", "pytest", "-q", "test_check.py", "--results", str(results), "--no-aim"]
    command += ["--time-limit", f"{JOB_S:g}s", *([] if installed() else ["-p", "harness.plugin"])]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with (folder / "pytest.log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        # What has ended by then has its record.
        subprocess.run(command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT, timeout=JOBS_S)
    records = {}
    for path in sorted(results.glob("2*/*/record.json")):
        record = json.loads(path.read_text())
        figures = {key: value for key, value in (record["measurements"] or {}).items() if value not in (None, {}, [])}
        memory = [json.loads(found.read_text()) for found in path.parent.glob("attempt-*/rank-0/memory.json")]
        for document in memory:
            document.pop("summary", None)
        telemetry = record["telemetry"] or {}
        records[record["case_id"]] = {
            "verdict": record["verdict"],
            "measurements": figures,
            "gpus": telemetry.get("gpus"),
            "energy": (telemetry.get("window") or telemetry.get("job") or {}).get("energy"),
            "memory": memory,
        }
    if not records:
        raise RuntimeError(f"no case left a record; {folder}/pytest.log says why")
    return records


def jobs_without_pytest(folder: Path, uuids: list[str]) -> dict[str, Any]:
    """The same three jobs by the supervisor alone."""
    return {
        name: bare_jobs.run(folder / "jobs" / time.strftime(f"%Y%m%d-%H%M%S-{name}"), job, limit_s=JOB_S, gpus=uuids)
        for name, job in bare_jobs.jobs().items()
    }


def installed() -> bool:
    """Whether pytest loads the plugin by itself."""
    from importlib.metadata import entry_points

    return any(point.value == "harness.plugin" for point in entry_points(group="pytest11"))


def importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def visible() -> list[str]:
    """UUIDs of the GPUs.  Raises Skipped where there is none."""
    from harness.sampling.gpus import discover

    found = discover(os.environ)
    if not found.gpus:
        raise Skipped(f"no GPU: {found.reason}")
    return [gpu.uuid for gpu in found.gpus]


def asked(command: list[str], environ: dict[str, str] | None = None) -> str:
    """What a command prints.  Raises RuntimeError with the end of its complaint."""
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError("\n".join(done.stderr.strip().splitlines()[-5:]) or f"exit code {done.returncode}")
    return done.stdout


def page(document: dict[str, Any]) -> str:
    """The same as Markdown: a heading a part, a row a figure."""
    lines = ["# GPU check", ""]
    for name, part in document.items():
        lines += [f"## {name}: {part['state']}, {part['seconds']:.1f} s", ""]
        if part["why"]:
            lines += [f"    {line}" for line in part["why"].splitlines()] + [""]
        rows = list(flat(part["figures"] or {}))
        if rows:
            lines += ["| figure | value |", "|---|---|"]
            lines += [f"| `{key}` | {str(value)[:200].translate(TABLE)} |" for key, value in rows] + [""]
    return "\n".join(lines)


TABLE = str.maketrans({"|": "\\|", "\n": " "})


def flat(figures: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Nested figures as rows, `cost.power.median_us`."""
    rows: list[tuple[str, Any]] = []
    for key, value in figures.items():
        rows += flat(value, f"{before}{key}.") if isinstance(value, dict) and value else [(f"{before}{key}", value)]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder for the two files (made)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of load; energies need 10")
    parser.add_argument("--no-jobs", action="store_true", help="leave out the cases of benchmarks/")
    given = parser.parse_args()
    folder = given.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "system.jsonl").unlink(missing_ok=True)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine,
        "NVML calls": calls,
        "load": lambda: load(given.seconds, folder),
        "out of memory": out_of_memory,
    }
    if not given.no_jobs:
        parts["jobs"] = lambda: jobs(folder)
    document = {}
    for name, part in parts.items():
        begun = time.monotonic()
        state, why, figures = "done", None, None
        try:
            figures = part()
        except Skipped as error:
            state, why = "skipped", str(error)
        except Exception as error:
            state, why = "failed", f"{type(error).__name__}: {error}"
        document[name] = {"state": state, "why": why, "seconds": time.monotonic() - begun, "figures": figures}
    (folder / "gpu_check.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "gpu_check.md").write_text(page(document))
    print(page(document))
    return 1 if any(part["state"] == "failed" for part in document.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
