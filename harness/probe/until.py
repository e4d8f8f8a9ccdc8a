"""Ends the training of the built-in target once the median step time is known well enough: `measure: {until: ...}`.

Rank 0 looks at its own steps every so many of them, by the statistics that the record's figures have, and sends all
ranks the step to stop at, which lies as many steps ahead: nobody waits for the word, and nobody decides alone."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import measure
from .journal import net_seconds
from .settling import FEWEST, find_cut, median_interval, undisturbed


@dataclass
class Series:
    """The steps of the last segment that this rank has taken, as far as their times are known."""

    times: list[float] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    _segment: Any = None

    def saw(self, step: dict[str, Any]) -> None:
        """`step`: fields of a `step` event."""
        if step["segment"] != self._segment:
            self._segment, self.times, self.tags = step["segment"], [], []
        self.times.append(net_seconds(step))
        self.tags.append(list(step["overhead"]))

    def interval(self) -> tuple[float | None, int]:
        """(width of the median's interval over the median, number of steps measured); None: too few to tell."""
        places, _ = undisturbed(self.tags, find_cut(self.times))
        times = [self.times[place] for place in places]
        if len(times) < FEWEST or not (median := statistics.median(times)):
            return None, len(times)
        low, high = median_interval(times)
        return (high - low) / median, len(times)


class Stopping:
    """What all ranks do alike after each step; the word is rank 0's."""

    def __init__(self, until: dict[str, Any], send: "Callable[[int], Callable[[], int]]", *, decides: bool) -> None:
        """`until`: the scenario's; `send`: brings rank 0's number to all ranks, and returns what waits for it to be
        there and tells it; `decides`: this is rank 0."""
        self._until, self._send, self._decides = until, send, decides
        self.series = Series()
        self.begin()

    def begin(self) -> None:
        """Training begins, or begins anew."""
        self._began = time.monotonic()
        self._heard: Callable[[], int] | None = None
        self._stop_at = 0
        self.why = "max_steps"

    def ends_at(self, step: int) -> bool:
        """Whether training stops with this step, which has ended."""
        if step % self._until["every"]:
            return False
        if self._heard is not None:
            self._stop_at, self._heard = self._heard(), None
        if self._stop_at:
            return step >= self._stop_at
        ahead = step + self._until["every"]
        if ahead < self._until["max_steps"]:
            self._heard = self._send(ahead if self._decides and self._has_enough(step) else 0)
        return False

    def _has_enough(self, step: int) -> bool:
        limit_s = self._until["max_time_s"]
        if limit_s is not None and time.monotonic() - self._began >= limit_s:
            self.why = "max_time"
            return True
        if step < self._until["min_steps"]:
            return False
        began = time.monotonic()
        interval, _ = self.series.interval()
        measure.aside(time.monotonic() - began)
        if interval is None or interval > self._until["interval"]:
            return False
        self.why = "interval"
        return True

    def tell(self, step: int) -> None:
        """Journal why training has stopped, on the rank that decides."""
        if self._decides:
            interval, measured = self.series.interval()
            measure.journal("stop", step=step, why=self.why, interval=interval, measured=measured)


def sender(device: Any) -> "Callable[[int], Callable[[], int]]":
    """Brings a number of rank 0 to all ranks without making anybody wait: see `Stopping`."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return lambda number: lambda: number

    def send(number: int) -> Callable[[], int]:
        word = torch.full((), number, device=device, dtype=torch.int64)  # a copy would wait for the device
        work = distributed.broadcast(word, 0, async_op=True)
        if word.is_cpu:
            return lambda: _after(work.wait, word)
        work.wait()  # of NCCL's: the device waits, the host does not
        copied = word.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return lambda: _after(event.synchronize, copied)

    return send


def _after(wait: Callable[[], object], word: Any) -> int:
    wait()
    return int(word.item())


def stopping_callback(until: dict[str, Any], arguments: Any) -> Any:
    """A callback for the Trainer that is made with these TrainingArguments."""
    from transformers import TrainerCallback

    rank = arguments.process_index
    stopping = Stopping(until, sender(arguments.device), decides=rank == 0)
    if rank == 0:
        measure.follow(stopping.series.saw)

    class StoppingCallback(TrainerCallback):  # type: ignore[misc]
        """After the probe's own callback, which has told of the step by then."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            stopping.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if stopping.ends_at(state.global_step):
                control.should_training_stop = True

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            stopping.tell(state.global_step)

    return StoppingCallback()
