"""A training loop without a Trainer: `plain` torch, `two` optimizers in turn, `accelerate` with accumulation, or a slow
`loader`."""

import sys
import time
from typing import Any

import torch


def plain(steps: int = 5) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def two(steps: int = 3) -> None:
    """As a generator and a discriminator: one pass of each is a step of the program."""
    models = [torch.nn.Linear(4, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2) for model in models]
    for _ in range(steps):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def accelerated(steps: int = 4) -> None:
    from accelerate import Accelerator

    accelerator: Any = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    for _ in range(2 * steps):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 4)).sum())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that take 50 ms to read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05)
        return torch.ones(4)


def loader() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    {"plain": plain, "two": two, "accelerate": accelerated, "loader": loader}[sys.argv[1]]()
