"""Runs programs under the staged probe, as an engine does, and reads what they left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.probe.layout import JobPaths
from harness.probe.staging import BUILT_IN, stage, start_command

TARGETS = Path(__file__).parents[2] / "targets"
DEADLINE_S = 300.0  # only a hanging program runs so long; the machine may be very busy

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Ended:
    """A program that has ended under the probe; several ranks were started by torchrun."""

    job: JobPaths
    exit_code: int  # of the command
    launcher: str  # what it wrote before or beside the ranks

    def events(self, kind: str | None = None, rank: int = 0) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.job.events(rank).read_text().splitlines()]
        return [event for event in lines if kind in (None, event["e"])]

    def one(self, kind: str, rank: int = 0) -> dict[str, Any]:
        found = self.events(kind, rank)
        assert len(found) == 1, f"{kind}: {found}"
        return found[0]

    def error(self, rank: int = 0) -> dict[str, Any] | None:
        path = self.job.error(rank)
        if not path.exists():
            return None
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def stdout(self, rank: int = 0) -> str:
        return self.job.stdout(rank).read_text()

    def stderr(self, rank: int = 0) -> str:
        return self.job.stderr(rank).read_text()

    def logs(self) -> str:
        """All that was written, for the message of a failed assert."""
        return "\n".join([self.launcher, *(self.stdout(r) + self.stderr(r) for r in self.job.ranks())])


def run(
    root: Path,
    *target: str,
    ranks: int = 1,
    scenario: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    cwd: Path | None = None,
    python: str = sys.executable,
) -> Ended:
    """Stage the probe below `root` and run `[-m] TARGET ARGS...` under it until it ends."""
    job = JobPaths(root)
    job.root.mkdir(parents=True, exist_ok=True)
    job.job.write_text(json.dumps({"schema": 1, "scenario": scenario}))
    stage(job)
    module = target[0] == "-m"
    command = start_command(job, *(target[1:] if module else target), module=module)
    launcher = [python, *options, "-u"]
    if ranks > 1:
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launcher = [*torchrun, "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launcher, *command],
        cwd=cwd or root,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ended(job, done.returncode, done.stdout + done.stderr)


def finetune(root: Path, *, ranks: int = 1, **changes: Mapping[str, Any]) -> Ended:
    """Run the built-in target on the CPU; `changes` go over the parts of a tiny scenario."""
    scenario: dict[str, dict[str, Any]] = {
        "model": {"name": None, "shape": TINY, "path": None, "dtype": "float32", "attention": None},
        "method": {"kind": "full"},
        "data": {
            "samples": 16, "sequence_length": 32, "lengths": "fixed", "packing": "padded", "workers": 0, "seed": 1
        },
        "training": {"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 3e-3},
    }  # fmt: skip
    if "until" in changes:
        del scenario["training"]["max_steps"]
    for part, values in changes.items():
        scenario[part] = {**scenario.get(part, {}), **values}
    ended = run(root, "-m", BUILT_IN, ranks=ranks, scenario={**scenario, "gpus": None, "processes": ranks})
    assert not any(ended.events("probe_error", rank) for rank in ended.job.ranks()), ended.events("probe_error")
    return ended


def other_interpreters() -> list[str]:
    """Of each other Python that the probe is to run under, one that is there and starts: on PATH, or pyenv's."""
    return [found for minor in (10, 12, 13, 14) if (found := _working(f"python3.{minor}")) is not None]


def _working(name: str) -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")  # whose own name on PATH may refuse to start
    candidates = [shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))]
    for path in candidates:
        if path and not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
            return path
    return None


OTHERS = other_interpreters()
