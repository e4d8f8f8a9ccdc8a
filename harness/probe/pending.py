"""Steps that have ended on the host and may still run on the device: their figures are read when they are there.

Nothing here waits for the device within a step: numbers are copied without blocking into pinned memory, and read once
the event recorded after the copies has passed."""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .tokens import Counts


@dataclass
class Ended:
    """One step.  `numbers` are floats, None, or 0-dim tensors; those on a device turn into host copies in `add`."""

    fields: dict[str, Any]
    numbers: dict[str, Any]
    counts: Counts | str | None  # a text: why there are no counts; None: nobody counts here
    event: Any = None
    before: Any = None
    token_copy: Any = None
    marks: tuple[Any, Any] = (None, None)  # events at the first forward's begin and the last backward's end
    on_device: bool = False

    @property
    def device_numbers(self) -> list[Any]:
        return self.counts.device_numbers if isinstance(self.counts, Counts) else []

    def read(self, *, lost: bool) -> "Read":
        """Turn copies into numbers; `lost`: the device failed and the copies hold nothing."""
        if lost:
            numbers = {name: value if isinstance(value, float) else None for name, value in self.numbers.items()}
            return Read(self, numbers, None, None, self._parts(lost=lost))
        numbers = {name: _float(value) for name, value in self.numbers.items()}
        tokens = (
            [int(number) for number in self.device_numbers] if self.token_copy is None else self.token_copy.tolist()
        )
        known = self.before is not None and self.before.query()  # not so when the target has changed its stream
        seconds = self.before.elapsed_time(self.event) / 1000 if known else None
        return Read(self, numbers, tokens, seconds, self._parts(lost=lost))

    def _parts(self, *, lost: bool) -> dict[str, float | None]:
        """The parts of the step by the device's clock, in seconds; nothing to say on the CPU."""
        if not self.on_device:
            return {}
        began, computed = self.marks
        events = (began, computed, self.event)
        if lost or any(event is None or not event.query() for event in events):
            return dict.fromkeys(("forward_backward_seconds", "optimizer_seconds"))
        return {
            "forward_backward_seconds": began.elapsed_time(computed) / 1000,
            "optimizer_seconds": computed.elapsed_time(self.event) / 1000,
        }


@dataclass
class Read:
    """A step whose figures were read; `tokens` are the values of `Counts.device_numbers`."""

    ended: Ended
    numbers: dict[str, float | None]
    tokens: list[int] | None
    device_seconds: float | None
    parts: dict[str, float | None]  # of the step, where the device tells them


@dataclass
class Pending:
    """The steps not yet written, in order; `emit` gets each once."""

    emit: Callable[[Read], None]
    _waiting: deque[Ended] = field(default_factory=deque)
    _previous: Any = None  # the event from which the next step is timed; None: that step has no device time
    _failed: bool = False

    def new_segment(self) -> None:
        self._previous = None

    def add(self, ended: Ended, *, cuda: bool) -> None:
        """Take a step that has just ended; on the CPU it is written at once."""
        if not cuda or self._failed:
            ended.on_device = cuda
            self.emit(ended.read(lost=self._failed))
            return
        ended.on_device = True
        before, self._previous = self._previous, None
        try:
            self._copy(ended)
            ended.before, ended.event = before, self._new_event()
            self._previous = ended.event
        except RuntimeError:  # no memory for a copy, or a failed device; the step has ended all the same
            pass  # the next step has no start: its time must not span two
        self._waiting.append(ended)
        self.drain()

    def mark(self, event: Any) -> Any:
        """Record an event within a step: `event` again, or a new one; None where the device does not take it."""
        if self._failed:
            return None
        try:
            if event is None:
                return self._new_event()
            event.record()
        except RuntimeError:
            return None
        return event

    def begin_anew(self) -> None:
        """The next step's device time begins now: something that is no part of it has come between."""
        self._previous = None
        if not self._failed:
            with contextlib.suppress(RuntimeError):
                self._previous = self._new_event()

    def drain(self, wait_s: float = 0.0) -> None:
        """Write the steps whose events have passed, waiting at most `wait_s` seconds for the others to pass.

        Polls instead of synchronising: behind a collective whose peer has died, a synchronisation never returns.
        """
        deadline = time.monotonic() + wait_s
        while self._waiting:
            if not self._passed(self._waiting[0]):
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.0005)
                continue
            ended = self._waiting.popleft()
            self.emit(self._read(ended))

    def flush(self, wait_s: float) -> None:
        """Drain, then write what is left without its figures: the device is stuck or failed."""
        self.drain(wait_s)
        while self._waiting:
            self.emit(self._waiting.popleft().read(lost=True))

    def _copy(self, ended: Ended) -> None:
        import torch

        for name, value in ended.numbers.items():
            if isinstance(value, torch.Tensor):
                ended.numbers[name] = value.detach().to("cpu", non_blocking=True)  # into pinned memory
        if numbers := ended.device_numbers:
            ended.token_copy = torch.stack(numbers).to("cpu", non_blocking=True)

    def _new_event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _passed(self, ended: Ended) -> bool:
        if self._failed or ended.event is None:
            return True
        try:
            return bool(ended.event.query())
        except RuntimeError:  # a CUDA error stays with the process: no later query can succeed
            self._failed = True
            return True

    def _read(self, ended: Ended) -> Read:
        if not self._failed and ended.event is not None:
            try:
                return ended.read(lost=False)
            except RuntimeError:
                self._failed = True
        return ended.read(lost=True)


def _float(value: Any) -> float | None:
    if value is None or isinstance(value, float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None  # a tensor of several elements, or something else than a number
