"""For programs without a Trainer: they tell of their steps, in a job of the harness or in one of their own."""

import operator
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .attach import Attached, Name, Repo, attach


class Journal(Attached):
    """Journals the steps of a training loop.  The arguments are those of `BenchmarkAimCallback`.

        journal = Journal({"team": "search"})
        for step, batch in enumerate(loader, 1):
            ...
            journal.step(step, loss=loss, tokens=batch["input_ids"].numel())

    A step lasts from the end of the one before (the first: from the making of the journal) to the call that tells of
    it.  Numbers may be tensors of no dimension: on a GPU they are read when they are there, nothing waits for them.
    In a job of the harness the program's optimizers are then no longer watched.  It ends with its block, by `close`, or
    with the process."""

    def __init__(
        self,
        custom_metadata: Mapping[str, Any] | None = None,
        output_file: str | os.PathLike[str] | None = None,
        repo: Repo = None,
        results: Name = "results",
    ) -> None:
        self._attached = attach(custom_metadata, output_file, repo, results)
        self._meter = self._attached.meter
        self._meter.told_by_program()

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
        """An optimizer step has ended; `step` counts from 1.  Where it falls, training has begun anew.

        The counts are of this rank's share: `tokens` those that are no padding, `padded_tokens` all slots (default: the
        same as `tokens`), `trainable_tokens` those that count in the loss.  Raises TypeError for a step that is no
        integer; anything else that is no number is not known."""
        step = operator.index(step)
        with self._meter.guard("Journal.step"):
            self._meter.program_stepped(
                step,
                loss=loss,
                norm=grad_norm,
                rate=learning_rate,
                counts=(tokens, padded_tokens, trainable_tokens, samples),
                epoch=epoch,
            )

    def log(self, step: int, /, **numbers: Any) -> None:
        """Numbers of the program's own, such as an evaluation's; waits for those that are on a GPU.

        Raises TypeError for a step that is no integer."""
        step = operator.index(step)
        with self._meter.guard("Journal.log"):
            self._meter.logged(step, {name: float(number) for name, number in numbers.items()}, None)

    def close(self) -> None:
        """The loop has ended: writes the dump, and ends the job where it is the program's own."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        with self._meter.guard("Journal.close"):
            self._meter.loop_left(error)
        self._attached.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)
