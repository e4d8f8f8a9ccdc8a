"""A program that stops to get on, with several ranks on gloo: `hang.py MANNER`.

`peer`: rank 1 sleeps in step 4 while the others wait for it.  `behind`: it sleeps when the others have ended step 4.
`dies`: rank 1 is killed after step 2, while rank 0 ignores SIGTERM in a call of the C library."""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

MANNER, RANK = sys.argv[1], int(os.environ["RANK"])


def asleep() -> None:
    time.sleep(3600)


def deep_in_c() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).sleep(3600)


def main() -> None:
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(1, 5):
        if (number, RANK, MANNER) == (4, 1, "peer"):
            asleep()
        if (number, MANNER) == (3, "dies"):
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            deep_in_c()
        weight.grad = torch.ones(1)
        dist.all_reduce(weight.grad)
        if (number, RANK, MANNER) == (4, 1, "behind"):
            asleep()
        optimizer.step()
    dist.barrier()


main()
