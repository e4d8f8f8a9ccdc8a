"""What reached Aim: `forwarder.json` in the job directory, written at the start, every few seconds and at the end."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.probe.writing import write_document

SCHEMA = 1
STILL = "still forwarding"
LONGEST_REASON = 500  # characters


class Report:
    """The state of one forwarding, shared by the thread that forwards and the one that watches it.

    `ended` is null until the last write: a file that has none is of a forwarder that runs, or was killed."""

    def __init__(self, path: Path, repo: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._document: dict[str, Any] = {
            "schema": SCHEMA,
            "state": "partial",  # complete: all of the job is in Aim and can be found; failed: there is no run in Aim
            "reason": STILL,
            "run_hash": None,
            "repo": repo,
            "tracked": 0,  # values that Aim has taken
            "skipped": 0,  # values that are no finite number
            "indexed": False,  # queries of the SDK find the run, checked by reading it back
            "aim": None,  # version
            "started": time.time(),
            "ended": None,
        }
        self.pending: Callable[[], int] = lambda: 0  # values that Aim has taken into a queue and not sent

    @property
    def run_hash(self) -> str | None:
        run_hash: str | None = self._document["run_hash"]
        return run_hash

    def note(self, **fields: Any) -> None:
        with self._lock:
            self._document |= fields

    def add(self, tracked: int) -> None:
        with self._lock:
            self._document["tracked"] += tracked

    def end(self, reason: str | None) -> None:
        """Write the last word: complete without a reason, partial when there is a run, else failed.

        The first one stands; the file is written when this returns, whoever said it."""
        with self._lock:
            if self._document["ended"] is None:
                self._document |= self._last_word(reason)
        self.write(durable=True)

    def _last_word(self, reason: str | None) -> dict[str, Any]:
        unsent = 0
        with contextlib.suppress(Exception):  # asks Aim, which may be in any state
            unsent = self.pending()
        if unsent:
            reason = f"{reason or 'closed early'}; {unsent} writes wait for the server"
        return {
            "state": "complete" if reason is None else "partial" if self.run_hash else "failed",
            "reason": reason if reason is None else " ".join(reason.split())[:LONGEST_REASON],
            "tracked": max(0, self._document["tracked"] - unsent),
            "ended": time.time(),
        }

    def write(self, durable: bool = False) -> None:
        """Replace the file atomically; a disk that is full or gone is no reason to stop."""
        with self._lock, contextlib.suppress(OSError):
            write_document(self._path, self._document, durable=durable)
