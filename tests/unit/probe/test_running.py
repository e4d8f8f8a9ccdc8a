"""Where the time of a running step goes, on a clock that the test holds in its hand."""

import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe import hooks
from harness.probe.measure import Meter
from harness.probe.running import Fetching, RunningStep


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def batches(clock: Clock, seconds: float, count: int) -> Iterator[int]:
    for number in range(count):
        clock.now += seconds
        yield number


def test_the_parts_of_a_step(clock: Clock) -> None:
    step = RunningStep()
    fetched = list(Fetching(batches(clock, 0.25, 2), step))
    clock.now += 1.0  # the ranks tell each other how many tokens they have
    for _ in fetched:
        step.computing()
        clock.now += 2.0
        step.computed()
        clock.now += 0.5
    assert step.host_seconds(clock.now) == {
        "data_wait_seconds": 0.5,
        "forward_backward_seconds": 2.0 + 0.5 + 2.0,
        "optimizer_seconds": 0.5,
    }
    step.reset()
    assert set(step.host_seconds(clock.now).values()) == {None}


def test_a_fetch_within_a_fetch_counts_once(clock: Clock) -> None:
    step = RunningStep()
    inner = Fetching(batches(clock, 0.25, 2), step)
    assert list(Fetching(inner, step)) == [0, 1]
    assert step.data_wait_s == 0.5


def test_what_is_fetched_for_an_evaluation_is_no_waiting(clock: Clock) -> None:
    step = RunningStep()
    step.stand_aside()
    list(Fetching(batches(clock, 0.25, 2), step))
    step.come_back()
    assert step.data_wait_s is None
    list(Fetching(batches(clock, 0.25, 1), step))
    assert step.data_wait_s == 0.25


def test_an_evaluation_within_another_thing_aside_counts_once(meter: Meter, clock: Clock) -> None:
    class Trainer:
        def evaluate(self) -> None:
            clock.now += 2.0

        def _maybe_log_save_evaluate(self) -> None:
            clock.now += 0.5
            self.evaluate()

        predict = train = training_step = save_model = evaluate

    hooks.wrap_trainer(Trainer, lambda trainer: meter, meter)
    trainer: Any = Trainer()
    trainer.evaluate()
    assert (meter.step.overhead, meter.step.overhead_s) == ([], 0.0)  # nothing trains
    meter.depth = 1
    trainer._maybe_log_save_evaluate()
    assert (meter.step.overhead, meter.step.overhead_s) == (["eval"], 2.5)
    trainer.evaluate()
    assert meter.step.overhead_s == 4.5
    assert meter.step.fetch_begins() is not None
    assert '"probe_error"' not in meter.job.events(0).read_text()


def test_a_step_that_is_interrupted_has_no_time_of_the_devices(meter: Meter) -> None:
    asked: list[str] = []
    pending: Any = SimpleNamespace(
        begin_anew=lambda: asked.append("anew"), new_segment=lambda: asked.append("unknown"), flush=lambda wait_s: None
    )
    meter._cuda, meter._pending = True, pending
    meter.add_overhead(1.0, always=True)
    meter.step.computing()
    meter.add_overhead(1.0, always=True)
    assert asked == ["anew", "unknown"]


def test_a_thread_that_fetches_ahead_keeps_nobody_waiting(clock: Clock) -> None:
    step = RunningStep()
    ahead = threading.Thread(target=lambda: list(Fetching(batches(clock, 0.25, 2), step)))
    ahead.start()
    ahead.join()
    assert step.data_wait_s is None


def test_a_fetch_that_fails_is_waited_for(clock: Clock) -> None:
    def broken() -> Iterator[int]:
        clock.now += 0.25
        raise OSError("the disk is gone")
        yield 0

    step = RunningStep()
    with pytest.raises(OSError, match="gone"):
        next(Fetching(broken(), step))
    assert step.data_wait_s == 0.25
    assert step.fetch_begins() is not None


def test_the_loader_of_a_version_with_another_iterator_is_left_alone() -> None:
    """`patch_loader` fails under the guard of the import hook: the program goes on."""
    with pytest.raises(AttributeError):
        hooks.patch_loader(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]


def one_step(meter: Meter, clock: Clock, optimizer: str) -> dict[str, Any]:
    """A step of a Trainer on the CPU, computing for 2 s; the fields of its event."""
    import torch

    told: list[dict[str, Any]] = []
    meter.follower = told.append
    args = SimpleNamespace(
        device=torch.device("cpu"), per_device_train_batch_size=1, gradient_accumulation_steps=1, optim=optimizer
    )
    state = SimpleNamespace(global_step=0, max_steps=1, train_batch_size=1)
    meter.begin(args, state, torch.nn.Linear(1, 1), None)
    meter.add_overhead(4.0)  # nothing was logged
    meter.add_overhead(0.25, always=True)  # a look at the steps so far
    meter.step.computing()
    clock.now += 2.0
    meter.step.computed()
    clock.now += 0.5
    meter.step_ended(1, None)
    return told[0]


@pytest.mark.parametrize("optimizer, seconds", [("adamw_torch", 0.5), ("lomo", None)])
def test_who_follows_hears_of_each_step(meter: Meter, clock: Clock, optimizer: str, seconds: float | None) -> None:
    step = one_step(meter, clock, optimizer)
    assert (step["step"], step["seconds"], step["overhead_seconds"]) == (1, 2.5, 0.25)
    assert (step["forward_backward_seconds"], step["optimizer_seconds"]) == (2.0, seconds)
    reasons = [json.loads(line).get("split_reason") for line in meter.job.events(0).read_text().splitlines()]
    assert any(reasons) == (seconds is None)


@pytest.mark.parametrize("args", [(), ([1, 2],), (None, 2)])
def test_batches_that_come_in_another_way_are_passed_on(args: tuple[Any, ...]) -> None:
    meter: Any = SimpleNamespace(step=RunningStep())
    assert hooks._timed(args, meter) == args
