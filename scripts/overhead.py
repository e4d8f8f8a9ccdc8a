"""What the harness costs: a program bare, and the same program as a case, in alternating pairs.

    python scripts/overhead.py [--pairs 5] [--steps 20]     # a plain Trainer program
    python scripts/overhead.py --tiny [--pairs 5]           # the whole `pytest benchmarks/ -k tiny`

The first prints wall time of both commands and the CPU time of the harness itself (pytest, supervisor, sampler: all
processes of the case but the program, whose own CPU time it reports at its end), each with its spread, and the
program's median step time both ways; nothing goes to Aim.  The second prints wall and CPU time of the command, and of
the command with --no-aim, beside that of its four programs run bare, one after the other.  Run it on a quiet machine;
on a busy one the spread says so.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.engines.local import launcher
from harness.probe.layout import JobPaths
from harness.scenario import Case, load_scenarios, resolved

ROOT = Path(__file__).parent.parent
TARGET = """
import json, sys, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

class Clock(TrainerCallback):
    ends = []
    def on_step_end(self, *args, **kwargs):
        Clock.ends.append(time.perf_counter())

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * int(sys.argv[2])
    def __getitem__(self, index):
        ids = torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
arguments = TrainingArguments(
    output_dir="out", max_steps=int(sys.argv[2]), per_device_train_batch_size=2, use_cpu=True, report_to="none",
    save_strategy="no", disable_tqdm=True,
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Data(), callbacks=[Clock()]).train()
steps = [b - a for a, b in zip(Clock.ends, Clock.ends[1:])]
with open(sys.argv[1], "w") as file:
    json.dump({"cpu_s": time.process_time(), "steps_s": steps}, file)
"""
CASE = """
name: overhead
trainer: {{kind: script, target: ../target.py, args: ["told.json", "{steps}"]}}
processes: 1
"""


@dataclass(frozen=True)
class Cost:
    wall_s: float
    harness_cpu_s: float  # CPU of all processes but the program
    step_s: float  # median of the program's own clock, first three left out


def run(command: list[str], folder: Path) -> Cost:
    """Run a command that leaves told.json in `folder`.  Raises RuntimeError when it fails."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HARNESS_LOCK_DIR": str(folder / "locks")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    document = json.loads(told.read_text())
    return Cost(wall, cpu - document["cpu_s"], statistics.median(document["steps_s"][3:]))


def tiny(pairs: int) -> None:
    """Compare the whole tiny command, with and without Aim, with its programs run bare."""
    bare: list[tuple[float, float]] = []
    cased: list[tuple[float, float]] = []
    aimless: list[tuple[float, float]] = []
    cases = [case for case in load_scenarios(ROOT / "benchmarks" / "scenarios") if case.id.startswith("tiny-")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "HARNESS_LOCK_DIR": str(folder / "locks")}
        environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks/", "-k", "tiny"]
        command += ["--results", str(folder / "results")]
        for pair in range(pairs + 1):
            programs = []
            for case in cases:
                assert isinstance(case, Case)
                job = JobPaths(folder / f"{pair}-{case.id}")
                job.outputs.mkdir(parents=True)
                job.job.write_text(json.dumps({"scenario": resolved(case.scenario)}))
                program = ["-m", "harness.probe.finetune", str(job.root)]
                programs.append(timed([*launcher(sys.executable, case.scenario.world_size), *program], environ))
            whole = timed(command, environ)
            without = timed([*command, "--no-aim"], environ)
            if pair:  # the first one only warms the page cache, and makes the Aim repo
                bare.append((sum(wall for wall, _ in programs), sum(cpu for _, cpu in programs)))
                cased.append(whole)
                aimless.append(without)
    print(f"{pairs} alternating pairs, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    for what, index in (("wall", 0), ("CPU", 1)):
        base = [each[index] for each in bare]
        print(f"four programs bare, {what}:    {spread(base)}")
        for told, costs in (("the tiny command", cased), ("with --no-aim", aimless)):
            values = [each[index] for each in costs]
            extra = [b - a for a, b in zip(base, values, strict=True)]
            print(f"{told}, {what}:    {spread(values)}, difference {spread(extra)}")


def timed(command: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """(wall, CPU) seconds of a command and all that it has waited for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spread(values: list[float], unit: str = "s", scale: float = 1.0) -> str:
    low, middle, high = (f"{scale * value:.2f}" for value in (min(values), statistics.median(values), max(values)))
    return f"median {middle} {unit} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="compare the whole tiny command")
    asked = parser.parse_args()
    if asked.tiny:
        tiny(asked.pairs)
        return
    bare, cased = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenarios").mkdir()
        (folder / "target.py").write_text(TARGET)
        (folder / "scenarios" / "overhead.yaml").write_text(CASE.format(steps=asked.steps))
        (folder / "test_case.py").write_text("def test_case(tuning):\n    tuning.check()\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        program = [sys.executable, "target.py", "told.json", str(asked.steps)]
        case = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-aim", "test_case.py"]
        run(program, folder)  # the page cache and the byte code are warm for both
        for _ in range(asked.pairs):
            bare.append(run(program, folder))
            cased.append(run(case, folder))
    extra = [with_harness.wall_s - without.wall_s for without, with_harness in zip(bare, cased, strict=True)]
    print(
        f"{asked.pairs} alternating pairs, {asked.steps} steps, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    )
    print(f"bare program, wall:       {spread([cost.wall_s for cost in bare])}")
    print(f"as a case, wall:          {spread([cost.wall_s for cost in cased])}")
    print(f"difference, wall:         {spread(extra)}")
    cpu = [
        with_harness.harness_cpu_s - without.harness_cpu_s for without, with_harness in zip(bare, cased, strict=True)
    ]
    print(f"harness CPU of a case:    {spread(cpu)}")
    print(f"step time, bare:          {spread([cost.step_s for cost in bare], 'ms', 1e3)}")
    print(f"step time, as a case:     {spread([cost.step_s for cost in cased], 'ms', 1e3)}")


if __name__ == "__main__":
    main()
