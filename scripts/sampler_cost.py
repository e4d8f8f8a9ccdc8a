"""What the sampler costs: its share of one core at one sample a second, as it says itself and as seen from outside.

    python scripts/sampler_cost.py [--gpus 8] [--processes 100] [--seconds 20] [--nvml FOLDER]

It watches a tree of idle processes.  The GPUs are those of the libnvidia-ml.so.1 in FOLDER, say tests/fakes/fake_nvml.c
compiled as its first lines say; without --nvml the machine's own driver is asked for its first GPUs.  A fake driver's
calls cost less than a real one's: on a machine with GPUs run it without."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.sampling import sampler
from harness.telemetry import summarise

ASK = "import json, os; from harness.sampling.gpus import discover; "
ASK += "found = discover(os.environ); print(json.dumps([[gpu.uuid for gpu in found.gpus], found.reason]))"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--nvml", type=Path)
    asked = parser.parse_args()
    environ = dict(os.environ)
    if asked.nvml is not None:
        environ |= {"LD_LIBRARY_PATH": str(asked.nvml.absolute()), "FAKE_NVML_COUNT": str(asked.gpus)}
    found, reason = json.loads(subprocess.check_output([sys.executable, "-c", ASK], env=environ))
    uuids = found[: asked.gpus]
    idle = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]
    tree = [subprocess.Popen(idle) for _ in range(asked.processes)]
    try:
        with tempfile.TemporaryDirectory() as name:
            journal = Path(name, "system.jsonl")
            command = [*sampler.command(journal, 1.0, uuids), "--root-pid", str(os.getpid())]
            with subprocess.Popen(command, env=environ) as process:
                time.sleep(3.0)  # its start is no part of it
                before, begun = cpu_s(process.pid), time.monotonic()
                time.sleep(asked.seconds)
                used, seconds = cpu_s(process.pid) - before, time.monotonic() - begun
                process.send_signal(signal.SIGTERM)
            events = [json.loads(line) for line in journal.read_text().splitlines()]
    finally:
        for child in tree:
            child.kill()
        for child in tree:
            child.wait()
    told = summarise(events)
    samples = [event for event in events if event["e"] == "sample"]
    host = [event["sampler"]["poll_s"] for event in samples]
    polls = [event["poll_s"] for event in events if event["e"] == "gpu_sample"]
    print(f"{len(uuids)} GPUs{'' if uuids else f' ({reason})'}, {samples[-1]['tree']['processes']} processes")
    print(f"sampler: {used / seconds:.2%} of one core from outside, {told.sampler_busy_mean or 0:.2%} by itself")
    print(f"host: {1e3 * sum(host) / len(host):.2f} ms a sample")
    if polls:
        print(f"GPUs: {1e3 * sum(polls) / len(polls):.3f} ms a GPU and sample, {1e3 * max(polls):.3f} ms at most")


if __name__ == "__main__":
    main()
