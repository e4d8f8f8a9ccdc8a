"""Did it train?"""

from typing import Any

import pytest

from harness.journal import Event, RankJournal
from harness.metrics import did_it_train
from harness.record import Kind
from tests.unit.journals import event, rank, step
from tests.unit.metrics.recorded import measure


def parameters(when: str, checksum: int = 7, **fields: Any) -> Event:
    changed = None if when == "first" else 3
    return event("parameters", when=when, segment=0, step=6, tensors=3, checksum=checksum, changed=changed) | fields


def trained(*, changed: int | None = 3, number: int = 0, **series: list[Any]) -> RankJournal:
    """Six steps; `series` gives figures of each."""
    columns: dict[str, list[Any]] = {"loss": [3.0, 2.8, 2.6, 2.5, 2.4, 2.3]} | series
    steps = [step(n + 1, **{name: values[n] for name, values in columns.items()}) for n in range(6)]
    return rank(number, parameters("first"), *steps, parameters("last", 8, changed=changed))


@pytest.mark.parametrize(
    "journal, kind, said",
    [
        (trained(), None, ""),
        (trained(loss=[3.0, 2.9, *["NaN"] * 4]), Kind.NAN_LOSS, "rank 0, step 3: the loss is NaN from here to the end"),
        (trained(loss=[3.0, "NaN", 2.0, 2.0, 1.9, 1.8]), None, ""),
        (trained(grad_norm=[1.0, 1.0, *["Infinity"] * 4]), Kind.NAN_LOSS, "step 3: the gradient norm is Infinity"),
        (trained(grad_norm=[1.0] * 5 + ["NaN"]), None, ""),
        (trained(grad_norm=["Infinity", "Infinity", 1.0, 1.0, 1.0, 1.0]), None, ""),
        (trained(changed=0), Kind.NO_TRAINING, "none of the 3 trainable tensors changed in 6 steps"),
        (trained(changed=0, learning_rate=[0.0] * 6), None, ""),
        (trained(changed=0, learning_rate=[0.0] * 5 + [1e-5]), Kind.NO_TRAINING, "the learning rates add up to 1e-05"),
        (trained(changed=None), None, ""),
        (trained(grad_norm=[0.0] * 6), Kind.NO_TRAINING, "the gradient norm is 0 in all 6 steps"),
        (trained(grad_norm=[0.0] * 5 + [0.1]), None, ""),
        (trained(grad_norm=[None] * 6), None, ""),
        (trained(changed=0, learning_rate=[None] * 6), Kind.NO_TRAINING, "none of the 3 trainable tensors changed"),
        (trained(changed=None, grad_norm=[None] * 6, loss=[2.0] * 6), Kind.NO_TRAINING, "the loss is 2 in all 6 steps"),
        (trained(changed=None, loss=[2.0] * 6), None, ""),
        (trained(grad_norm=[None] * 6, loss=[2.0] * 6), None, ""),
        (trained(changed=None, grad_norm=[None] * 6, loss=[2.0] * 6, learning_rate=[0.0] * 6), None, ""),
        (trained(loss=[None] * 6), None, ""),
        (rank(0, event("start")), None, ""),
    ],
    ids=[
        "trained",
        "nan-to-the-end",
        "nan-that-passes",
        "norm-infinite-to-the-end",
        "norm-nan-in-the-last-step-alone",
        "loss-scale-finds-its-size",
        "unchanged",
        "warm-up-that-never-ends",
        "warm-up-that-ends",
        "not-looked-at",
        "trap-zero-grad-norm",
        "zero-gradient-at-times",
        "no-norm",
        "unchanged-at-an-unknown-rate",
        "loss-stands-still-and-no-more-is-known",
        "trap-loss-stands-still-with-gradients",
        "trap-loss-stands-still-while-parameters-move",
        "loss-stands-still-at-rate-0",
        "no-loss",
        "no-steps",
    ],
)
def test_did_it_train(journal: RankJournal, kind: Kind | None, said: str) -> None:
    finding = did_it_train([journal])
    assert (finding.kind if finding else None) == kind
    assert said in (finding.reason if finding else "")


def test_the_rank_that_did_not_train_is_named() -> None:
    finding = did_it_train([trained(), trained(number=1, changed=0)])
    assert finding is not None
    assert (finding.rank, finding.kind) == (1, Kind.NO_TRAINING)


def test_only_the_last_segment_is_judged() -> None:
    later = [step(n, segment=1) for n in range(1, 5)]
    assert did_it_train([rank(0, *[step(n, loss="NaN") for n in range(1, 4)], *later)]) is None
    stale = rank(0, *[step(1)], parameters("last", changed=0), *later)
    assert did_it_train([stale]) is None


def test_figures_of_training() -> None:
    measured = measure(trained(), trained(number=1, changed=2))
    assert (measured.trainable_tensors, measured.changed_tensors) == (3, 2)
    assert measured.learning_rate_sum == pytest.approx(6e-3)


def test_a_rank_without_a_part_of_the_parameters_is_no_evidence() -> None:
    """Its shard is empty: 0 of 0 tensors changed."""
    ranks = [trained(), trained(number=1, changed=0)]
    ranks[1].of("parameters")[-1]["tensors"] = 0
    assert did_it_train(ranks) is None
    measured = measure(*ranks)
    assert (measured.trainable_tensors, measured.changed_tensors) == (3, 3)


def test_a_part_in_which_nothing_is_trained_is_no_evidence() -> None:
    """Sharded: the rows of the new tokens lie with rank 0."""
    ranks = [trained(), trained(number=1, changed=0)]
    ranks[1].of("parameters")[0]["checksum"] = 11
    assert did_it_train(ranks) is None
    ranks[0].of("parameters")[-1]["changed"] = 0
    found = did_it_train(ranks)
    assert found is not None
    assert found.kind == Kind.NO_TRAINING


def ranks_with(first: list[int], last: list[int]) -> list[RankJournal]:
    return [
        rank(n, parameters("first", a), *[step(i) for i in range(1, 7)], parameters("last", b))
        for n, (a, b) in enumerate(zip(first, last, strict=True))
    ]


@pytest.mark.parametrize(
    "first, last, whole, agree, why",
    [
        ([1, 1], [2, 2], True, True, None),
        ([1, 1], [2, 2], None, True, None),
        ([1, 1], [2, 3], True, False, None),
        ([1, 2], [3, 4], True, None, "the ranks began with different parameters"),
        (
            [1, 1],
            [2, 3],
            False,
            None,
            "ranks hold parts of the parameters, or flattened ones: their checksums cannot be",
        ),
        ([1], [2], True, None, "there is one rank"),
    ],
    ids=[
        "in-step",
        "an-older-journal",
        "never-exchanged-gradients",
        "began-apart",
        "trap-shards-that-begin-equal",
        "one",
    ],
)
def test_ranks_that_train_apart(
    first: list[int], last: list[int], whole: bool | None, agree: bool | None, why: str | None
) -> None:
    """Shards may begin equal, all zeros or all ones, and differ by right when they are trained."""
    ranks = [
        rank(n, event("model", device="cpu", whole=whole), *(each for _, each in journal.events))
        for n, journal in enumerate(ranks_with(first, last))
    ]
    measured = measure(*ranks)
    assert measured.ranks_agree is agree
    assert measured.reasons.get("ranks_agree", "").startswith(why or "")
    assert ("ranks_diverged" in measured.flags) == (agree is False)


@pytest.mark.parametrize("when, told", [("first", "beginning"), ("last", "end")])
def test_a_rank_that_did_not_look_at_its_parameters(when: str, told: str) -> None:
    one, other = ranks_with([1, 1], [2, 3])
    silent = rank(1, *(each for _, each in other.events if each.get("when") != when))
    measured = measure(one, silent)
    assert measured.ranks_agree is None
    assert measured.reasons["ranks_agree"] == f"not all ranks looked at their parameters at the {told} of training"
