"""Starts a rank: redirects its output, ties its life to its parent's, installs the hooks, then runs the target.

What a program sees of itself is what it would see without the probe; `target.py` sees to that."""

import atexit
import faulthandler
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import hooks, measure
from .errors import without_own_frames
from .gate import rank_of
from .journal import SCHEMA, JournalFile
from .layout import JobPaths
from .measure import Meter
from .processes import told_number
from .reading import read_document
from .redact import redact, secret_arguments, secret_values
from .site_hook import RANK_PID
from .target import run_target

PR_SET_PDEATHSIG = 1
# What a program sees first of a child that was killed; the handler of SIGCHLD, which knows of the signal, runs after.
BROKEN_PIPE = (ConnectionError, EOFError)
SIGCHLD_S = 0.2
STACKS_SIGNAL = 60  # as in harness/watch/stacks.py, whose supervisor sends it


def main(argv: Sequence[str]) -> None:
    """Run `JOB_DIR [-m] TARGET ARGS...` as a rank.  Raises what the target raises; the interpreter does the rest."""
    if len(argv) < 2 or (argv[1] == "-m" and len(argv) < 3):
        raise SystemExit("usage: python -u .../harness_probe/__main__.py JOB_DIR [-m] TARGET ARGS...")
    module = argv[1] == "-m"
    target, *arguments = argv[2:] if module else argv[1:]
    job = JobPaths(Path(argv[0]).absolute())
    rank = rank_of(os.environ)
    started_by_target = os.environ.get(RANK_PID) == str(os.getpid())
    redirect(job, rank, keep_captured=started_by_target)
    if not started_by_target:
        # Where the target has started this rank, its starter may be a thread that ends before: for the kernel that is
        # the parent's death.  What outlives the target's launcher is the supervisor's to end.
        die_with_parent()
    faulthandler.enable(2)
    answer_for_stacks(job, rank)
    secrets = secret_values(os.environ) | secret_arguments(arguments)
    meter = begin(job, rank, f"-m {target}" if module else target, secrets, phase="import")
    with meter.guard("install"):
        follow_program(meter)
    atexit.register(tell_program_end, meter)  # the first to register is the last to run, and threads have ended by then
    try:
        run_target(target, arguments, module=module)
    except BaseException as error:
        try:
            _leave(meter, error)
        except BaseException as later:  # of a signal's handler, which is the program's
            _leave(meter, later)
            raise
        raise
    with meter.guard("left"):
        meter.left(None)


def _leave(meter: Meter, error: BaseException) -> None:
    """Note the exception that leaves the program.  Raises what a signal's handler raises meanwhile."""
    _show_without_probe()
    if isinstance(error, BROKEN_PIPE):
        time.sleep(SIGCHLD_S)  # ends at once when a handler raises
    with meter.guard("left"):
        meter.left(error)


def begin(job: JobPaths, rank: int, target: str, secrets: set[str], *, phase: str) -> Meter:
    """Open the rank's journal.  `phase`: the one that begins with it."""
    ranks = told_number(os.environ, "WORLD_SIZE")
    place = {"local_rank": told_number(os.environ, "LOCAL_RANK") or 0, "world_size": 1 if ranks is None else ranks}
    meter = Meter(job, rank, open_journal(job, rank, target, secrets, **place), secrets)
    meter.mark(phase)
    os.register_at_fork(after_in_child=meter.switch_off)
    return meter


def open_journal(
    job: JobPaths, rank: int, target: str, secrets: set[str], *, local_rank: int, world_size: int
) -> JournalFile:
    """The journal of this process, which is the rank `rank`, with its first line."""
    journal = JournalFile(job.events(rank))
    journal.write(
        "start",
        schema=SCHEMA,
        pid=os.getpid(),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        python=platform.python_version(),
        process_started=process_started(),
        target=redact(target, secrets),
    )
    return journal


def follow_program(meter: Meter) -> None:
    """Put the hooks in place, as the job asks for."""
    launched = read_document(meter.job.job) or {}
    diagnostics = (launched.get("scenario") or {}).get("diagnostics") or {}
    meter.wants_history = diagnostics.get("memory_snapshot") is True
    hooks.install(meter)
    measure.activate(meter)
    output = launched.get("output_file")
    if isinstance(output, str):
        meter.dumps.paths.append(Path(output))


def tell_program_end(meter: Meter) -> None:
    """The last lines of the journal."""
    with meter.guard("end"):
        meter.end()


def redirect(job: JobPaths, rank: int, *, keep_captured: bool) -> None:
    """Point the file descriptors 1 and 2 at the rank's own logs, so that children and C code write there too.

    `keep_captured`: leave one alone that is not the job's own log: whoever has started the rank reads it."""
    job.rank(rank).mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, descriptor in ((job.stdout(rank), 1), (job.stderr(rank), 2)):
        if keep_captured and not _is_launcher_log(job, descriptor):
            continue
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor, inheritable=True)
        os.close(opened)


def _is_launcher_log(job: JobPaths, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(job.launcher_log()))
    except OSError:
        return False


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies.  Linux only; nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError) as error:
        print(f"harness: this process may outlive its parent: {error}", file=sys.stderr)
    if os.getppid() != parent:  # it died before the request was in place
        os.kill(os.getpid(), signal.SIGKILL)


def answer_for_stacks(job: JobPaths, rank: int) -> None:
    """From now on the signal has faulthandler append all threads' stacks to stacks.txt, whatever Python is doing.

    Not where the system has no such signal (Linux has), or no disk is left: the rank then runs without."""
    try:
        descriptor = os.open(job.stacks(rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
    except (OSError, ValueError, AttributeError, RuntimeError) as error:
        print(f"harness: no stacks can be asked for: {error}", file=sys.stderr)


def process_started() -> float | None:
    """When the kernel created this process, seconds since the epoch; None where /proc does not tell."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _show_without_probe() -> None:
    """Have the interpreter print the traceback that leaves the program without the frames of the probe."""
    show = sys.excepthook  # the target's own, or torch's, which names the rank

    def hook(cls: type[BaseException], error: BaseException, trace: Any) -> None:
        sys.excepthook = show
        link: BaseException | None = error
        seen: set[int] = set()
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = without_own_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        show(cls, error, error.__traceback__)

    sys.excepthook = hook
