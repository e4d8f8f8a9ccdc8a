"""The environment that lets a failed job be told apart: rows of facts about libraries, with what each costs a run.

Only what costs the collective operations nothing: TORCH_NCCL_DESYNC_DEBUG and TORCH_NCCL_ENABLE_TIMING record events
around each, TORCH_DISTRIBUTED_DEBUG=DETAIL compares each among the ranks.  TORCH_NCCL_ASYNC_ERROR_HANDLING and
TORCH_NCCL_ENABLE_MONITORING are on by default and stay, TORCHELASTIC_ERROR_FILE is torchrun's."""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.probe.layout import JobPaths


@dataclass(frozen=True)
class Variable:
    """One variable; `{recorder}` and `{nccl_log}` in its value are paths in the job directory."""

    name: str
    value: str
    library: str  # whose it is: python, torch, nccl
    versions: str  # where the name was seen, and since when
    why: str
    what: str = ""  # rows of the same thing: who sets one of them has set it
    since: tuple[int, int] = (0, 0)  # of torch, the first release that is given it
    until: tuple[int, int] = (100, 0)  # the first that is not


VARIABLES = (
    Variable(
        "PYTHONFAULTHANDLER", "1", "python", "CPython 3.10-3.14", "Python's stack at SIGSEGV, SIGABRT and the like"
    ),
    Variable(
        "TORCH_FR_BUFFER_SIZE",
        "2000",
        "torch",
        "torch 2.8+ (pytorch#152563), 2.13 (FlightRecorder.hpp; its default)",
        "the flight recorder keeps the last collective operations: microseconds each, no synchronisation",
        what="buffer",
        since=(2, 8),
    ),
    # Where a name is an alias, setting it is a warning, which a program may have turned into an error.
    Variable(
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "2000",
        "torch",
        "torch 2.4 (documentation); in 2.13 an alias",
        "the same under its old name",
        what="buffer",
        until=(2, 8),
    ),
    Variable(
        "TORCH_FR_DUMP_TEMP_FILE",
        "{recorder}",
        "torch",
        "torch 2.13 (library), in use by torchtitan since 2025-09",
        "begin of the names of its dumps; the rank is appended",
        what="dump",
    ),
    Variable(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "{recorder}",
        "torch",
        "torch 2.5 (tutorial), 2.13 (library)",
        "the same under its old name",
        what="dump",
        until=(2, 10),
    ),
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "torch",
        "torch 2.4 (documentation), 2.13 (ProcessGroupNCCL.hpp); needs a buffer, and the monitor",
        "a collective operation that times out writes the dump",
    ),
    Variable(
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "{recorder}",
        "torch",
        "torch 2.13 (ProcessGroupNCCL.hpp)",
        "the supervisor can ask for the dump of a job that hangs; torch looks once a second, in a thread of its own",
    ),
    Variable("NCCL_DEBUG", "WARN", "nccl", "NCCL 2.x", "NCCL says what failed, beyond its return code", what="nccl"),
    Variable(
        "NCCL_DEBUG_FILE",
        "{nccl_log}",
        "nccl",
        "NCCL 2.x",
        "in a file of its own, not among the program's",
        what="nccl",
    ),
)
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_NEWEST = (99, 0)


def variables(job: JobPaths, own: Mapping[str, str], torch: str | None) -> dict[str, str]:
    """The variables to add to `own`, the user's, which win; `torch`: the version that will run; None, unknown."""
    version = _release(torch) or _NEWEST
    settled = {row.what or row.name for row in VARIABLES if row.name in own}
    added = {
        row.name: row.value.format(recorder=job.flight_recorder(), nccl_log=_nccl_path(job))
        for row in VARIABLES
        if (row.what or row.name) not in settled and row.since <= version < row.until
    }
    if PIPE in added and not _takes_pipes(job.node()):
        del added[PIPE]  # torch would give up on the job
    return added


def _nccl_path(job: JobPaths) -> str:
    return f"{job.node()}/".replace("%", "%%") + job.nccl_log().name


def _release(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _takes_pipes(folder: Path) -> bool:
    """Whether the file system knows named pipes; some network ones do not."""
    trial = folder / ".pipe"
    try:
        os.mkfifo(trial, 0o600)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        trial.unlink()
    return True
