"""Means, extremes and differences over a span, of readings that come one after the other."""

from dataclasses import dataclass
from typing import Any

from harness.telemetry.values import Span

FEW = "the span holds too few samples of it"


@dataclass
class Gauge:
    """Mean by time and extremes of something that is read now and then."""

    span: Span
    gap_s: float
    area: float = 0.0
    covered: float = 0.0
    samples: int = 0
    peak: float | None = None
    least: float | None = None
    _last: float | None = None  # sample within the span
    _before: tuple[float, float] | None = None

    def take(self, m: float, value: Any) -> None:
        number = as_number(value)
        before, self._before = self._before, (m, number) if number is not None else None
        if number is None:
            return
        if self.span[0] <= m <= self.span[1]:
            self.samples += 1
            self._last = number
            self.note(number)
        if before is not None and 0 < m - before[0] <= self.gap_s:
            low, high = max(before[0], self.span[0]), min(m, self.span[1])
            if high > low:
                slope = (number - before[1]) / (m - before[0])
                middle = before[1] + slope * ((low + high) / 2 - before[0])
                self.area += middle * (high - low)
                self.covered += high - low

    def note(self, number: float) -> None:
        """An extreme that is not weighed."""
        self.peak = number if self.peak is None else max(self.peak, number)
        self.least = number if self.least is None else min(self.least, number)

    @property
    def mean(self) -> float | None:
        if self.covered:
            return self.area / self.covered
        return self._last if self.samples == 1 else None


@dataclass
class Counter:
    """How much something that only rises rose within a span; what lies between two readings counts in proportion."""

    span: Span
    rose: float = 0.0
    covered: float = 0.0
    fell: bool = False
    _before: tuple[float, float] | None = None

    def take(self, m: float, value: Any) -> None:
        number = as_number(value)
        if number is None:
            return
        before, self._before = self._before, (m, number)
        if before is None or m <= before[0]:
            return
        share = overlap_s((before[0], m), self.span) / (m - before[0])
        self.covered += share * (m - before[0])
        self.fell = self.fell or (number < before[1] and share > 0)
        self.rose += (number - before[1]) * share

    def forget(self) -> None:
        """The next reading is a first one."""
        self._before = None

    @property
    def value(self) -> float | None:
        return None if self.fell or not self.covered else self.rose


@dataclass
class Sums:
    """A sum that comes in pieces, each over a time of its own: joules, or a mean times the seconds that it is of."""

    span: Span
    total: float = 0.0
    covered: float = 0.0

    def take(self, piece: Span, amount: float) -> None:
        length = piece[1] - piece[0]
        if length > 0:
            overlap = overlap_s(piece, self.span)
            self.total += amount * overlap / length
            self.covered += overlap

    @property
    def mean(self) -> float | None:
        return self.total / self.covered if self.covered else None


def overlap_s(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def first_known(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


def whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
