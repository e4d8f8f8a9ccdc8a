"""What is journalled of the model that trains: what it is, and whether its parameters change."""

from collections.abc import Callable
from typing import Any

from .checksum import combined, tensor_sums
from .guard import Guard
from .model import describe_model
from .shape import describe_shape


class DescribedModel:
    """The model as it was last told; `write` journals an event, `guard` keeps a failure of ours from the program."""

    def __init__(self, write: Callable[..., None], guard: Callable[[str], Guard]) -> None:
        self._write, self._guard = write, guard
        self._model: dict[str, Any] | None = None
        self._shape: dict[str, Any] | None = None
        self._first_sums: list[int] | None = None  # of the trainable tensors, at the segment's start; None: not known

    def describe(
        self, model: Any, counted: dict[str, Any] | None, roles: dict[str, Any] | None, args: Any, trainer: Any
    ) -> None:
        """Size and shape, where they are not those of the segment before."""
        described = describe_model(model, counted, getattr(args, "device", None))
        if described != self._model:
            self._model = described
            self._write("model", **described)
        with self._guard("shape"):
            shape = describe_shape(model, roles, args, trainer)
            if shape != self._shape:
                self._shape = shape
                self._write("shape", **shape)

    def begins(self, model: Any, segment: int, step: int) -> None:
        """A segment's first step is about to begin."""
        with self._guard("parameters"):
            self._first_sums = None
            self._first_sums = tensor_sums(model)
            if self._first_sums is not None:
                self._write_sums("first", segment, step, self._first_sums, None)

    def ends(self, model: Any, segment: int, step: int) -> None:
        """The segment has ended well: are the parameters still those it began with?"""
        first, sums = self._first_sums, tensor_sums(model)
        if sums is not None:
            comparable = first is not None and len(first) == len(sums)
            changed = sum(a != b for a, b in zip(first or (), sums, strict=True)) if comparable else None
            self._write_sums("last", segment, step, sums, changed)

    def _write_sums(self, when: str, segment: int, step: int, sums: list[int], changed: int | None) -> None:
        self._write(
            "parameters",
            when=when,
            segment=segment,
            step=step,
            tensors=len(sums),
            checksum=combined(sums),
            changed=changed,
        )
