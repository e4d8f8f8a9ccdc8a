"""What counts as a token of a batch, and how long the documents in it are."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe import hooks
from harness.probe.tokens import Counts, count

IDS = [[5, 6, 7, 8, 9, 4, 3, 2], [5, 6, 7, 8, 9, 4, 3, 2]]
NUMBERED = [[1, 1, 1, 2, 2, 3, 3, 0], [1, 1, 1, 1, 1, 1, 1, 1]]
LEFT = [[0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]
HOLES = [[1, 1, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0]]
FALLING = [[2, 2, 2, 1, 1, 0, 0, 0], [9, 9, 4, 4, 4, 0, 0, 0]]


def tensor(values: Any) -> Any:
    import torch

    return torch.tensor(values)


def counted(**batch: Any) -> dict[str, Any]:
    ids = tensor(IDS)
    found = count([{"input_ids": ids, "labels": ids, **batch}], shifted=True)
    assert isinstance(found, Counts)
    return found.fields(found.device_numbers)


@pytest.mark.parametrize(
    "mask, non_pad, squares",
    [
        (None, 16, 2 * 8**2),
        (LEFT, 13, 6**2 + 7**2),
        (HOLES, 11, 6**2 + 5**2),
        (NUMBERED, 15, 3**2 + 2**2 + 2**2 + 8**2),
        (FALLING, 10, 3**2 + 2**2 + 2**2 + 3**2),
    ],
    ids=["none", "padded-left", "padding-within", "trap-numbered-documents", "numbered-in-another-order"],
)
def test_documents_of_a_mask(mask: list[list[int]] | None, non_pad: int, squares: int) -> None:
    fields = counted(**({} if mask is None else {"attention_mask": tensor(mask)}))
    assert (fields["non_pad"], fields["non_pad_squares"], fields["padded"]) == (non_pad, squares, 16)
    assert (fields["padded_squares"], fields["reason"]) == (2 * 8**2, None)


@pytest.mark.parametrize("kind", ["bool", "float32", "int32"])
def test_masks_of_other_types(kind: str) -> None:
    import torch

    fields = counted(attention_mask=tensor(LEFT).to(getattr(torch, kind)))
    assert (fields["non_pad"], fields["non_pad_squares"]) == (13, 6**2 + 7**2)


def test_positions_tell_of_documents_too() -> None:
    positions = [[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert counted(position_ids=tensor(positions))["non_pad_squares"] == 3**2 + 2**2 + 3**2 + 8**2


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(lambda: tensor([[[[1.0] * 8] * 8]] * 2), id="of-four-dimensions"),
        pytest.param(
            lambda: {"full_attention": tensor(LEFT), "sliding_attention": tensor(LEFT)}, id="by-kind-of-layer"
        ),
        pytest.param(lambda: LEFT, id="lists"),
    ],
)
def test_a_mask_that_cannot_be_read_hides_the_padding(mask: Any) -> None:
    fields = counted(attention_mask=mask())
    assert (fields["non_pad"], fields["non_pad_squares"]) == (None, None)
    assert (fields["padded"], fields["samples"], fields["trainable"]) == (16, 2, 14)
    assert fields["reason"] == "attention_mask has another shape"


def test_one_micro_batch_that_cannot_be_read_hides_the_steps_padding() -> None:
    odd: dict[str, Any] = {"input_ids": tensor(IDS), "attention_mask": {}}
    found = count([odd, {"input_ids": tensor(IDS)}, odd], shifted=True)
    assert isinstance(found, Counts)
    fields = found.fields(None)
    assert (fields["non_pad"], fields["padded"], fields["trainable"]) == (None, 48, None)
    assert fields["reason"] == "attention_mask has another shape; the batches hold no labels"


def test_slices_of_a_batch_add_up_to_the_whole() -> None:
    """As DeepSpeed's Ulysses cuts it: positions and labels, shifted before, are the whole sequence's."""
    ids, positions = tensor(IDS), tensor([[*range(8)], [*range(5), *range(3)]])
    labels = tensor([[*range(1, 8), -100]] * 2)
    whole = count([{"input_ids": ids, "position_ids": positions, "shift_labels": labels}], shifted=True)
    parts = [
        count(
            [{"input_ids": ids[:, cut], "position_ids": positions[:, cut], "shift_labels": labels[:, cut]}],
            shifted=True,
            place=place,
            slices=2,
        )
        for place, cut in enumerate((slice(0, 4), slice(4, 8)))
    ]
    assert isinstance(whole, Counts)
    fields = [part.fields(None) for part in parts if isinstance(part, Counts)]
    for name in ("padded", "non_pad", "trainable", "samples", "padded_squares", "non_pad_squares"):
        assert sum(each[name] for each in fields) == whole.fields(None)[name], name
    assert [each["samples"] for each in fields] == [2, 0]


def test_a_slice_does_not_tell_of_documents_by_its_mask() -> None:
    batch = {"input_ids": tensor(IDS), "attention_mask": tensor([[1] * 8] * 2)}
    found = count([batch], shifted=True, slices=2)
    assert isinstance(found, Counts)
    fields = found.fields(None)
    assert (fields["non_pad"], fields["non_pad_squares"]) == (16, None)
    assert "a slice of a sequence does not tell how long its documents are" in fields["reason"]


def test_batches_at_which_counting_fails() -> None:
    """Said as such, not as if the Trainer had fetched them in another way."""

    class Faulty:
        def get(self, name: str) -> Any:
            raise KeyError(name)

    seen: list[Any] = []
    faults: list[BaseException | None] = []

    class Guarded:
        def __enter__(self) -> None: ...

        def __exit__(self, cls: Any, error: BaseException | None, trace: Any) -> bool:
            faults.append(error)
            return True

    step = SimpleNamespace(saw_counts=seen.append)
    meter: Any = SimpleNamespace(guard=lambda where: Guarded(), shifted=True, trainer=None, step=step)
    trainer = SimpleNamespace(model=None)
    fetch = hooks._get_batch_samples(lambda self: ([Faulty()], None), lambda of: meter)
    assert fetch(trainer)[1] is None
    assert seen == ["the batches could not be counted"]
    assert isinstance(faults[0], KeyError)
