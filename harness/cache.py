"""Folders that are costly to make and the same every time (checkpoints, data, virtual environments), made once a user.

A folder's name is the hash of what it is made of, so that nothing in it ever becomes outdated.  One process makes it,
whoever else wants it waits; what a killed maker left is swept by the next one.  All of it may be deleted at any time.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.2  # while somebody else makes what is waited for: flock has no time limit of its own
MAKING = ".making-"  # the beginning of a temporary folder's name, then the final one's name
LOCK, MADE = ".lock", ".made"  # files beside a folder: who makes it, and that one made in place is whole

# A folder to fill and the lock's file descriptor.  Programs that are started inherit the latter (`pass_fds`), so that
# the lock lasts as long as any of them, should this process be killed.
Make = Callable[[Path, int], None]


class StillBeingMade(Exception):
    """Somebody else takes longer than there is time to wait."""


def cache_root(environ: Mapping[str, str]) -> Path:
    """HARNESS_CACHE, else a folder `tuning-harness` in $XDG_CACHE_HOME, else in ~/.cache; absolute, not yet made.

    Raises OSError where there is no home folder: a container whose user has no name."""
    given = environ.get("HARNESS_CACHE")
    if given:
        return Path(given).absolute()
    xdg = environ.get("XDG_CACHE_HOME") or ""  # a relative one is to be ignored, says its specification
    try:
        base = Path(xdg) if os.path.isabs(xdg) else Path(environ.get("HOME") or Path.home()) / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "no home folder for a cache; set HARNESS_CACHE", "~") from error
    return base.absolute() / "tuning-harness"


def made_once(
    folder: Path, make: Make, on_wait: Callable[[str], None] | None = None, deadline: float | None = None
) -> Path:
    """The folder, filled by `make` if it is not there; a temporary one is filled and then renamed.

    Raises what `make` raises, after removing what it wrote, OSError (a full disk, a folder that cannot be made), and
    StillBeingMade as `locked` does."""
    if folder.is_dir():
        return folder
    with locked(folder, on_wait, deadline) as fd:
        if not folder.is_dir():
            _sweep(folder)
            making = Path(tempfile.mkdtemp(prefix=f"{MAKING}{folder.name}-", dir=folder.parent))
            try:
                make(making, fd)
                _sync(making)
                making.rename(folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return folder


def made_in_place(
    folder: Path,
    make: Make,
    on_wait: Callable[[str], None] | None = None,
    deadline: float | None = None,
    *,
    needed: str = ".",
) -> Path:
    """As `made_once`, for what cannot be renamed (virtual environments hold their own path): `make` fills the folder
    itself, and a file beside it says that it is whole.  It is made anew where `needed`, a path in it, has gone."""
    if is_whole(folder, needed):
        return folder
    with locked(folder, on_wait, deadline) as fd:
        if not is_whole(folder, needed):
            mark = beside(folder, MADE)
            mark.unlink(missing_ok=True)
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
            try:
                make(folder, fd)
                mark.touch(mode=0o600)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return folder


def is_whole(folder: Path, needed: str = ".") -> bool:
    """Whether a folder that is made in place has been made, and has `needed` in it."""
    return beside(folder, MADE).exists() and (folder / needed).exists()


@contextmanager
def locked(folder: Path, on_wait: Callable[[str], None] | None = None, deadline: float | None = None) -> Iterator[int]:
    """Hold the lock of a folder that need not exist, waiting for whoever holds it; gives the lock's descriptor.

    `on_wait` is told once, if it has to be waited for.  Raises StillBeingMade when it is still held at `deadline`, on
    the monotonic clock."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(beside(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait(f"{folder} is being made by another process")
            if deadline is None:
                fcntl.flock(fd, fcntl.LOCK_EX)
            else:
                _lock_before(deadline, fd, folder)
        yield fd
    finally:
        os.close(fd)


def _lock_before(deadline: float, fd: int, folder: Path) -> None:
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StillBeingMade(f"{folder} is still being made by another process") from None
        time.sleep(POLL_S)


def beside(folder: Path, suffix: str) -> Path:
    """A file of the folder's that lies beside it."""
    return folder.with_name(f".{folder.name}{suffix}")


def _sweep(folder: Path) -> None:
    """Remove what makers that are gone have left beside this folder, whose lock is held: only a maker holds one."""
    for left in folder.parent.glob(f"{MAKING}*"):
        other = folder.with_name(left.name.removeprefix(MAKING).rpartition("-")[0])
        with suppress(OSError):  # a living maker's, or not ours to remove
            if other == folder:
                shutil.rmtree(left)
                continue
            fd = os.open(beside(other, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(fd)


def _sync(folder: Path) -> None:
    """To the disk before the rename: after a power cut the folder is whole or not there."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
