"""Synthetic data for the built-in target: token sequences with something to learn, made from (seed, index) alone.

Two layouts.  `padded`: a row is one document, filled up to the sequence length (attention_mask 0, labels -100).
`packed`: the documents stand one after another and are cut into rows of the sequence length, the last partial row
dropped; positions begin anew with each document and with each row, and a document's first token is no label, for
nothing before it predicts it.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any

IGNORED = -100
PAD = 0
SHORTEST = 2  # a document of one token has nothing to learn


@dataclass(frozen=True)
class Totals:
    """Token counts over some rows: slots, slots that hold a token, labels that count in the loss, rows."""

    padded: int
    non_pad: int
    trainable: int
    samples: int


@dataclass(frozen=True)
class Layout:
    """Where documents lie in rows; a function of lengths alone, so that tokens can be counted without making any."""

    sequence_length: int
    packed: bool
    lengths: tuple[int, ...]  # of the documents, in order
    ends: tuple[int, ...]  # of the documents in the packed stream

    @property
    def rows(self) -> int:
        return self.ends[-1] // self.sequence_length if self.packed else len(self.lengths)

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """(document, tokens of it in this row), in order."""
        if not self.packed:
            return [(row, self.lengths[row])]
        position, end = row * self.sequence_length, (row + 1) * self.sequence_length
        document = bisect_right(self.ends, position)
        pieces = []
        while position < end:
            stop = min(self.ends[document], end)
            pieces.append((document, stop - position))
            position, document = stop, document + 1
        return pieces


def layout(data: dict[str, Any]) -> Layout:
    """The layout of a scenario's `data`.  Raises ValueError when not one row comes out."""
    length = int(data["sequence_length"])
    lengths = tuple(document_lengths(data))
    made = Layout(length, data.get("packing") == "packed", lengths, tuple(accumulate(lengths)))
    if not lengths or made.rows < 1:
        raise ValueError(f"data: {len(lengths)} documents make no row of {length} tokens; raise data.samples")
    return made


def document_lengths(data: Mapping[str, Any]) -> list[int]:
    """Lengths in tokens, one a sample, within 2 and the sequence length; drawn from the seed."""
    return list(each_length(data))


def each_length(data: Mapping[str, Any]) -> Iterator[int]:
    """The same, one by one: there may be a hundred million."""
    longest, samples = int(data["sequence_length"]), int(data["samples"])
    spec: Any = data.get("lengths") or "fixed"
    if spec == "fixed":
        return repeat(longest, samples)
    draw = _sampler(spec, longest, random.Random(f"lengths-{data.get('seed') or 0}"))
    low = max(SHORTEST, int(spec.get("min") or SHORTEST))
    high = min(longest, int(spec.get("max") or longest))
    return (min(high, max(low, round(draw()))) for _ in range(samples))


def _sampler(spec: dict[str, Any], longest: int, source: random.Random) -> Any:
    mean = float(spec.get("mean") or longest / 2)
    deviation = float(spec["std"] if spec.get("std") is not None else longest / 4)
    kind = spec.get("distribution")
    if kind == "uniform":
        low, high = float(spec.get("min") or SHORTEST), float(spec.get("max") or longest)
        return lambda: source.uniform(low - 0.5, high + 0.5)  # rounded: both ends as likely as the others
    if kind == "normal":
        return lambda: source.gauss(mean, deviation)
    if kind == "lognormal":  # mean and std are those of the lengths, not of their logarithms
        variance = math.log1p((deviation / mean) ** 2)
        return lambda: source.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    raise ValueError(f"data.lengths: unknown distribution {kind!r}; known: uniform, normal, lognormal")


def count(made: Layout, rows: Iterable[int]) -> Totals:
    """Tokens of the given rows, each as often as it comes."""
    padded = non_pad = trainable = samples = 0
    for row in rows:
        pieces = made.pieces(row)
        padded += made.sequence_length
        non_pad += sum(tokens for _, tokens in pieces)
        trainable += sum(tokens - 1 for _, tokens in pieces)  # nothing in the row predicts a piece's first token
        samples += 1
    return Totals(padded, non_pad, trainable, samples)


class SyntheticTokens:
    """Map-style dataset of rows: input_ids, labels, and attention_mask (padded) or position_ids (packed), int64."""

    def __init__(self, data: dict[str, Any], vocabulary: int) -> None:
        self.layout = layout(data)
        self._seed = int(data.get("seed") or 0)
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self.layout.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        if not 0 <= index < len(self):
            raise IndexError(index)
        length = self.layout.sequence_length
        ids = self._tokens(index, length)
        labels = ids.clone()
        pieces = [tokens for _, tokens in self.layout.pieces(index)]
        if self.layout.packed:
            labels[[0, *accumulate(pieces[:-1])]] = IGNORED
            positions = torch.cat([torch.arange(tokens) for tokens in pieces])
            return {"input_ids": ids, "labels": labels, "position_ids": positions}
        mask = (torch.arange(length) < pieces[0]).long()
        ids[pieces[0] :], labels[pieces[0] :] = PAD, IGNORED
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    def _tokens(self, index: int, count: int) -> Any:
        """Tokens of a row: a few are frequent and most are rare, and every second one follows from the one before."""
        import torch

        source = torch.Generator().manual_seed((self._seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9) % 2**63)
        uniform = torch.rand(count, generator=source)
        ids = (float(self._vocabulary) ** (uniform * uniform)).long().sub_(1).clamp_(0, self._vocabulary - 1)
        followers = ids[1::2]
        followers.copy_((ids[0::2][: len(followers)] * 7 + 3) % self._vocabulary)
        return ids
