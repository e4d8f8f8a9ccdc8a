"""Parts of a step, what ended training, and what was compiled, from hand-made journals, worked out by hand."""

from typing import Any

import pytest

from harness.journal import Event
from harness.record import Measurements
from tests.unit.journals import event, rank, step
from tests.unit.metrics.recorded import measure

SEGMENT = event("segment", segment=0, split_reason=None)
UNTIL = {"until": {"interval": 0.02}}


def parted(number: int, data: float | None = 0.03, **fields: Any) -> Event:
    parts = {"data_wait_seconds": data, "forward_backward_seconds": 0.05, "optimizer_seconds": 0.01}
    return step(number, **(parts | fields))


def of(*steps: Event, segment: Event = SEGMENT) -> Measurements:
    return measure(rank(0, segment, *steps))


def test_parts_and_what_is_left_add_up_to_the_mean_step() -> None:
    measured = of(*(parted(n, data=0.02 if n % 2 else 0.04) for n in range(1, 20)))  # 16 measured: 8 and 8
    assert measured.data_wait_s == pytest.approx(0.03)
    assert measured.forward_backward_s == pytest.approx(0.05)
    assert measured.optimizer_s == pytest.approx(0.01)
    assert measured.step_rest_s == pytest.approx(0.01)
    shares = {"data_wait": 0.3, "forward_backward": 0.5, "optimizer": 0.1, "step_rest": 0.1}
    assert measured.step_shares == pytest.approx(shares)
    assert measured.rank_data_wait_s == pytest.approx({0: 0.03})


def test_time_for_logging_is_apart() -> None:
    logs = [parted(n, seconds=0.3, overhead_seconds=0.2, overhead=["log"]) for n in (10, 15)]
    steps = [parted(n) for n in range(1, 20) if n not in (10, 15)]
    measured = of(*sorted([*steps, *logs], key=lambda event: int(event["step"])))
    assert measured.log_save_eval_s == pytest.approx(0.4)
    assert measured.step_rest_s == pytest.approx(0.01)


def test_the_slowest_ranks_parts_and_each_ranks_wait() -> None:
    fast = [parted(n, data=0.01) for n in range(1, 20)]
    slow = [parted(n, data=0.05, seconds=0.12) for n in range(1, 20)]
    measured = measure(rank(0, SEGMENT, *fast), rank(1, SEGMENT, *slow))
    assert measured.data_wait_s == pytest.approx(0.05)
    assert measured.step_shares["data_wait"] == pytest.approx(0.05 / 0.12)
    assert measured.rank_data_wait_s == pytest.approx({0: 0.01, 1: 0.05})


def test_a_wait_that_the_device_did_not_feel_leaves_no_rest() -> None:
    measured = of(*(parted(n, data=0.06, device_seconds=0.1) for n in range(1, 20)))
    assert measured.data_wait_s == pytest.approx(0.06)
    assert measured.step_rest_s is None
    assert measured.reasons["step_rest_s"].startswith("the parts take 0.12 s of 0.1: the wait for data passed while")
    assert "step_rest" not in measured.step_shares


def test_a_program_without_a_trainer_has_a_wait_alone() -> None:
    why = "a program without a Trainer"
    steps = [parted(n, forward_backward_seconds=None, optimizer_seconds=None) for n in range(1, 20)]
    measured = of(*steps, segment=event("segment", segment=0, split_reason=why))
    assert measured.step_shares == pytest.approx({"data_wait": 0.3})
    assert (measured.forward_backward_s, measured.optimizer_s) == (None, None)
    assert (measured.reasons["forward_backward_s"], measured.reasons["optimizer_s"]) == (why, why)
    assert measured.reasons["step_rest_s"] == "forward_backward_s is not known"


def test_an_optimizer_within_the_backward_costs_its_own_figure_alone() -> None:
    why = "DeepSpeed takes the optimizer's step within the backward"
    steps = [parted(n, optimizer_seconds=None) for n in range(1, 20)]
    measured = of(*steps, segment=event("segment", segment=0, split_reason=why))
    assert measured.forward_backward_s == pytest.approx(0.05)
    assert (measured.optimizer_s, measured.reasons["optimizer_s"]) == (None, why)


@pytest.mark.parametrize("name", ["data_wait_s", "forward_backward_s", "optimizer_s"])
def test_a_single_step_without_a_part_has_no_mean(name: str) -> None:
    field = {"data_wait_s": "data_wait_seconds", "forward_backward_s": "forward_backward_seconds"}
    lacking = parted(12, **{field.get(name, "optimizer_seconds"): None})
    measured = of(*(lacking if n == 12 else parted(n) for n in range(1, 20)))
    assert getattr(measured, name) is None
    assert "step 12" in measured.reasons[name]


def test_journals_of_before_have_no_parts() -> None:
    measured = of(*(step(n) for n in range(1, 20)))
    assert (measured.data_wait_s, measured.step_rest_s, measured.rank_data_wait_s) == (None, None, {})


def stopped(*events: Event, scenario: dict[str, Any] | None = None) -> Measurements:
    return measure(rank(0, SEGMENT, *(step(n) for n in range(1, 20)), *events), scenario=scenario)


def test_why_training_ended() -> None:
    stop = event("stop", 20.0, step=19, why="interval", interval=0.011, measured=16)
    measured = stopped(stop, scenario=UNTIL)
    assert (measured.stopped_by, measured.stop_interval) == ("interval", 0.011)
    assert "interval_not_reached" not in measured.flags


@pytest.mark.parametrize("interval, said", [(0.031, "is 3.1 % wide"), (None, "is not known")])
def test_a_bound_that_came_first_is_flagged(interval: float | None, said: str) -> None:
    stop = event("stop", 20.0, step=19, why="max_steps", interval=interval, measured=5)
    measured = stopped(stop, scenario=UNTIL)
    assert measured.stopped_by == "max_steps"
    assert measured.flags["interval_not_reached"] == (
        f"max_steps ended training at step 19: the median's interval {said}, 2 % was asked for"
    )
    if interval is None:
        assert measured.reasons["stop_interval"] == "5 measured steps are too few to tell"


def test_nobody_asked_training_to_stop() -> None:
    measured = stopped()
    assert (measured.stopped_by, measured.stop_interval) == (None, None)
    assert measured.reasons["stopped_by"] == "the scenario has no measure: until, or training did not end well"


def compiled(seconds: float, **fields: Any) -> Event:
    counts = {"compilations": 4, "recompiles": 1, "graph_breaks": 0, "cache_hits": 0, "cache_misses": 4}
    return event("compile", seconds=seconds, segment=0, step=1, **(counts | fields))


def test_the_rank_that_compiled_longest() -> None:
    ranks = [rank(n, SEGMENT, compiled(1.0), compiled(2.0 + n, recompiles=n)) for n in (0, 1)]
    measured = measure(*ranks)
    assert (measured.compile_s, measured.compilations, measured.recompiles, measured.graph_breaks) == (3.0, 4, 1, 0)
    assert measured.compile_cache == "cold"


@pytest.mark.parametrize("hits, misses, cache", [(3, 0, "warm"), (0, 3, "cold"), (2, 1, "mixed"), (0, 0, None)])
def test_the_cache_of_compiled_code(hits: int, misses: int, cache: str | None) -> None:
    measured = measure(rank(0, SEGMENT, compiled(1.0, cache_hits=hits, cache_misses=misses)))
    assert measured.compile_cache == cache


def test_nothing_was_compiled() -> None:
    measured = measure(rank(0, SEGMENT))
    assert (measured.compile_s, measured.compile_cache, measured.recompiles) == (None, None, None)
    assert measured.reasons["compile_s"] == "nothing was compiled"


def test_what_a_segment_that_another_rank_lacks_has_cost_is_not_told() -> None:
    logs = [parted(n, seconds=0.2, overhead_seconds=0.1, overhead=["log"]) for n in range(1, 20)]
    later = [parted(n, segment=1, overhead_seconds=7.0, overhead=["save"]) for n in range(1, 20)]
    measured = measure(rank(0, SEGMENT, *logs, *later), rank(1, SEGMENT, *logs))
    assert measured.log_save_eval_s == pytest.approx(19 * 0.1)
