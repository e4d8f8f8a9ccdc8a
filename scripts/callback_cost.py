"""Prints what the probe costs a training process in each step: thread CPU time of callback and hooks, journal included.

    python scripts/callback_cost.py [STEPS]

Trains a tiny Llama on the CPU with the hooks installed, and adds up the time spent inside each of them from one step's
end to the next.  Exits with 1 when the median of a step is above 200 microseconds."""

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.probe import hooks
from harness.probe.finetune import train
from harness.probe.journal import JournalFile
from harness.probe.layout import JobPaths
from harness.probe.measure import Meter

LIMIT_US = 200.0
FIRST = 5  # steps left out at the start, as in a benchmark

SCENARIO: dict[str, Any] = {
    "gpus": None,
    "processes": 1,
    "model": {
        "shape": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 256,
        },
        "dtype": "float32",
    },
    "method": {"kind": "full"},
    "data": {"samples": 256, "sequence_length": 64, "lengths": "fixed", "packing": "padded", "seed": 0},
    "training": {"per_device_train_batch_size": 2, "learning_rate": 3e-3, "logging_steps": 10},
}


class Stopwatch:
    """Thread time spent in the probe since the last lap, in nanoseconds."""

    def __init__(self) -> None:
        self.spent = 0
        self.laps: list[int] = []

    def time(self, function: Callable[..., Any], *, lap: bool = False) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent += time.thread_time_ns() - began
                if lap:
                    self.laps.append(self.spent)
                    self.spent = 0

        return timed


def watch(meter: Meter, stopwatch: Stopwatch) -> None:
    """Time what the hooks call; what is left in them is the call itself."""
    step = meter.step
    seen = ("saw_loss", "saw_norm", "saw_optimizer", "saw_counts")
    for name in (*seen, "computing", "computed", "fetch_begins", "fetch_ends"):
        setattr(step, name, stopwatch.time(getattr(step, name)))
    for name in ("add_overhead", "logged"):
        setattr(meter, name, stopwatch.time(getattr(meter, name)))
    meter.step_ended = stopwatch.time(meter.step_ended, lap=True)  # type: ignore[method-assign]
    for name in ("count", "_shifts"):
        setattr(hooks, name, stopwatch.time(getattr(hooks, name)))


def measure(steps: int, accumulation: int) -> list[float]:
    """Microseconds of each step."""
    with tempfile.TemporaryDirectory() as folder:
        job = JobPaths(Path(folder))
        meter = Meter(job, 0, JournalFile(job.events(0)), set())
        stopwatch = Stopwatch()
        watch(meter, stopwatch)
        hooks.install(meter)
        training = {**SCENARIO["training"], "max_steps": steps, "gradient_accumulation_steps": accumulation}
        train({**SCENARIO, "training": training}, job.outputs)
        meter.end()
    return [lap / 1000 for lap in stopwatch.laps[FIRST:]]


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    times = measure(steps, accumulation=1)
    median, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    print(f"callback and hooks: median {median:.0f} us, p95 {p95:.0f} us of thread time a step, n={len(times)}")
    print(f"limit: {LIMIT_US:.0f} us")
    return int(median > LIMIT_US)


if __name__ == "__main__":
    raise SystemExit(main())
