"""All-or-nothing leases of GPUs or CPU slots, host-wide and for all users: one flock(2) lock file an id.

The kernel frees a lock when the last copy of its descriptor is closed.  The supervisor and the command of a job inherit
the descriptors, so a lease lasts as long as either lives, whatever happens to the harness.

Who collects holds the turnstile of every id of its pool, taken in sorted order: nobody can overtake a lease that waits
for many ids, two invocations with separate pools do not meet, and no two can wait for each other.  A process that
leases both kinds takes GPUs first, for the same reason.  A lease that foreign processes prevent, whatever other leases
end, keeps nothing while it waits."""

import contextlib
import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.watch.cgroups import cpu_limit

SHARED_LOCK_DIR = Path("/tmp/tuning-harness")  # the same for all users: who chose another would not see their leases

# event -> field -> what it holds: the lines of leases.jsonl; every line also has t and e.
LEASE_EVENTS: dict[str, dict[str, str]] = {
    "waiting": {  # after half a second, then every minute
        "pid": "process that waits",
        "what": "what for: case and session",
        "count": "how many ids it needs",
        "pool": "ids it may take",
        "holders": "what is in the way, as told to the user: a list of texts, each an id and who holds or uses it",
    },
    "acquired": {
        "pid": "process that leases",
        "what": "what for: case and session",
        "ids": "ids it got",
        "wait_s": "seconds from asking to having them all",
    },
    "released": {
        "pid": "process that leased",
        "what": "what for: case and session",
        "ids": "ids it gives back",
        "held_s": "seconds it had them",
    },
}

_POLL_S = 0.05
_BUSY_AGAIN_S = 1.0  # asking the driver who uses an id costs more than trying a lock
_FIRST_WORD_S = 0.5  # shorter waits are not told
_NEXT_WORD_S = 60.0
_CREATE_S = 2.0  # another user's new lock file is opened to all within this
_TEXT_LIMIT = 120


class LeaseError(Exception):
    """The lock folder cannot be trusted or used; the text says what is wrong and what to do."""


class BusyError(LeaseError):
    """Foreign processes have prevented a lease for too long; the text names the ids and who uses them."""


@dataclass(frozen=True)
class Holding:
    """A lease: hand `fds` to the job (`pass_fds`), so that it outlives this process as long as the job does."""

    ids: tuple[str, ...]
    fds: tuple[int, ...]
    wait_s: float


def lock_dir(environ: Mapping[str, str]) -> Path:
    """Where the lock files lie: HARNESS_LOCK_DIR, else one fixed folder of the host (not on NFS)."""
    return Path(environ.get("HARNESS_LOCK_DIR") or SHARED_LOCK_DIR)


@contextmanager
def lease(
    pool: Sequence[str],
    count: int,
    *,
    what: str,
    lock_dir: Path,
    journal: Path | None = None,
    busy: Callable[[str], str | None] = lambda _: None,
    busy_limit_s: float | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[Holding]:
    """Hold `count` ids of `pool`, the first ones that are free in its order.

    `busy(id)` says why an id cannot be used although nobody leases it, or None; it is asked again while waiting.
    `on_wait` is told who holds what is waited for; what it raises ends the waiting.  Raises ValueError when the pool is
    too small, BusyError when ids that are busy have prevented the lease for `busy_limit_s` (None: never; leases of
    others are waited for without end), LeaseError when the lock folder is not fit."""
    ids = tuple(dict.fromkeys(pool))
    if not 0 < count <= len(ids):
        raise ValueError(f"{count} asked for, {len(ids)} to lease")
    with ExitStack() as stack:
        folder = _open_folder(lock_dir)
        stack.callback(os.close, folder)
        wait = _Wait(ids, count, what, folder, journal, busy, busy_limit_s, on_wait)
        held = _collect(wait, stack)
        got = tuple(name for name in ids if name in held)
        acquired = time.monotonic()
        _append(journal, "acquired", what, ids=got, wait_s=acquired - wait.begun)
        try:
            yield Holding(got, tuple(held[name] for name in got), acquired - wait.begun)
        finally:
            # Before the locks go: else the next one's "acquired" could stand above this line.
            _append(journal, "released", what, ids=got, held_s=time.monotonic() - acquired)


def cpu_slots(proc: str = "/proc/self") -> tuple[str, ...]:
    """The ids of the CPU slots to lease here: as many as the affinity and the cgroup's quota (rounded up) allow."""
    slots = len(os.sched_getaffinity(0))
    if (limit := cpu_limit(proc)) is not None:
        slots = min(slots, max(1, math.ceil(limit)))
    return tuple(f"cpu-{number}" for number in range(slots))


@dataclass
class _Wait:
    """One wish to lease: what for, how long already, and what was found busy."""

    ids: tuple[str, ...]
    count: int
    what: str
    folder: int
    journal: Path | None
    busy: Callable[[str], str | None]
    busy_limit_s: float | None
    on_wait: Callable[[str], None] | None
    begun: float = field(default_factory=time.monotonic)
    next_word: float = _FIRST_WORD_S
    not_before: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # of the ids that are in foreign use
    prevented_since: float | None = None

    def pause(self, missing: Sequence[str], sleep_s: float = _POLL_S) -> None:
        """Tell who holds the `missing` ids when it is time to, sleep a moment."""
        waited = time.monotonic() - self.begun
        if waited >= self.next_word:
            self.next_word = waited + _NEXT_WORD_S
            holders = self._holders(missing)
            _append(self.journal, "waiting", self.what, count=self.count, pool=self.ids, holders=holders)
            if self.on_wait is not None:
                self.on_wait(f"waiting for {self.count} of {', '.join(self.ids)}: {'; '.join(holders)}")
        time.sleep(min(sleep_s, max(_POLL_S, self.next_word - waited)))

    def prevented(self) -> bool:
        """Whether foreign use leaves too few ids, whatever leases end.  Raises BusyError when it has for too long."""
        now = time.monotonic()
        if self.count <= len(self.ids) - len(self.reasons):
            self.prevented_since = None
            return False
        if self.prevented_since is None:
            self.prevented_since = now
        if self.busy_limit_s is not None and now - self.prevented_since >= self.busy_limit_s:
            said = "; ".join(f"{name} {reason}" for name, reason in self.reasons.items())
            raise BusyError(f"{self.count} of {', '.join(self.ids)} not free within {self.busy_limit_s:g} s: {said}")
        return True

    def _holders(self, missing: Sequence[str]) -> list[str]:
        found = {name: self.reasons.get(name) or _holder(self.folder, _lock_name(name)) for name in missing}
        if any(found.values()):
            return [f"{name} {who}" for name, who in found.items() if who]
        first = [_holder(self.folder, name) for name in sorted({_turnstile(name) for name in missing})]
        return [f"first in line, {who}" for who in first if who] or ["others were faster"]


def _collect(wait: _Wait, stack: ExitStack) -> dict[str, int]:
    """Take locks until there are enough; `stack` closes them."""
    while True:
        held: dict[str, int] = {}
        with ExitStack() as turn, ExitStack() as locks:
            _queue(wait, turn)
            while True:
                _take_free(wait, held, locks)
                if len(held) == wait.count:
                    stack.enter_context(locks.pop_all())
                    return held
                missing = [name for name in wait.ids if name not in held]
                if wait.prevented():
                    break
                wait.pause(missing)
        # Nothing is held here: smaller leases pass, which foreign processes do not prevent.
        wait.pause(missing, _BUSY_AGAIN_S)


def _queue(wait: _Wait, turn: ExitStack) -> None:
    """Wait until it is this lease's turn; `turn` gives it up."""
    for name in sorted({_turnstile(name) for name in wait.ids}):
        while (fd := _try_lock(wait.folder, name)) is None:
            wait.pause(wait.ids)
        turn.callback(os.close, fd)
        _sign(fd, wait.what)


def _take_free(wait: _Wait, held: dict[str, int], stack: ExitStack) -> None:
    for name in wait.ids:
        if len(held) == wait.count:
            return
        if name in held or time.monotonic() < wait.not_before.get(name, 0):
            continue
        fd = _try_lock(wait.folder, _lock_name(name))
        if fd is None:
            wait.reasons.pop(name, None)
            continue
        try:
            reason = wait.busy(name)
        except BaseException:
            os.close(fd)
            raise
        if reason is None:
            held[name] = fd
            _sign(fd, wait.what)
            wait.reasons.pop(name, None)
            # Just close: LOCK_UN would also unlock the copies that a surviving job holds.
            stack.callback(os.close, fd)
        else:
            os.close(fd)
            wait.reasons[name] = _printable(reason)
            wait.not_before[name] = time.monotonic() + _BUSY_AGAIN_S


def _turnstile(name: str) -> str:
    """CPU pools always overlap, so that one turnstile serves all slots; GPUs have one each."""
    return "turn-cpu.lock" if name.startswith("cpu-") else f"turn-{_safe(name)}.lock"


def _lock_name(name: str) -> str:
    return f"{_safe(name)}.lock"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


def _open_folder(path: Path) -> int:
    """Open the lock folder, made for all users if it is not there.  Raises LeaseError."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            path.chmod(0o1777)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise LeaseError(f"lock folder {path}: {error.strerror}; set HARNESS_LOCK_DIR to a local folder") from error
    mode = os.fstat(fd).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        os.close(fd)
        raise LeaseError(f"lock folder {path} lets everybody remove others' locks; chmod +t {path}")
    return fd


def _try_lock(folder: int, name: str) -> int | None:
    """The locked file's descriptor, or None when somebody else has the lock.  Raises LeaseError."""
    fd = _open_lock(folder, name)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        os.close(fd)
        raise LeaseError(f"lock {name}: {error.strerror}; set HARNESS_LOCK_DIR to a local folder") from error
    # A cleaner of temporary files may have removed it between opening and locking: that lock would guard nothing.
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)):
            return fd
    os.close(fd)
    return None


def _open_lock(folder: int, name: str) -> int:
    """Open a lock file that may be another user's.

    fs.protected_regular refuses O_CREAT on another user's file in a sticky folder, so it is tried without first."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    deadline = time.monotonic() + _CREATE_S
    while True:
        try:
            fd = os.open(name, flags, dir_fd=folder)
            break
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # somebody else was faster
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
                os.fchmod(fd, 0o666)  # whatever the umask
                break
        except PermissionError as error:
            if time.monotonic() > deadline:  # until then its maker may be before the fchmod
                raise LeaseError(
                    f"lock {name}: no permission; its owner should chmod 666 it, and 1777 its folder"
                ) from error
            time.sleep(_POLL_S)
        except OSError as error:
            raise LeaseError(f"lock {name}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LeaseError(f"lock {name} is no regular file")
    return fd


def _sign(fd: int, what: str) -> None:
    """Write into a lock file who has it, for those who wait."""
    text = json.dumps({"pid": os.getpid(), "what": what, "t": time.time()}).encode()
    with contextlib.suppress(OSError):  # a full disk: the lock holds without
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


def _holder(folder: int, name: str) -> str:
    """Who has the lock, as the file says; "" when nobody does.  Anybody may have written the text."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _described(os.pread(fd, 4096, 0))
    except OSError:
        return ""
    finally:
        os.close(fd)
    return ""


def _described(text: bytes) -> str:
    try:
        document = json.loads(text)
        pid, what, since = int(document["pid"]), str(document["what"]), float(document["t"])
        clock = time.strftime("%H:%M:%S", time.localtime(since))
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return "held by a process that left no name"
    alive = "" if Path(f"/proc/{pid}").exists() else ", which is gone, but a process it started is not"
    return f"held by process {pid}{alive}: {_printable(what)}, since {clock}"


def _printable(text: str) -> str:
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= _TEXT_LIMIT else clean[: _TEXT_LIMIT - 3] + "..."


def _append(journal: Path | None, event: str, what: str, **fields: Any) -> None:
    if journal is None:
        return
    line = json.dumps({"t": time.time(), "e": event, "pid": os.getpid(), "what": what, **fields})
    with contextlib.suppress(OSError):  # evidence only: a full disk must not cost the lease
        fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode() + b"\n")
        finally:
            os.close(fd)
