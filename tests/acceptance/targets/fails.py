"""A torch program without a Trainer that ends badly, mostly in step 3: `fails.py MANNER`, a function below.

Where there are several ranks, on gloo, the last one fails."""

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LAST = WORLD_SIZE - 1
SOON = datetime.timedelta(seconds=5)
MIB = 1 << 20
OOM = (
    "CUDA out of memory. Tried to allocate {asked}. GPU 1 has a total capacity of 79.25 GiB of which 1.03 GiB is free. "
    "Including non-PyTorch memory, this process has 78.20 GiB memory in use. Of the allocated memory 76.41 GiB is "
    "allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated."
)


def meet(**arguments: Any) -> None:
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo", **arguments)
    if RANK != LAST:
        # torchrun's comes as soon as one rank has ended, and may come before the others have noticed by themselves.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def train(in_step_3: Callable[[], object] = lambda: None, group: dist.ProcessGroup | None = None) -> None:
    """Each of four steps waits for all ranks; `in_step_3` happens on the last rank alone."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(1, 5):
        if (number, RANK) == (3, LAST):
            in_step_3()
        weight.grad = torch.ones(1)
        if WORLD_SIZE > 1:
            dist.all_reduce(weight.grad, group=group)
        optimizer.step()
        print("step", number, flush=True)


def out_of_memory(asked: str = "2.15 GiB") -> None:
    raise torch.OutOfMemoryError(OOM.format(asked=asked))


def gpu_oom() -> None:
    meet()
    train(out_of_memory)


def killed() -> None:
    meet()
    train(lambda: os.kill(os.getpid(), signal.SIGKILL))


def segfault() -> None:
    meet()
    train(lambda: ctypes.string_at(0))


def eat() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * (64 * MIB))


def eats_memory() -> None:
    meet()
    train(eat)


def port_in_use() -> None:
    """A store of the program's own, on a port that rank 0 holds itself; the other rank has patience."""
    port = int(os.environ["MASTER_PORT"]) + 1
    with socket.socket() as taken:
        if RANK == 0:
            with contextlib.suppress(OSError):  # so it is taken by somebody else
                taken.bind(("127.0.0.1", port))
                taken.listen()
        dist.TCPStore("127.0.0.1", port, WORLD_SIZE, is_master=RANK == 0, timeout=datetime.timedelta(minutes=1))


def address_in_use() -> None:
    """One process that is its own launcher."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        dist.init_process_group("gloo", rank=0, world_size=1, timeout=SOON)


def missing_peer() -> None:
    meet(world_size=WORLD_SIZE + 1, rank=RANK, timeout=SOON)


def never_comes() -> None:
    meet()
    train(lambda: time.sleep(3600), dist.new_group(timeout=SOON))


def file_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def save_fails() -> None:
    meet()
    file_limit(MIB)
    train(lambda: torch.save({"weight": torch.zeros(MIB)}, "checkpoint.pt"))


def write_fails() -> None:
    file_limit(MIB)

    def write() -> None:
        with open("state.json", "w") as file:
            json.dump(list(range(MIB)), file)

    train(write)


class Dying(torch.utils.data.Dataset[int]):
    def __init__(self, die: Callable[[], object]) -> None:
        self.die = die

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.die()
        return index


def load(die: Callable[[], object]) -> None:
    meet()
    train(lambda: list(torch.utils.data.DataLoader(Dying(die), num_workers=1)))


def loader_killed() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def loader_eats_memory() -> None:
    load(eat)


def diverges() -> None:
    from train import trainer  # type: ignore[import-not-found]
    from transformers import Trainer

    trainer(Trainer, learning_rate=1e38).train()


def bad_argument() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float)
    parser.parse_args(["--learning-rate", "fast"])


def swallows() -> int:
    meet()
    try:
        train(out_of_memory)
    except Exception as error:
        print(f"training failed: {error}", file=sys.stderr)
        return 1
    return 0


def swallows_silently() -> int:
    try:
        train(lambda: 1 // 0)
    except Exception:
        return 1
    return 0


def tells_of_oom() -> None:
    try:
        out_of_memory()
    except Exception:
        traceback.print_exc()
    train()


def noise() -> None:
    """5 MB in no encoding of this world, then an error that no hook of Python sees."""
    meet()
    line = bytes(range(128, 256)) * 8 + b"\r\n"
    sys.stderr.buffer.write(line * (5_000_000 // len(line) + 1))

    def fail() -> None:
        try:
            torch.zeros(2, 3) @ torch.zeros(4, 5)
        except RuntimeError:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    train(fail)


def forever() -> None:
    meet()
    train(lambda: time.sleep(3600))


def offline() -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained("an-organisation/a-model-that-nobody-has")


def address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))


def allocator() -> None:
    meet()
    address_space()
    train(lambda: torch.ones(64 << 30, dtype=torch.uint8))


def memory_error() -> None:
    address_space()
    train(lambda: bytearray(64 << 30))


def open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []

    def open_more() -> None:
        while True:
            held.append(socket.socket())

    train(open_more)


def halves() -> None:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=8)  # type: ignore[untyped-decorator]
    def run(batch_size: int) -> None:
        train(lambda: out_of_memory(f"{batch_size * 2}.00 GiB"))

    run()


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]]())
