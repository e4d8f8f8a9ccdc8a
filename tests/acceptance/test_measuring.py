"""What a real job's record says of where a step's time went, and of what ended training."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.record import Measurements, read_record
from tests.acceptance.conftest import Bench
from tests.unit.probe.jobs import TARGETS

pytestmark = pytest.mark.slow

EVERY = 5
UNTIL: dict[str, Any] = {"interval": 1e-9, "min_steps": 5, "max_steps": 60, "every": EVERY}
SCENARIOS: list[dict[str, Any]] = [
    {
        "name": "bounded",
        "model": "tiny-llama",
        "processes": 2,
        "data": {"samples": 64, "sequence_length": 16},
        "measure": {"until": {**UNTIL, "max_time": 0.001}},  # over at the first look
    },
    {"name": "slow-data", "processes": 1, "trainer": {"target": str(TARGETS / "trainer_script.py"), "args": ["slow"]}},
]


@pytest.fixture(scope="module")
def measured(make_bench: Callable[[str], Bench]) -> dict[str, Measurements]:
    bench = make_bench(json.dumps({"scenarios": SCENARIOS}))
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    records = [read_record(path) for path in bench.session.glob("*/record.json")]
    return {record.scenario["name"]: record.measurements for record in records if record.measurements is not None}


def test_a_slow_dataset_is_a_wait_for_data(measured: dict[str, Measurements]) -> None:
    figures = measured["slow-data"]
    assert figures.data_wait_s is not None
    assert figures.data_wait_s >= 4 * 0.05  # rows of a batch, each of which sleeps
    assert figures.rank_data_wait_s == {0: figures.data_wait_s}
    parts = [figures.data_wait_s, figures.forward_backward_s, figures.optimizer_s, figures.step_rest_s]
    assert None not in parts
    assert sum(part or 0 for part in parts) == pytest.approx(figures.step_time_mean_s)
    assert sum(figures.step_shares.values()) == pytest.approx(1)
    assert (figures.log_save_eval_s or 0) >= 32 * 0.05  # an evaluation of as many rows between two steps
    assert figures.stopped_by is None
    assert figures.compile_s is None


def test_a_bound_ends_training_on_all_ranks(measured: dict[str, Measurements]) -> None:
    figures = measured["bounded"]
    assert figures.stopped_by == "max_time"
    assert figures.steps_seen == 2 * EVERY  # decided at the first look, heard at the next
    assert figures.flags["interval_not_reached"].startswith("max_time ended training at step 10: ")
    assert {"ranks_out_of_step", "ranks_diverged"} & set(figures.flags) == set()
    assert set(figures.rank_data_wait_s) == {0, 1}
    assert None not in (figures.phases_s["queue"], figures.phases_s["launch"])
