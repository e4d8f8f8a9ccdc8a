"""What a GPU's allocator held when its memory ran out: figures and torch's own summary, and a snapshot where asked for.

Nothing here allocates on the device, initialises it, or raises for what torch does: the program goes on as without."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from .errors import Record
from .layout import JobPaths
from .memory import cuda_in_use
from .signatures import match
from .writing import write_document

SCHEMA = 1
GIVEN_UP = "No executable batch size found"  # accelerate's last word: what had run out has been freed since
HISTORY = 100_000  # allocations and frees that a snapshot tells of; each holds a Python stack


def ran_out(record: Record) -> bool:
    """Whether an exception's record, or one behind it, tells that a device's memory has just run out."""
    links = [(record["type"], record["bases"], record["message"])]
    links += [(link["type"], [], link["message"]) for link in record["chain"]]
    rows = (match(*link) for link in links if not link[2].startswith(GIVEN_UP))
    return any(row is not None and row.kind == "gpu_oom" for row in rows)


class Exhaustion:
    """Writes memory.json for the first time that memory runs out, and anew for a later one that ends the rank."""

    def __init__(self, job: JobPaths, rank: int) -> None:
        self._job, self._rank = job, rank
        self._told: float | None = None  # time of the record of which the file tells
        self._records_history = False

    def saw(self, record: Record) -> None:
        """An exception was seen, and its traceback still holds what the program had allocated."""
        if self._told is None and ran_out(record):
            self._write(record)

    def ended_by(self, record: Record) -> None:
        """The exception that ended the rank."""
        if record["t"] != self._told and ran_out(record):
            self._write(record)

    def record_history(self) -> None:
        """Have torch record allocations from the moment on when the program initialises CUDA."""
        torch_cuda: Any = sys.modules.get("torch.cuda")
        torch_cuda._lazy_call(self._begin_history)  # torch 1.x to 2.13; at once where it is initialised

    def _begin_history(self) -> None:
        try:
            torch_cuda: Any = sys.modules["torch.cuda"]
            # Python's stacks alone: those of C++ cost a symbol look-up each.  The arguments are those of torch 2.1 on.
            torch_cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")
            self._records_history = True
        except Exception as error:  # called by torch within its own initialisation
            print(f"harness: no memory snapshot: {type(error).__name__}: {error}", file=sys.stderr)

    def _write(self, record: Record) -> None:
        cuda = cuda_in_use()
        if cuda is None:
            return
        self._told = record["t"]
        document = {
            "schema": SCHEMA,
            "t": time.time(),
            "rank": self._rank,
            **{name: record[name] for name in ("type", "message", "step", "phase", "part", "where")},
            **figures(cuda, record["message"]),
            "snapshot": self._snapshot(cuda),
        }
        write_document(self._job.memory(self._rank), document)

    def _snapshot(self, cuda: Any) -> str | None:
        """The name of the file; None where none was asked for, or torch could not write it."""
        if not self._records_history:
            return None
        path = self._job.memory_snapshot(self._rank)
        partial = path.with_name(f".{path.name}.partial")
        try:
            cuda.memory._dump_snapshot(str(partial))
            os.replace(partial, path)
        except Exception as error:
            print(f"harness: no memory snapshot: {type(error).__name__}: {error}", file=sys.stderr)
            with contextlib.suppress(OSError):
                partial.unlink()
            return None
        return path.name


def figures(cuda: Any, message: str) -> dict[str, Any]:
    """What torch tells of the device that the message names, or else of the current one; null with a reason."""
    reasons: dict[str, str] = {}

    def ask(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:  # after an error of the device itself torch refuses every question
            reasons[name] = f"{type(error).__name__}: {error}"[:400]
            return None

    named = re.search(r"\bGPU (\d+)\b", message)
    device = int(named[1]) if named else ask("device", lambda: cuda.current_device())
    free, total = ask("free_bytes", lambda: cuda.mem_get_info(device)) or (None, None)
    return {
        "device": device,
        "free_bytes": free,
        "total_bytes": total,
        "stats": ask("stats", lambda: dict(cuda.memory_stats(device))),
        "summary": ask("summary", lambda: str(cuda.memory_summary(device))),
        "reasons": reasons,
    }
