"""Steps whose device has not caught up: order, no waiting, and a device that fails or hangs."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.probe.pending import Ended, Pending, Read
from harness.probe.tokens import Counts


class Event:
    """A CUDA event that passes when told to, or whose device has failed."""

    def __init__(self) -> None:
        self.passed: bool | None = False

    def query(self) -> bool:
        if self.passed is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.passed

    def elapsed_time(self, after: "Event") -> float:
        return 250.0


class OnDevice(Pending):
    """Pending with events that the test holds in its hand, in place of torch's."""

    def __init__(self, emit: Callable[[Read], None]) -> None:
        super().__init__(emit)
        self.events: list[Event] = []

    def _record(self, ended: Ended) -> None:
        ended.before = self._previous
        ended.event = self._previous = Event()
        self.events.append(ended.event)


def step(number: int, loss: Any = 1.5) -> Ended:
    return Ended({"step": number}, {"loss": loss, "grad_norm": None}, None)


@pytest.fixture
def written() -> list[Read]:
    return []


def steps(written: list[Read]) -> list[Any]:
    return [read.ended.fields["step"] for read in written]


def test_on_the_cpu_a_step_is_written_at_once(written: list[Read]) -> None:
    Pending(written.append).add(step(1), cuda=False)
    assert [(read.numbers, read.device_seconds) for read in written] == [({"loss": 1.5, "grad_norm": None}, None)]


def test_steps_are_written_in_order_when_their_events_have_passed(written: list[Read]) -> None:
    pending = OnDevice(written.append)
    for number in (1, 2, 3):
        pending.add(step(number), cuda=True)
    assert written == []
    pending.events[1].passed = True
    pending.drain()
    assert written == []  # the first has not passed
    pending.events[0].passed = True
    pending.drain()
    assert steps(written) == [1, 2]
    assert [read.device_seconds for read in written] == [None, 0.25]
    pending.new_segment()
    pending.add(step(1), cuda=True)
    assert pending.events[-1] is not None
    for event in pending.events:
        event.passed = True
    pending.drain()
    assert steps(written) == [1, 2, 3, 1]
    assert written[-1].device_seconds is None


def test_a_device_that_hangs_does_not_hang_us(written: list[Read]) -> None:
    pending = OnDevice(written.append)
    pending.add(step(1, loss=object()), cuda=True)
    pending.flush(0.01)
    assert steps(written) == [1]
    assert written[0].numbers["loss"] is None


def test_a_device_that_has_failed_is_survived(written: list[Read]) -> None:
    pending = OnDevice(written.append)
    for number in (1, 2):
        pending.add(step(number), cuda=True)
    for event in pending.events:
        event.passed = None
    pending.flush(10.0)
    assert steps(written) == [1, 2]
    pending.add(step(3), cuda=True)  # no event can be recorded any more
    assert steps(written) == [1, 2, 3]


def test_a_copy_that_the_device_has_no_memory_for(written: list[Read]) -> None:
    class Full(OnDevice):
        def _record(self, ended: Ended) -> None:
            if ended.fields["step"] == 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 MiB.")
            super()._record(ended)

    pending = Full(written.append)
    for number in (1, 2, 3):
        pending.add(step(number, loss=object() if number == 2 else 1.5), cuda=True)
    for event in pending.events:
        event.passed = True
    pending.drain()
    assert [(read.ended.fields["step"], read.numbers["loss"]) for read in written] == [(1, 1.5), (2, None), (3, 1.5)]


def test_token_counts_that_the_device_kept() -> None:
    far = object()
    counts = Counts(padded=8, samples=2, micro_batches=2, non_pad=[3, far], trainable=[far, 1])
    assert len(counts.device_numbers) == 2
    assert counts.fields([4, 2])["non_pad"] == 7
    assert counts.fields([4, 2])["trainable"] == 3
    assert counts.fields(None)["non_pad"] is None
    assert "device failed" in counts.fields(None)["reason"]
