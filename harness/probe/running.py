"""The step that runs: what the hooks see of it until it ends."""

import threading
import time
from collections.abc import Callable
from typing import Any

from .tokens import Counts

Mark = Callable[[Any], Any]  # records an event of the device, a new one for None; None where that is not possible


class RunningStep:
    """Loss, gradient norm, rate and counts of a step, and where its time goes.

    Two clocks.  Waiting for data is timed on the host.  Forward and backward, and what comes after them until the step
    ends, are timed by the device where there is one to `mark` events on, which are read late; else on the host, too.
    """

    def __init__(self) -> None:
        self._fetching = False
        self._aside = 0
        self.mark: Mark | None = None
        self.reset()

    def reset(self) -> None:
        """The next step begins, in this thread."""
        self._thread = threading.get_ident()  # one that fetches ahead keeps nobody waiting
        self.loss: Any = None
        self.norm: Any = None
        self.rate: Any = None
        self.counts: Counts | str | None = None
        self.overhead_s = 0.0
        self.overhead: list[str] = []
        self.data_wait_s: float | None = None  # None: no batch was seen to be fetched
        self._began: float | None = None
        self._computed: float | None = None
        self.marks: tuple[Any, Any] = (None, None)

    def saw_loss(self, loss: Any) -> None:
        """What training_step returned for a micro-batch, already scaled by their number: the step's loss is the sum."""
        if getattr(loss, "is_cpu", False):
            loss = loss.item()
        self.loss = loss if self.loss is None else self.loss + loss

    def saw_norm(self, norm: Any) -> None:
        self.norm = local(norm)

    def saw_optimizer(self, optimizer: Any) -> None:
        """Before the optimizer's step, so before the scheduler's."""
        groups = getattr(optimizer, "param_groups", None)
        self.rate = groups[0].get("lr") if groups else None

    def saw_counts(self, counts: Counts | str) -> None:
        self.counts = counts

    def tag_overhead(self, what: str) -> None:
        if what not in self.overhead:
            self.overhead.append(what)

    def stand_aside(self) -> None:
        """What follows is no part of a step, though it may fetch batches: logging, saving, evaluating."""
        self._aside += 1

    def come_back(self) -> bool:
        """Whether nothing else stands aside."""
        self._aside -= 1
        return not self._aside

    @property
    def has_begun(self) -> bool:
        """Whether a batch was fetched, or computed."""
        return self.data_wait_s is not None or self._began is not None

    def fetch_begins(self) -> float | None:
        """A batch is about to be fetched; None where that is not the step's waiting, or a part of a fetch already."""
        if self._fetching or self._aside or threading.get_ident() != self._thread:
            return None
        self._fetching = True
        return time.monotonic()

    def fetch_ends(self, began: float | None) -> None:
        """`began`: what `fetch_begins` said."""
        if began is not None:
            self._fetching = False
            self.data_wait_s = (self.data_wait_s or 0.0) + time.monotonic() - began

    def computing(self) -> None:
        """The forward of a micro-batch is about to begin."""
        if self._began is None:
            self._began = time.monotonic()
            if self.mark is not None:
                self.marks = self.mark(None), None

    def computed(self) -> None:
        """The backward of a micro-batch has ended; of the last one in the step, what follows is the optimizer's."""
        self._computed = time.monotonic()
        if self.mark is not None:
            self.marks = self.marks[0], self.mark(self.marks[1])

    def host_seconds(self, now: float) -> dict[str, float | None]:
        """Fields of a `step` event for a step that ends `now`, on the host's clock."""
        known = self._began is not None and self._computed is not None
        return {
            "data_wait_seconds": self.data_wait_s,
            "forward_backward_seconds": self._computed - self._began if known else None,  # type: ignore[operator]
            "optimizer_seconds": now - self._computed if known else None,  # type: ignore[operator]
        }


class Fetching:
    """An iterator over batches that times the waiting for each."""

    def __init__(self, batches: Any, step: RunningStep) -> None:
        self._batches, self._step = batches, step

    def __iter__(self) -> "Fetching":
        return self

    def __next__(self) -> Any:
        began = self._step.fetch_begins()
        try:
            return next(self._batches)
        finally:
            self._step.fetch_ends(began)


def local(value: Any) -> Any:
    """A DTensor's value where every rank has it; gathering it would be a collective of our own."""
    if not hasattr(value, "to_local"):
        return value
    return value.to_local() if all(placement.is_replicate() for placement in value.placements) else None
