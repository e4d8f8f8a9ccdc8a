"""For programs without a Trainer: they tell of their steps, in a job of the harness or in one of their own."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .attach import Repo, attach
from .tokens import Counts


class Journal:
    """Journals the steps of a training loop.  The arguments are those of `BenchmarkAimCallback`.

        journal = Journal({"team": "search"})
        for step, batch in enumerate(loader, 1):
            ...
            journal.step(step, loss=loss, tokens=batch["input_ids"].numel())

    A step lasts from the end of the one before (the first: from the making of the journal) to the call that tells of
    it.  Numbers may be tensors of no dimension: on a GPU they are read when they are there, nothing waits for them.
    In a job of the harness the program's optimizers are then no longer watched.  As a context manager it ends with the
    block; otherwise with the process."""

    def __init__(
        self,
        custom_metadata: Mapping[str, Any] | None = None,
        output_file: str | os.PathLike[str] | None = None,
        repo: Repo = None,
    ) -> None:
        self._attached = attach(custom_metadata, output_file, repo)
        self._meter = self._attached.meter
        self._meter.told_by_program()

    @property
    def run_hash(self) -> str | None:
        """Of the run in Aim; None where there is none."""
        return self._attached.run_hash

    @property
    def repo(self) -> str | None:
        """Where the run is, secrets of a URL hidden; None without Aim."""
        return self._attached.repo

    def step(
        self,
        step: int,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: Any = None,
        tokens: Any = None,
        padded_tokens: int | None = None,
        trainable_tokens: Any = None,
        samples: int | None = None,
        epoch: float | None = None,
    ) -> None:
        """An optimizer step has ended; `step` counts from 1 and never falls.

        The counts are of this rank's share: `tokens` those that are no padding, `padded_tokens` all slots (default: the
        same as `tokens`), `trainable_tokens` those that count in the loss."""
        with self._meter.guard("Journal.step"):
            counts = None
            if tokens is not None:
                counts = Counts(
                    padded=int(tokens if padded_tokens is None else padded_tokens),
                    samples=samples,
                    padded_squares=None,
                    non_pad_squares=None,
                    non_pad=[_count(tokens)],
                    trainable=None if trainable_tokens is None else [_count(trainable_tokens)],
                    reason="the program did not tell of trainable tokens" if trainable_tokens is None else None,
                )
            self._meter.program_stepped(step, loss, grad_norm, learning_rate, counts, epoch)

    def log(self, step: int, /, **numbers: float) -> None:
        """Numbers of the program's own, such as an evaluation's."""
        with self._meter.guard("Journal.log"):
            self._meter.logged(step, numbers, None)

    def close(self) -> None:
        """The loop has ended: brings what was measured to the disk, and writes the dump."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        with self._meter.guard("Journal.close"):
            self._meter.loop_left(error)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)


def _count(value: Any) -> Any:
    if getattr(value, "is_cuda", False):
        return value
    return int(value)
