"""What Aim costs the figure that is measured: the median step time of a tiny job with live Aim beside --no-aim.

    python scripts/aim_cost.py [--pairs 5] [--steps 400]

Both are the built-in trainer on a 2-layer Llama on the CPU, as a case of a fresh pytest, in alternating pairs; steps
are of a few milliseconds, and enough of them that the forwarder copies while they run.  Prints both figures and their
difference with the spread.  Run it on a quiet machine; on a busy one the spread says so."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.record import read_record

SCENARIO = """
name: cost
model: {{name: tiny-llama, dtype: float32}}
method: full
processes: 1
data: {{samples: 160, sequence_length: 64, seed: 1}}
training: {{per_device_train_batch_size: 2, max_steps: {steps}, learning_rate: 1e-2, logging_steps: 5}}
"""


def step_time_s(folder: Path, *options: str) -> float:
    """The median step time of the case in `folder`.  Raises RuntimeError where it failed, or Aim lacks something."""
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "HARNESS_LOCK_DIR": str(folder / "locks")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_case.py", *options]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    record = read_record(next((folder / "results" / "latest").glob("*/record.json")))
    if "--no-aim" not in options and (record.aim is None or record.aim["state"] != "complete"):
        raise RuntimeError(f"not all of it reached Aim: {record.aim}")
    assert record.measurements is not None
    assert record.measurements.step_time_median_s is not None
    return record.measurements.step_time_median_s


def spread(values: list[float]) -> str:
    low, middle, high = (f"{1e3 * value:.3f}" for value in (min(values), statistics.median(values), max(values)))
    return f"median {middle} ms ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    with_aim, without = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenarios").mkdir()
        (folder / "scenarios" / "cost.yaml").write_text(SCENARIO.format(steps=asked.steps))
        (folder / "test_case.py").write_text("def test_case(tuning):\n    tuning.check()\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        step_time_s(folder, "--no-aim")  # the page cache and the byte code are warm for both
        for _ in range(asked.pairs):
            with_aim.append(step_time_s(folder, "--aim-timeout", "2m"))
            without.append(step_time_s(folder, "--no-aim"))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    print(f"{asked.pairs} alternating pairs, {asked.steps} steps, {load}")
    print(f"step time with live Aim:  {spread(with_aim)}")
    print(f"step time with --no-aim:  {spread(without)}")
    print(f"difference:               {spread([a - b for a, b in zip(with_aim, without, strict=True)])}")


if __name__ == "__main__":
    main()
