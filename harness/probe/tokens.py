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
    non_pad: list[Any] | None = field(default_factory=list)
    trainable: list[Any] | None = field(default_factory=list)
    non_pad_squares: list[Any] | None = field(default_factory=list)
    reason: str | None = None

    def lacks(self, why: str) -> None:
        """A count is not known."""
        if why not in (self.reason or "").split("; "):
            self.reason = why if self.reason is None else f"{self.reason}; {why}"

    @property
    def device_numbers(self) -> list[Any]:
        known = [counted for counted in (self.non_pad, self.trainable, self.non_pad_squares) if counted is not None]
        return [number for counted in known for number in counted if not isinstance(number, int)]

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


def count(batches: Sequence[Any], *, shifted: bool, place: int = 0, slices: int = 1) -> Counts | str:
    """Count micro-batches; a text says why that is not possible.

    `shifted`: the loss compares the logits of a position with the label of the next one, so a row's first label never
    counts.  `slices`: how many ranks share a batch, each a slice of its sequences, of which this rank has the one at
    `place`; attention sees them whole, and rows count on the first of these ranks.
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
        if place == 0:
            counts.samples = (counts.samples or 0) + (ids.shape[0] if ids.dim() > 1 else 1)
        _count_tokens(counts, batch, ids, slices)
        _count_labels(counts, batch, ids, shifted)
    return counts


def _count_tokens(counts: Counts, batch: Any, ids: Any, slices: int) -> None:
    """Slots that hold a token, and the squared lengths of rows and of the documents in them; nothing here waits for the
    device."""
    assert counts.padded_squares is not None
    counts.padded_squares += ids.numel() * ids.shape[-1] * slices
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if mask is not None and (getattr(mask, "shape", None) != ids.shape or not hasattr(mask, "count_nonzero")):
        # Of heads, or by kind of layer: what is padding in it only the model knows.
        counts.non_pad = counts.non_pad_squares = None
        counts.lacks("attention_mask has another shape")
    if counts.non_pad is None or counts.non_pad_squares is None:
        return
    counts.non_pad.append(ids.numel() if mask is None else _number(mask.count_nonzero()))  # its sum: of numbers, maybe
    if positions is not None and getattr(positions, "shape", None) == ids.shape:
        squares = 2 * positions + 1  # over positions from 0 to n - 1 these add up to n squared
        counts.non_pad_squares.append(_number((squares if mask is None else squares * mask.ne(0)).sum()))
    elif mask is None:
        counts.non_pad_squares.append(ids.numel() * ids.shape[-1] * slices)
    elif slices > 1:
        counts.non_pad_squares = None
        counts.lacks("a slice of a sequence does not tell how long its documents are")
    else:
        counts.non_pad_squares.append(_number(_squares_of_documents(mask)))


def _squares_of_documents(mask: Any) -> Any:
    """Sum of the squared lengths of documents, 0-dim on the mask's device; packed masks number a row's documents, 0 is
    padding."""
    import torch

    numbers = mask.to(torch.int64).sort(-1).values  # whatever their order, and where padding lies
    places = torch.arange(numbers.shape[-1], device=numbers.device).expand_as(numbers)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[..., 1:] = numbers[..., 1:] != numbers[..., :-1]
    positions = places - (places * begins).cummax(-1).values
    return ((2 * positions + 1) * numbers.ne(0)).sum()


def _count_labels(counts: Counts, batch: Any, ids: Any, shifted: bool) -> None:
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
        if labels is not None and shifted and labels.shape == ids.shape:
            labels = labels[..., 1:]
    if labels is None or not hasattr(labels, "numel"):
        counts.trainable = None
        counts.lacks("the batches hold no labels")
    elif counts.trainable is not None:
        counts.trainable.append(_number(labels.ne(IGNORED).count_nonzero()))


def _number(value: Any) -> Any:
    return value.item() if value.is_cpu else value
