"""Steps whose device has not caught up: order, no waiting, and a device that fails or hangs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.probe.journal import JournalFile
from harness.probe.layout import JobPaths
from harness.probe.measure import Meter
from harness.probe.pending import Ended, Pending, Read
from harness.probe.running import RunningStep
from harness.probe.tokens import Counts


class Event:
    """A CUDA event that passes when told to, or whose device has failed; `at` is the device's clock, in seconds."""

    def __init__(self, at: float = 0.0, device: "OnDevice | None" = None) -> None:
        self.at, self._device = at, device
        self.passed: bool | None = False

    def record(self) -> None:
        assert self._device is not None
        self.at = self._device.now

    def query(self) -> bool:
        if self.passed is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.passed

    def elapsed_time(self, after: "Event") -> float:
        return (after.at - self.at) * 1000


class OnDevice(Pending):
    """Pending with events that the test holds in its hand, in place of torch's."""

    def __init__(self, emit: Callable[[Read], None]) -> None:
        super().__init__(emit)
        self.events: list[Event] = []

        self.now = 0.0

    def _copy(self, ended: Ended) -> None:
        pass

    def _new_event(self) -> Event:
        self.events.append(Event(self.now, self))
        return self.events[-1]

    def all_pass(self) -> None:
        for event in self.events:
            event.passed = True
        self.drain()


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
        pending.now += 0.25
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
    pending.all_pass()
    assert steps(written) == [1, 2, 3, 1]
    assert written[-1].device_seconds is None


def test_what_comes_between_two_steps_is_no_part_of_the_next(written: list[Read]) -> None:
    pending = OnDevice(written.append)
    for number, between in ((1, 0.0), (2, 8.0), (3, 0.0)):
        pending.now += 0.5
        pending.add(step(number), cuda=True)
        if between:
            pending.now += between
            pending.begin_anew()
    pending.all_pass()
    assert [read.device_seconds for read in written] == [None, 0.5, 0.5]


@pytest.mark.parametrize("lost", ["the end of step 2", "the start after step 2"])
def test_a_step_whose_start_could_not_be_recorded_has_no_time(written: list[Read], lost: str) -> None:
    class Full(OnDevice):
        full = False

        def _new_event(self) -> Event:
            if self.full:
                raise RuntimeError("CUDA out of memory")
            return super()._new_event()

    pending = Full(written.append)
    for number in (1, 2, 3, 4):
        pending.now += 0.5
        pending.full = number == 2 and lost.startswith("the end")
        pending.add(step(number), cuda=True)
        pending.full = number == 2 and lost.startswith("the start")
        if pending.full:
            pending.begin_anew()
    pending.all_pass()
    times = {read.ended.fields["step"]: read.device_seconds for read in written}
    assert (times[3], times[4]) == (None, 0.5)


def test_a_step_of_a_trainer_is_timed_from_the_end_of_its_logging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def new_event(_: Pending) -> Event:
        event = Event(clock[0])
        event.passed = True
        return event

    monkeypatch.setattr(Pending, "_new_event", new_event)
    job = JobPaths(tmp_path)
    meter = Meter(job, 0, JournalFile(job.events(0)), set())
    args = SimpleNamespace(
        device=SimpleNamespace(type="cuda"), n_gpu=1, per_device_train_batch_size=1, gradient_accumulation_steps=1
    )
    state = SimpleNamespace(global_step=0, max_steps=4, train_batch_size=1)
    meter.begin(args, state, torch.nn.Linear(1, 1), None)
    for number in (1, 2, 3, 4):
        clock[0] += 0.5
        meter.step_ended(number, None)
        if number == 2:
            meter.saved(number)
            clock[0] += 8.0
        meter.add_overhead(8.0)
    meter.end()
    lines = [json.loads(line) for line in job.events(0).read_text().splitlines()]
    ended = [event for event in lines if event["e"] == "step"]
    assert [event["device_seconds"] for event in ended] == [None, 0.5, 0.5, 0.5]
    assert [event["overhead_seconds"] for event in ended] == [0.0, 0.0, 8.0, 0.0]
    assert [event["overhead"] for event in ended] == [[], [], ["save"], []]
    assert not [event for event in lines if event["e"] == "probe_error"]


def test_the_parts_of_a_step_are_by_the_devices_clock(written: list[Read]) -> None:
    pending = OnDevice(written.append)
    running = RunningStep()
    running.mark = pending.mark
    for number in (1, 2):
        pending.now += 0.125  # of which the device knows only that it computes nothing
        for _ in range(2):  # micro-batches
            running.computing()
            pending.now += 0.25
            running.computed()
        pending.now += 0.0625
        ended = Ended({"step": number, **running.host_seconds(0.0)}, {}, None, marks=running.marks)
        running.reset()
        pending.add(ended, cuda=True)
    pending.all_pass()
    parts = {"forward_backward_seconds": 0.5, "optimizer_seconds": 0.0625}
    assert [read.parts for read in written] == [parts, parts]
    assert [read.device_seconds for read in written] == [None, 0.125 + 0.5 + 0.0625]


@pytest.mark.parametrize("fails", ["begin", "end", "device"])
def test_parts_whose_events_are_lost_are_not_known(written: list[Read], fails: str) -> None:
    pending = OnDevice(written.append)
    marks = (None if fails == "begin" else pending.mark(None), None if fails == "end" else pending.mark(None))
    pending.add(Ended({"step": 1}, {}, None, marks=marks), cuda=True)
    if fails == "device":
        for event in pending.events:
            event.passed = None
        pending.flush(10.0)
        assert pending.mark(None) is None
    pending.all_pass()
    assert written[0].parts == {"forward_backward_seconds": None, "optimizer_seconds": None}


def test_on_the_cpu_the_hosts_clock_stands(written: list[Read]) -> None:
    Pending(written.append).add(step(1), cuda=False)
    assert written[0].parts == {}


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
        def _copy(self, ended: Ended) -> None:
            if ended.fields["step"] == 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 MiB.")

    pending = Full(written.append)
    for number in (1, 2, 3):
        pending.add(step(number, loss=object() if number == 2 else 1.5), cuda=True)
    pending.all_pass()
    assert [(read.ended.fields["step"], read.numbers["loss"]) for read in written] == [(1, 1.5), (2, None), (3, 1.5)]
    assert [read.device_seconds for read in written] == [None] * 3


def test_token_counts_that_the_device_kept() -> None:
    far = object()
    counts = Counts(padded=8, samples=2, micro_batches=2, non_pad=[3, far], trainable=[far, 1])
    assert len(counts.device_numbers) == 2
    assert counts.fields([4, 2])["non_pad"] == 7
    assert counts.fields([4, 2])["trainable"] == 3
    assert counts.fields(None)["non_pad"] is None
    assert "device failed" in counts.fields(None)["reason"]
