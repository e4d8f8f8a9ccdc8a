"""Real jobs whose training comes in several stretches, ends in a NaN, or has steps of unequal size."""

from typing import Any

import pytest

from harness.journal import read_events
from harness.record import Kind, Measurements
from tests.acceptance.conftest import Pod

pytestmark = pytest.mark.slow

ROW = 16  # tokens


def measured(pod: Pod, mode: str, kind: Kind = Kind.NONE) -> Measurements:
    done = pod.run("stretches.py", mode)
    assert done.record is not None, done.stderr
    assert done.record.verdict is not None
    assert done.record.verdict.kind is kind, done.record.verdict.reason
    assert done.record.measurements is not None
    return done.record.measurements


def steps(pod: Pod, kind: str = "step") -> list[dict[str, Any]]:
    return [event for _, event in read_events(pod.job.events(0)) if event["e"] == kind]


def test_a_nan_that_the_trainers_filter_hides_is_in_the_series(pod: Pod) -> None:
    """With logging_nan_inf_filter, the default, the Trainer logs the last good loss in its place."""
    figures = measured(pod, "nan", Kind.NAN_LOSS)
    losses = [step["loss"] for step in steps(pod)]
    assert all(isinstance(loss, float) for loss in losses[:2])
    assert losses[2:] == ["NaN"] * 4
    logged = [event["logs"]["loss"] for event in steps(pod, "log") if "loss" in event["logs"]]
    assert [type(loss) for loss in logged] == [float] * 6  # the journal writes NaN as text
    assert (figures.loss_last, figures.reasons["loss_last"]) == (None, "NaN since step 3 of the segment")


@pytest.mark.parametrize(
    "mode, stretches",
    [
        ("twice", [list(range(1, 7)), list(range(1, 7))]),
        ("resumed", [list(range(1, 5)), list(range(5, 11))]),
    ],
)
def test_what_was_trained_before_counts_in_its_own_segment_alone(
    pod: Pod, mode: str, stretches: list[list[int]]
) -> None:
    figures = measured(pod, mode)
    assert [(each.segment, each.steps, each.restart) for each in figures.segments] == [
        (number, len(stretch), False) for number, stretch in enumerate(stretches)
    ]
    assert [[s["step"] for s in steps(pod) if s["segment"] == number] for number in (0, 1)] == stretches
    assert figures.steps_seen == sum(map(len, stretches))
    assert figures.first_cut + figures.steps_measured <= len(stretches[-1])
    last = len(stretches[-1])
    assert figures.tokens == {
        "padded": last * 2 * ROW,
        "non_pad": last * 2 * ROW,
        "trainable": last * 2 * (ROW - 1),
        "samples": last * 2,
    }


def test_steps_of_fewer_micro_batches_than_are_accumulated(pod: Pod) -> None:
    figures = measured(pod, "uneven")
    assert [each["micro_batches"] for each in steps(pod, "tokens")] == [4, 4, 2] * 2
    assert all(step["seconds"] > 0 for step in steps(pod))
    assert figures.tokens["samples"] == 2 * 20  # two passes over all rows
    assert figures.step_time_min_s is not None
    assert figures.step_time_min_s > 0
