"""Keeps the probe's own failures from the target."""

from collections.abc import Callable
from types import TracebackType

from .errors import is_of_handler


class Guard:
    """Turns an exception of the probe's own code into a `probe_error` event; what a signal's handler raises passes."""

    __slots__ = ("_fault", "_where")

    def __init__(self, fault: Callable[[str, BaseException], None], where: str) -> None:
        self._fault, self._where = fault, where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or is_of_handler(error):
            return False
        self._fault(self._where, error)
        return True
