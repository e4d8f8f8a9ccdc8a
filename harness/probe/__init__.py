"""Runs inside the training processes: standard library only, Python 3.10 on, staged into the job directory.

Nothing here imports the rest of the harness; what both sides need (event names, file names, redaction) is defined here
and imported from above.  `BenchmarkAimCallback` and `Journal` are for programs that ask to be measured."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import BenchmarkAimCallback
    from .own_loop import Journal

__all__ = ["BenchmarkAimCallback", "Journal"]


def __getattr__(name: str) -> Any:
    # Not at once: the harness imports this package where there is no transformers, of whose class the callback is.
    try:
        if name == "BenchmarkAimCallback":
            from .callback import BenchmarkAimCallback

            return BenchmarkAimCallback
        if name == "Journal":
            from .own_loop import Journal

            return Journal
    except AttributeError as error:  # which `from harness.probe import ...` would take for a name that is not there
        raise ImportError(f"{name} cannot be imported: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
