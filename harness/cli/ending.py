"""How `harness exec` ended: the exit code, the last words on the terminal, and the termination log."""

import errno
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import termination
from harness.reports.properties import conditions, figures, printable

if TYPE_CHECKING:
    from harness.record import Kind, Record

USAGE, NOT_RUN = "usage", "not_run"  # where nothing was launched, instead of a verdict's kind


@dataclass(frozen=True)
class Ending:
    """One end of `harness exec`."""

    kind: str  # a verdict's, or one of the two above
    code: int  # exit code
    reason: str = ""
    rank: int | None = None
    step: int | None = None
    path: Path | None = None  # of the record
    record: "Record | None" = None


def of_record(record: "Record", path: Path) -> Ending:
    """The ending that a finished record tells."""
    from harness.exits import EXIT_CODES
    from harness.record import Kind

    verdict = record.verdict
    if verdict is None:
        return of_kind(Kind.UNKNOWN, "the record holds no verdict", path)
    return Ending(str(verdict.kind), EXIT_CODES[verdict.kind], verdict.reason, verdict.rank, verdict.step, path, record)


def of_kind(kind: "Kind", reason: str, path: Path | None = None) -> Ending:
    """The ending of a job that left no finished record."""
    from harness.exits import EXIT_CODES

    return Ending(str(kind), EXIT_CODES[kind], reason, path=path)


def not_launched(kind: str, reason: str) -> Ending:
    """Nothing was launched: USAGE, or NOT_RUN where the machine lacks something."""
    from harness.exits import USAGE as code

    return Ending(kind, code, reason)


def of_failure(error: Exception) -> Ending:
    """The harness itself could not go on."""
    from harness.record import Kind

    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    said = f"the harness could not go on: {type(error).__name__}: {error}"
    return of_kind(Kind.DISK_FULL if full else Kind.UNKNOWN, said)


def tell(ending: Ending) -> None:
    """Leave the termination log, then say on stderr how it ended."""
    write_termination_log(ending)
    record = ending.record
    if record is not None and record.tail and ending.rank != 0:  # rank 0's log has been copied as it came
        say_all(record.tail)
    say(f"verdict {ending.kind}{f': {ending.reason}' if ending.reason else ''} (exit code {ending.code})")
    if record is not None and record.verdict is not None and record.verdict.hint:
        say(f"hint: {record.verdict.hint}")
    if record is not None and (told := [*figures(record), *conditions(record)]):
        say(", ".join(f"{name} {value}" for name, value in told))
    if ending.path is not None:
        say(f"record {ending.path}")


def write_termination_log(ending: Ending) -> None:
    """A log that cannot be written is a warning: the job's end is no other for it."""
    path = termination.log_path(os.environ)
    if path is None:
        return
    text = termination.log_text(
        kind=ending.kind, rank=ending.rank, step=ending.step, reason=ending.reason, record=ending.path
    )
    try:
        termination.write_log(text, path)
    except OSError as error:
        say(f"warning: no termination log, {path}: {error.strerror}")


def say(text: str) -> None:
    """One line on stderr; stdout is the program's."""
    _write(f"harness: {' '.join(printable(text).split())}\n")


def say_all(text: str) -> None:
    """Text of several lines on stderr."""
    _write(f"{printable(text).rstrip()}\n")


def _write(text: str) -> None:
    data = text.encode(errors="replace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        sys.stderr = None  # nobody reads any more; the interpreter must not fail over it at its end
