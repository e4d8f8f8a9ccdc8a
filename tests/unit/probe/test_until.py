"""When training stops, decided by one rank and heard by all: several `Stopping`s in turn, without processes."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from harness.metrics.steady import summarise
from harness.probe.settling import find_cut
from harness.probe.until import Series, Stopping

EVERY = 10
UNTIL: dict[str, Any] = {"interval": 0.02, "min_steps": 20, "max_steps": 200, "max_time_s": None, "every": EVERY}


class Wire:
    """Brings rank 0's number to the others; a rank that asks before rank 0 has sent it has no answer."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}

    def sender(self, rank: int) -> Callable[[int], Callable[[], int]]:
        calls = 0

        def send(number: int) -> Callable[[], int]:
            nonlocal calls
            calls += 1
            mine = calls
            if rank == 0:
                self.sent[mine] = number
            return lambda: self.sent[mine]

        return send


def step(seconds: float, segment: int = 0, overhead: list[str] | None = None) -> dict[str, Any]:
    return {"segment": segment, "seconds": seconds, "overhead_seconds": 0.0, "overhead": overhead or []}


def run(times: Callable[[int], float], ranks: int = 2, **changes: Any) -> tuple[list[int], Stopping]:
    """(the last step of each rank, rank 0)."""
    wire, until = Wire(), UNTIL | changes
    all_ranks = [Stopping(until, wire.sender(rank), decides=rank == 0) for rank in range(ranks)]
    last = [until["max_steps"]] * ranks
    for number in range(1, until["max_steps"] + 1):
        all_ranks[0].series.saw(step(times(number)))
        ends = [stopping.ends_at(number) for stopping in all_ranks]
        last = [min(before, number) if end else before for before, end in zip(last, ends, strict=True)]
        if any(ends):
            break
    return last, all_ranks[0]


def test_a_quiet_series_ends_after_the_least_steps_on_all_ranks() -> None:
    last, first = run(lambda number: 0.1)
    assert last == [30, 30]  # asked at step 20, heard at step 30
    assert first.why == "interval"


def test_a_noisy_series_goes_on_until_it_is_known_well_enough() -> None:
    generator = random.Random(0)
    noise = [0.1 * (1 + generator.gauss(0, 0.03)) for _ in range(201)]
    last, first = run(lambda number: noise[number])
    assert last[0] == last[1]
    assert 30 < last[0] < 200
    assert first.why == "interval"
    # The decision was made by the figures that the record would have had then.
    seen = noise[1 : last[0] - EVERY + 1]
    summary = summarise(seen[find_cut(seen) :])
    assert (summary.high - summary.low) / summary.median <= 0.02
    earlier = seen[:-EVERY]
    summary = summarise(earlier[find_cut(earlier) :])
    assert (summary.high - summary.low) / summary.median > 0.02 or len(earlier) < 20


@pytest.mark.parametrize(
    "changes, last, why",
    [({"max_time_s": 0.0}, 20, "max_time"), ({"interval": 0.0, "max_steps": 47}, 47, "max_steps")],
)
def test_a_bound_ends_it(changes: dict[str, Any], last: int, why: str) -> None:
    found, first = run(lambda number: 0.1 * (1 + number % 2), **changes)
    assert (found, first.why) == ([last, last], why)


def test_one_rank_stops_where_two_do() -> None:
    assert run(lambda number: 0.1, ranks=1)[0] == [30]


def test_a_segment_that_begins_anew_forgets_the_steps_before() -> None:
    series = Series()
    for _ in range(20):
        series.saw(step(0.1))
    assert series.interval() == (0.0, 17)
    series.saw(step(0.2, segment=1))
    assert series.interval() == (None, 1)


def test_disturbed_steps_are_left_out() -> None:
    series = Series()
    for number in range(40):
        series.saw(step(0.1 if number % 4 else 5.0, overhead=[] if number % 4 else ["save"]))
    interval, measured = series.interval()
    assert (interval, measured) == (0.0, 28)
