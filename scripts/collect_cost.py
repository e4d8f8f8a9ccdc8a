"""What collecting costs: CPU time of `pytest --collect-only` over generated scenarios, one file each.

python scripts/collect_cost.py [--scenarios 1000] [--times 3]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SCENARIO = """
name: generated-{number}
model: llama-7b
method: lora
data: {{samples: 64, sequence_length: 2048}}
training: {{per_device_train_batch_size: 4, max_steps: 30, learning_rate: 1e-4, bf16: true}}
gpus: 1
tags: [generated]
"""


def collect(folder: Path) -> tuple[float, str]:
    """CPU seconds of one collection, and pytest's last line.  Raises CalledProcessError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenarios").mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_case.py").write_text("def test_case(tuning):\n    tuning.check()\n")
        for number in range(asked.scenarios):
            (folder / "scenarios" / f"s{number:05}.yaml").write_text(SCENARIO.format(number=number))
        for _ in range(asked.times):
            cpu_s, said = collect(folder)
            print(f"{cpu_s:.2f} s of CPU, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs: {said}", flush=True)


if __name__ == "__main__":
    main()
