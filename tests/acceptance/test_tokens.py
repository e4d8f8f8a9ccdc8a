"""Tokens of real jobs, 2 ranks with 2 loader workers each, against a count over the very data."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.probe.synthetic import count, layout
from harness.record import Record, read_record
from tests.acceptance.conftest import Bench

pytestmark = pytest.mark.slow

RANKS, BATCH = 2, 2
LENGTHS = {"distribution": "uniform", "min": 4, "max": 32}
# case -> (packing, accumulation)
LAYOUTS = {"padded": ("padded", 1), "packed": ("packed", 1), "accumulated": ("padded", 2)}


def data_of(packing: str, rows_a_step: int) -> dict[str, Any]:
    """Data whose rows make whole steps, so that one pass over them is a whole number of steps."""
    for samples in range(48, 200):
        data = {
            "samples": samples,
            "sequence_length": 32,
            "lengths": LENGTHS,
            "packing": packing,
            "workers": 2,
            "seed": 7,
        }
        if layout(data).rows % rows_a_step == 0:
            return data
    raise AssertionError("no number of samples makes whole steps")


def scenario(name: str, packing: str, accumulation: int) -> dict[str, Any]:
    rows_a_step = RANKS * BATCH * accumulation
    data = data_of(packing, rows_a_step)
    return {
        "name": name,
        "model": "tiny-llama",
        "method": "full",
        "processes": RANKS,
        "data": data,
        "training": {
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": accumulation,
            "max_steps": layout(data).rows // rows_a_step,
        },
    }


@pytest.fixture(scope="module", params=["0", "2"], ids=["n0", "n2"])
def records(request: pytest.FixtureRequest, make_bench: Callable[[str], Bench]) -> dict[str, Record]:
    scenarios = [scenario(name, *how) for name, how in LAYOUTS.items()]
    bench = make_bench(json.dumps({"scenarios": scenarios}))  # JSON is YAML
    done = bench.run("-n", request.param)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [read_record(path) for path in bench.session.glob("*/record.json")]
    return {record.scenario["name"]: record for record in found}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_token_is_counted_once(records: dict[str, Record], name: str) -> None:
    made = layout(scenario(name, *LAYOUTS[name])["data"])
    expected = count(made, range(made.rows))
    measured = records[name].measurements
    assert measured is not None
    assert measured.ranks == RANKS
    assert measured.tokens == {
        "padded": expected.padded,
        "non_pad": expected.non_pad,
        "trainable": expected.trainable,
        "samples": expected.samples,
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_segment_says_what_ran(records: dict[str, Record], name: str) -> None:
    measured = records[name].measurements
    assert measured is not None
    (segment,) = measured.segments
    assert (segment.batch_asked, segment.batch_ran, segment.accumulation) == (BATCH, BATCH, LAYOUTS[name][1])


def test_padding_is_no_work(records: dict[str, Record]) -> None:
    padded, packed = records["padded"].measurements, records["packed"].measurements
    assert padded is not None
    assert packed is not None
    assert (padded.non_pad_tokens_per_s or 0) < (padded.padded_tokens_per_s or 0)
    assert packed.non_pad_tokens_per_s == packed.padded_tokens_per_s


@pytest.mark.parametrize("name", LAYOUTS)
def test_phases_add_up_to_the_wall_time(records: dict[str, Record], name: str) -> None:
    measured = records[name].measurements
    assert measured is not None
    assert measured.wall_s is not None
    assert None not in measured.phases_s.values()
    named = sum(seconds or 0 for phase, seconds in measured.phases_s.items() if phase != "other")
    assert named == pytest.approx(measured.wall_s, rel=0.02)
    assert set(measured.phases_s) == {
        *("lease", "queue", "launch", "import", "setup", "model_load", "data", "first_step", "steady", "teardown"),
        *("shutdown", "other"),
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_was_built_is_what_was_asked_for_and_trained(records: dict[str, Record], name: str) -> None:
    measured = records[name].measurements
    assert measured is not None
    assert measured.built is not None
    assert (measured.built.layers, measured.built.hidden, measured.built.dtype) == (2, 64, "float32")
    assert measured.changed_tensors == measured.trainable_tensors
    assert (measured.data_ranks, measured.ranks_agree) == (RANKS, True)
    assert {"model_disagrees", "ranks_diverged", "ranks_out_of_step"} & set(measured.flags) == set()
    assert measured.mfu is None  # on CPU
    assert (measured.model_flops_per_step or 0) > 0
    assert (measured.model_flops_per_step or 0) <= (measured.hardware_flops_per_step or 0)
