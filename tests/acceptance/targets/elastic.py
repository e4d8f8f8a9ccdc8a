"""Plain torch with gloo, started by any launcher: `elastic.py OUT [FATE]`; writes losses and what it sees of itself.

FATE befalls rank 1, or the only rank: raise (before anything), exit-3, sigkill, raise-late (after a step)."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS = 5


def surroundings() -> dict[str, Any]:
    """What a program may see of how it was started, but for what the harness says it adds."""
    ours = {"HARNESS_JOB_ID", "HARNESS_RANK_PID", "HARNESS_RANK_ABOVE", "HARNESS_RANK_SIGNS"}
    each_time = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "PYTHONPATH"}
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "warnoptions": sys.warnoptions,
        "xoptions": sys._xoptions,
        "main": [main.__name__, str(getattr(main, "__file__", None)), getattr(main.__spec__, "name", None)],
        "environ": {name: os.environ[name] for name in sorted({*os.environ} - ours - each_time)},
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "cwd": os.getcwd(),
        "executable": sys.executable,
    }


def train(out: str, rank: int, world_size: int, fate: str) -> None:
    unlucky = rank == world_size - 1
    if unlucky and fate == "raise":
        raise KeyError("the data is not there")
    if world_size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(7)
    model = torch.nn.Linear(8, 1)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        if unlucky and step == 2:
            if fate == "exit-3":
                sys.exit(3)
            if fate == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == "raise-late":
                raise ZeroDivisionError("no luck")
        optimizer.zero_grad()
        loss = wrapped(torch.full((4, 8), float(step + rank))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if world_size > 1:
        dist.destroy_process_group()
    Path(f"{out}.{rank}").write_text(json.dumps({"losses": losses, **surroundings()}))
    print(f"rank {rank} is done")


def spawned(index: int, out: str, port: str, fate: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(index), WORLD_SIZE="2")
    train(out, index, 2, fate)


if __name__ == "__main__":
    number = int(os.environ.get("RANK", "0"))
    train(sys.argv[1], number, int(os.environ.get("WORLD_SIZE", "1")), sys.argv[2] if len(sys.argv) > 2 else "")
