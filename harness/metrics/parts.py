"""A part of the figures: values, and why those are null that are."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Part:
    """Values by the name of their field in `Measurements`; every null has a reason, and it is a true one."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, why: str) -> None:
        """A figure; `why` it is null, where it is."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = why

    def nulls(self, names: Iterable[str], why: str) -> None:
        for name in names:
            self.put(name, None, why)


def number(value: Any) -> float | None:
    """A finite number; the journal writes others as text."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
