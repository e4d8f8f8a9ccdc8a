"""Counts the tokens of a step's micro-batches without waiting for the device they lie on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

IGNORED = -100  # label that the loss leaves out, torch's and transformers' default


@dataclass
class Counts:
    """Tokens of one step; what lies on a device stays there as 0-dim tensors until `device_numbers` were copied."""

    padded: int | None = 0  # None: as many as are non_pad
    samples: int | None = 0
    padded_squares: int | None = 0
    micro_batches: int = 0
    non_pad: list[Any] = field(default_factory=list)
    trainable: list[Any] | None = field(default_factory=list)
    non_pad_squares: list[Any] | None = field(default_factory=list)
    reason: str | None = None

    @property
    def device_numbers(self) -> list[Any]:
        return [
            n for n in [*self.non_pad, *(self.trainable or ()), *(self.non_pad_squares or ())] if not isinstance(n, int)
        ]

    def fields(self, numbers: Sequence[int] | None) -> dict[str, Any]:
        """Fields of a `tokens` event; `numbers`: the values of `device_numbers`, in order; None: they are lost."""
        if self.device_numbers and numbers is None:
            return no_counts("the device failed before the counts were read")
        values = iter(numbers or ())
        non_pad, trainable, squares = (
            None if counted is None else sum(n if isinstance(n, int) else next(values) for n in counted)
            for counted in (self.non_pad, self.trainable, self.non_pad_squares)
        )
        return {
            "padded": non_pad if self.padded is None else self.padded,
            "non_pad": non_pad,
            "trainable": trainable,
            "samples": self.samples,
            "padded_squares": self.padded_squares,
            "non_pad_squares": squares,
            "micro_batches": self.micro_batches,
            "reason": self.reason,
        }


def told_counts(told: tuple[Any, Any, Any, Any]) -> Counts | None:
    """What a program tells of a step: (tokens, padded, trainable, samples); None when it tells of no tokens."""
    tokens, padded, trainable, samples = told
    if tokens is None:
        return None
    return Counts(
        padded=None if padded is None else int(padded),
        samples=None if samples is None else int(samples),
        padded_squares=None,
        non_pad_squares=None,
        non_pad=[_told(tokens)],
        trainable=None if trainable is None else [_told(trainable)],
        reason="the program did not tell of trainable tokens" if trainable is None else None,
    )


def _told(value: Any) -> Any:
    return value if hasattr(value, "is_cpu") and not value.is_cpu else int(value)


def no_counts(reason: str) -> dict[str, Any]:
    names = ("padded", "non_pad", "trainable", "samples", "padded_squares", "non_pad_squares", "micro_batches")
    return {**dict.fromkeys(names), "reason": reason}


def count(batches: Sequence[Any], *, shifted: bool) -> Counts | str:
    """Count micro-batches; a text says why that is not possible.

    `shifted`: the loss compares the logits of a position with the label of the next one, so a row's first label never
    counts.
    """
    counts = Counts()
    for batch in batches:
        if not isinstance(batch, Mapping) and not hasattr(batch, "get"):
            return f"the batches are of type {type(batch).__name__}, not mappings"
        ids = batch.get("input_ids")
        if ids is None or not hasattr(ids, "numel"):
            return "the batches hold no input_ids"
        counts.micro_batches += 1
        counts.padded = (counts.padded or 0) + ids.numel()
        counts.samples = (counts.samples or 0) + (ids.shape[0] if ids.dim() > 1 else 1)
        mask = batch.get("attention_mask")
        if mask is not None and mask.shape == ids.shape:
            counts.non_pad.append(
                _number(mask.count_nonzero())
            )  # not mask.sum(): packed masks may number the documents
        else:
            counts.non_pad.append(ids.numel())
        _count_squares(counts, batch, ids)
        _count_labels(counts, batch, ids, shifted)
    return counts


def _count_squares(counts: Counts, batch: Any, ids: Any) -> None:
    """The squared lengths of rows, and of the documents in them; nothing here waits for the device."""
    assert counts.padded_squares is not None
    assert counts.non_pad_squares is not None
    counts.padded_squares += ids.numel() * ids.shape[-1]
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    held = mask.ne(0) if mask is not None and mask.shape == ids.shape else None
    if positions is not None and getattr(positions, "shape", None) == ids.shape:
        squares = 2 * positions + 1  # over positions from 0 to n - 1 these add up to n squared
        counts.non_pad_squares.append(_number((squares if held is None else squares * held).sum()))
    elif held is None:
        counts.non_pad_squares.append(ids.numel() * ids.shape[-1])
    else:
        counts.non_pad_squares.append(_number(held.sum(-1).square().sum()))


def _count_labels(counts: Counts, batch: Any, ids: Any, shifted: bool) -> None:
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
        if labels is not None and shifted and labels.shape == ids.shape:
            labels = labels[..., 1:]
    if labels is None or not hasattr(labels, "numel"):
        counts.trainable, counts.reason = None, "the batches hold no labels"
    elif counts.trainable is not None:
        counts.trainable.append(_number(labels.ne(IGNORED).count_nonzero()))


def _number(value: Any) -> Any:
    return value.item() if value.is_cpu else value
