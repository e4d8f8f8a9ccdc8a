"""Which process is meant by a process id, and which one is a rank."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

from .layout import JobPaths


def started(pid: int) -> str | None:
    """When the kernel started a process, in ticks since boot: with its pid, the name of that very process.

    None for one that has ended, if its parent has not yet asked, and where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 else fields[19].decode()
    except (OSError, IndexError, ValueError):
        return None


def told_number(environ: "os._Environ[str] | dict[str, str]", name: str) -> int | None:
    """A number that a launcher tells; None where it tells none."""
    told = environ.get(name, "")
    return int(told) if told.isascii() and told.isdigit() else None


def lives(pid: Any, since: Any) -> bool:
    """Whether it is that very process: a word left by an earlier one is of one that is gone."""
    return isinstance(pid, int) and since is not None and started(pid) == since


def claim(job: JobPaths, rank: int) -> bool:
    """Whether this process is rank `rank` from now on; False while another living process is.

    A rank that has ended is followed by the next: a launcher that starts it anew, a driver that trains twice.  What
    ended it does not end the next: that stays in the journal alone.  Raises OSError where the rank's folder cannot be
    written."""
    job.rank(rank).mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(job.holder(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: two that ask at the same moment are rare
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        told = os.read(descriptor, 100).decode(errors="replace").split()
        if len(told) == 2 and told[0].isdigit() and int(told[0]) != os.getpid() and lives(int(told[0]), told[1]):
            return False
        for left in (job.error(rank), job.memory(rank), job.memory_snapshot(rank)):
            left.unlink(missing_ok=True)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {started(os.getpid())}\n".encode(), 0)
        return True
    finally:
        os.close(descriptor)
