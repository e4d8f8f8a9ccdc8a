"""Whether the median step time that the harness reports is that of the program alone, in alternating pairs.

    python scripts/bare_loop.py [--pairs 5] [--steps 200] [--ranks 1] [--trainer]

A tiny Llama is trained on the CPU by a loop of forward, backward and optimizer, or with --trainer by the Hugging Face
Trainer: bare, and under `harness exec`, each in turn first.  The program stamps the end of each step itself; what it
stamped bare is cut and described as the harness does.  Prints for each pair both medians with their intervals and their
ratio, and last the ratios' spread: the harness's figure over the bare program's (what measuring disturbs, and what the
machine did meanwhile), and over the program's own in the same job (what the harness mistakes).  An interval is of the
noise within one job: between two jobs there is more, so that those of a pair may part by less than pairs do.  Run it on
a quiet machine; on a busy one the spread says so."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.engines.local import launcher
from harness.metrics.steady import summarise
from harness.probe.settling import find_cut
from harness.record import read_record

PROGRAM = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

steps, how, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ranks, rank, ends = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("RANK", "0"), []

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * steps * ranks
    def __getitem__(self, index):
        ids = torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

class Clock(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        ends.append(time.perf_counter())

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
))
if how == "trainer":
    arguments = TrainingArguments(
        output_dir="out", max_steps=steps, per_device_train_batch_size=4, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, logging_steps=50, ddp_find_unused_parameters=False,
    )
    Trainer(model, arguments, train_dataset=Data(), callbacks=[Clock()]).train()
else:
    data = Data()
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(data, batch_size=4, sampler=DistributedSampler(data) if ranks > 1 else None):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
with open(f"{out}/told-{rank}.json", "w") as file:
    json.dump([b - a for a, b in zip(ends, ends[1:])], file)
    file.flush()
    os.fsync(file.fileno())
if ranks > 1:
    os._exit(0)  # gloo's threads may abort an interpreter that is taken apart
"""


@dataclass(frozen=True)
class Median:
    """Seconds, with the bounds of the interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{1e3 * self.value:.2f} ms ({1e3 * self.low:.2f} to {1e3 * self.high:.2f})"

    def holds(self, other: "Median") -> bool:
        return self.low <= other.value <= self.high

    def overlaps(self, other: "Median") -> bool:
        return self.low <= other.high and other.low <= self.high


def own_median(folder: Path, cut: int | None = None) -> Median:
    """Of what the slowest rank stamped, from the second step on; without `cut` cut as the harness does."""
    series: list[list[float]] = [json.loads(path.read_text()) for path in folder.glob("told-*.json")]
    slowest = max(series, key=sum)
    found = summarise(slowest[find_cut(slowest) if cut is None else cut :])
    return Median(found.median, found.low, found.high)


def run(command: list[str], folder: Path) -> None:
    """Raises RuntimeError when the command fails."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environ |= {"HARNESS_LOCK_DIR": str(folder.parent / "locks"), "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def bare(program: Path, arguments: list[str], ranks: int, folder: Path) -> Median:
    folder.mkdir()
    run([*launcher(sys.executable, ranks), str(program), *arguments, str(folder)], folder)
    return own_median(folder)


def measured(program: Path, arguments: list[str], ranks: int, folder: Path) -> tuple[Median, Median]:
    """(the harness's figure, the program's own in the same job)."""
    folder.mkdir()
    harness = [sys.executable, "-c", "from harness.cli import main; main()"]
    options = ["exec", "--no-aim", "--quiet", "--job-dir", str(folder / "job"), "--nproc", str(ranks)]
    run([*harness, *options, "--", str(program), *arguments, str(folder)], folder)
    figures = read_record(folder / "job" / "record.json").measurements
    assert figures is not None
    assert figures.step_time_median_s is not None
    assert figures.step_time_median_low_s is not None
    assert figures.step_time_median_high_s is not None
    found = Median(figures.step_time_median_s, figures.step_time_median_low_s, figures.step_time_median_high_s)
    return found, own_median(folder, figures.first_cut - 1)


def spread(ratios: list[float]) -> str:
    return f"median {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--trainer", action="store_true", help="the Hugging Face Trainer instead of a loop")
    asked = parser.parse_args()
    arguments = [str(asked.steps), "trainer" if asked.trainer else "loop"]
    of_bare, of_own, overlapping, held = [], [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        program = root / "program.py"
        program.write_text(PROGRAM)
        for pair in range(asked.pairs):
            if pair % 2:
                alone = bare(program, arguments, asked.ranks, root / f"bare-{pair}")
            figure, own = measured(program, arguments, asked.ranks, root / f"measured-{pair}")
            if not pair % 2:
                alone = bare(program, arguments, asked.ranks, root / f"bare-{pair}")
            of_bare.append(figure.value / alone.value)
            of_own.append(figure.value / own.value)
            overlapping += figure.overlaps(alone)
            held += figure.holds(own)
            print(f"pair {pair + 1}: bare {alone}, harness {figure}, ratio {of_bare[-1]:.4f}", flush=True)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    print(f"{arguments[1]}, {asked.pairs} alternating pairs, {asked.steps} steps, ranks: {asked.ranks}, {load}")
    print(f"harness over bare program:               {spread(of_bare)}")
    print(f"harness over the program's own, one job: {spread(of_own)}")
    print(f"the interval of the harness holds the program's own median in {held} of {asked.pairs} jobs")
    print(f"the intervals of both programs overlap in {overlapping} of {asked.pairs} pairs")


if __name__ == "__main__":
    main()
