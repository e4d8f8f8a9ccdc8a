"""One lock around what Aim cannot do in several processes at once: making a repo, making a run, indexing."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Hold the lock file at `path`; nothing is locked where there is no path (a remote repo).

    Waits without an end: the process's deadline ends it.  OSError when the file cannot be made."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)
