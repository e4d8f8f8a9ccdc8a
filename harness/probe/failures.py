"""The exceptions that a rank has seen, and which of them ended it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import PASSING, Record, Sightings, behind_exit, describe

PASSING_TOLD = 20  # exceptions that were only logged, and as many caught by who tries again with a smaller batch


@dataclass(frozen=True)
class Place:
    """Where a rank is: the step that runs (None: none does), and the phase."""

    step: int | None
    phase: str


class Failures:
    """`tell` journals an exception's record."""

    def __init__(self, tell: Callable[[Record], None], secrets: set[str]) -> None:
        self._tell, self._secrets = tell, secrets
        self._passing: Counter[str] = Counter()
        self._sightings = Sightings()

    def forget(self) -> None:
        """Training went on, or has ended well: what was seen before has ended nothing."""
        self._sightings.forget()

    def saw(self, error: BaseException, where: str, at: Place, exit_code: int | None = None) -> Record | None:
        """Journal an exception, once; returns its record if it may be blamed.  KeyboardInterrupt never is."""
        if not self._sightings.is_news(error, where):
            return None
        if where in PASSING:
            self._passing[where] += 1
            if self._passing[where] > PASSING_TOLD:
                return None
        record: dict[str, Any] = describe(
            error, where=where, step=at.step, phase=at.phase, exit_code=exit_code, secrets=self._secrets
        )
        self._tell(record)
        is_bare_exit = isinstance(error, SystemExit)
        if isinstance(error, KeyboardInterrupt) or (is_bare_exit and self._sightings.best()):
            return None
        return self._sightings.add(record, error)

    def behind(self, error: BaseException) -> tuple[BaseException, str]:
        """(the exception that ended the program, who saw it): the one that left it, or was being handled when it called
        sys.exit()."""
        if not isinstance(error, SystemExit):
            return error, "main"
        return behind_exit(error) or error, "exit"

    def known(self, error: BaseException) -> Record | None:
        """The record of an exception that was seen; where that is nothing but an exit code, what was seen before tells
        more."""
        return self._sightings.best() if isinstance(error, SystemExit) else self._sightings.record_of(error)
