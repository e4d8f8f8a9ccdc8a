"""Layouts and counts of the synthetic data; the tensors are compared with the counts."""

import statistics
from typing import Any

import pytest

from harness.probe.synthetic import SyntheticTokens, Totals, count, document_lengths, layout

BASE: dict[str, Any] = {"samples": 200, "sequence_length": 64, "lengths": "fixed", "packing": "padded", "seed": 1}
UNEVEN = {"distribution": "uniform", "min": 3, "max": 40}


def data(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


def test_fixed_lengths_fill_every_row() -> None:
    for packing in ("padded", "packed"):
        made = layout(data(packing=packing))
        assert made.rows == 200
        assert count(made, range(10)) == Totals(640, 640, 630, 10)


def test_padded_rows() -> None:
    made = layout(data(lengths=UNEVEN))
    lengths = document_lengths(data(lengths=UNEVEN))
    assert count(made, [0, 5, 5]) == Totals(192, lengths[0] + 2 * lengths[5], lengths[0] + 2 * lengths[5] - 3, 3)


def test_packed_rows_hold_all_but_the_rest() -> None:
    made = layout(data(lengths=UNEVEN, packing="packed"))
    total = sum(document_lengths(data(lengths=UNEVEN)))
    assert made.rows == total // 64
    assert all(sum(tokens for _, tokens in made.pieces(row)) == 64 for row in range(made.rows))
    held: dict[int, int] = {}
    for row in range(made.rows):
        for document, tokens in made.pieces(row):
            held[document] = held.get(document, 0) + tokens
    whole = list(held.values())[:-1]
    assert whole == list(made.lengths[: len(whole)])


@pytest.mark.parametrize(
    "spec, low, high, mean",
    [
        ({"distribution": "uniform", "min": 10, "max": 50}, 10, 50, 30),
        ({"distribution": "normal", "mean": 30, "std": 5}, 2, 64, 30),
        ({"distribution": "normal", "mean": 30, "std": 0}, 30, 30, 30),
        ({"distribution": "lognormal", "mean": 20, "std": 6, "min": 8}, 8, 64, 20),
        ({"distribution": "lognormal"}, 2, 64, 31),
        ({"distribution": "uniform", "min": 1, "max": 1000}, 2, 64, None),
    ],
)
def test_distributions(spec: dict[str, Any], low: int, high: int, mean: float | None) -> None:
    lengths = document_lengths(data(samples=4000, lengths=spec))
    assert min(lengths) >= low
    assert max(lengths) <= high
    if mean is not None:
        assert statistics.mean(lengths) == pytest.approx(mean, rel=0.05)


def test_lengths_follow_the_seed() -> None:
    assert document_lengths(data(lengths=UNEVEN)) == document_lengths(data(lengths=UNEVEN))
    assert document_lengths(data(lengths=UNEVEN)) != document_lengths(data(lengths=UNEVEN, seed=2))


def test_too_little_for_a_row() -> None:
    with pytest.raises(ValueError, match=r"raise data\.samples"):
        layout(data(samples=1, packing="packed", lengths={"distribution": "uniform", "min": 3, "max": 5}))
    with pytest.raises(ValueError, match="unknown distribution"):
        layout(data(lengths={"distribution": "zipf"}))


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_tensors_are_what_was_counted(packing: str) -> None:
    rows = SyntheticTokens(data(lengths=UNEVEN, packing=packing), vocabulary=256)
    for index in range(len(rows)):
        row = rows[index]
        totals = count(rows.layout, [index])
        assert row["input_ids"].numel() == totals.padded
        assert int((row["labels"][1:] != -100).sum()) == totals.trainable
        assert int(row["input_ids"].min()) >= 0
        assert int(row["input_ids"].max()) < 256
        if packing == "padded":
            assert int(row["attention_mask"].sum()) == totals.non_pad
        else:
            starts = (row["position_ids"] == 0).nonzero().flatten().tolist()
            assert (row["labels"] == -100).nonzero().flatten().tolist() == starts
            assert len(starts) == len(rows.layout.pieces(index))
    again = SyntheticTokens(data(lengths=UNEVEN, packing=packing), vocabulary=256)
    assert bool((again[7]["input_ids"] == rows[7]["input_ids"]).all())
    with pytest.raises(IndexError):
        rows[len(rows)]
