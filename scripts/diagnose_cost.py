"""What a diagnosis costs: time and peak memory of `harness diagnose` on a large generated log, beside `grep -c`.

python scripts/diagnose_cost.py [--megabytes 200] [--times 3]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP = (
    "[default{rank}]:{{'loss': {loss:.4f}, 'grad_norm': {norm:.4f}, 'learning_rate': 1.99e-05, 'epoch': {epoch:.2f}}}\n"
    "[rank{rank}]: step {step} loss {loss:.4f} tokens/s {speed:.1f}\n"
    "node-0:3468:3905 [{rank}] NCCL INFO Channel {step}/0 : 1[1] -> 0[0] via P2P/IPC\n"
)
FAILURE = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/run/train.py", line 210, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.15 GiB. GPU 1 has a total capacity of 79.25 \
GiB of which 1.03 GiB is free.
"""
PATTERN = "CUDA out of memory"
# The peak of the children that have ended, so that this process's own does not count.
CHILD = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
    "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def write_log(path: Path, size: int) -> None:
    """A log of eight ranks of at least `size` bytes, with an out-of-memory error of rank 1 in its middle."""
    written, step, failed = 0, 0, False
    with open(path, "w", encoding="ascii") as file:
        while written < size:
            text = "".join(
                STEP.format(
                    rank=number % 8,
                    step=number,
                    loss=2 + number % 977 / 1000,
                    norm=number % 613 / 400,
                    epoch=number / 1e5,
                    speed=9000 + number % 331,
                )
                for number in range(step, step + 1000)
            )
            if not failed and written >= size / 2:
                failed, text = True, FAILURE + text
            step += 1000
            written += file.write(text)


def diagnose(path: Path) -> tuple[float, int]:
    """Seconds and peak bytes of one `harness diagnose`.  Raises RuntimeError when it reaches no verdict."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", "diagnose", "--json", str(path)]
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True)
    passed = time.perf_counter() - begun
    code, peak_kib = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"harness diagnose ended with exit code {code}: {done.stderr}")
    return passed, int(peak_kib) * 1024


def grep(path: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(["grep", "-c", PATTERN, str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "train.log")
        write_log(path, asked.megabytes * 1_000_000)
        for _ in range(asked.times):
            grep_s, (diagnose_s, peak) = grep(path), diagnose(path)
            print(
                f"{asked.megabytes} MB: grep -c {grep_s:.3f} s, harness diagnose {diagnose_s:.2f} s "
                f"({diagnose_s / grep_s:.1f} times), peak memory {peak / 2**20:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
