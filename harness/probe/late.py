"""Measures a process that nobody has marked as a rank from the moment it trains: a driver that trains in itself, a
process of torch.multiprocessing.spawn."""

import atexit
import contextlib
import functools
import multiprocessing
import multiprocessing.util
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import hooks
from .errors import last_exception
from .exhaustion import Exhaustion
from .gate import rank_of
from .journal import JournalFile
from .layout import JobPaths
from .measure import Meter
from .processes import claim, told_number
from .redact import redact, secret_arguments, secret_values
from .site_hook import RANK_ABOVE, RANK_PID
from .start import answer_for_stacks, follow_program, open_journal, tell_program_end


def wait(folder: str) -> None:
    """Put the hooks in place, for the job directory `folder`, with a meter that is off until something trains."""
    meter = LateMeter(JobPaths(Path(folder)))
    follow_program(meter)
    hooks.patch_modules(PATCHES, meter)


class LateMeter(Meter):
    """Off until a Trainer's train() is entered, an optimizer steps or the program tells of its steps itself."""

    def __init__(self, job: JobPaths) -> None:
        super().__init__(job, 0, None, secret_values(os.environ) | secret_arguments(sys.orig_argv))
        self._waits = True
        self._has_left = False
        self._early: list[tuple[str, dict[str, Any]]] = []  # known before the journal begins
        self.mark(self.phase)  # what may train is about to be imported

    def wake(self) -> None:
        """The process trains: it is a rank from now on, unless another one is."""
        if not self._waits:
            return
        self._waits = False
        above, pid = told_number(os.environ, RANK_ABOVE), os.environ.get(RANK_PID)
        if above is not None and pid != str(os.getpid()):
            self._tell_unmeasured(above, f"it runs below process {pid}, which is rank {above}")
            return
        rank, local_rank, ranks = _place()
        try:
            if not claim(self.job, rank):
                self._tell_unmeasured(rank, f"rank {rank} of the job is another process that runs")
                return
        except OSError as error:
            self._tell_unmeasured(rank, f"rank {rank} has no folder: {error}")
            return
        self.rank, self.exhaustion = rank, Exhaustion(self.job, rank)
        self._journal = open_journal(self.job, rank, _target(), self.secrets, local_rank=local_rank, world_size=ranks)
        self._journal.write_all(self._early)
        _stand_above(rank)
        os.register_at_fork(after_in_child=self._forked)
        answer_for_stacks(self.job, rank)
        atexit.register(_end, self)
        # A child of multiprocessing ends by os._exit, after what is registered there.
        multiprocessing.util.Finalize(None, functools.partial(_end, self), exitpriority=100)

    def _forked(self) -> None:
        """A child of the rank, that may be the training that was meant."""
        self.switch_off()
        self._waits = True

    def _tell_unmeasured(self, rank: int, why: str) -> None:
        """This process trains, and nobody measures it: the journal of the rank that is says so, where there is one."""
        print(f"harness: this process is not measured: {why}", file=sys.stderr)
        if self.job.events(rank).is_file():
            with contextlib.suppress(OSError):
                journal = JournalFile(self.job.events(rank))
                journal.write("unmeasured", pid=os.getpid(), target=redact(_target(), self.secrets), why=why)
                journal.close()

    def write(self, event: str, **fields: Any) -> None:
        if self._waits and event in ("phase", "probe_error"):
            self._early.append((event, {"t": time.time(), "m": time.monotonic(), **fields}))
        super().write(event, **fields)

    def left(self, error: BaseException | None) -> None:
        if not self.off and not self._has_left:
            self._has_left = True
            super().left(error)

    def end(self) -> None:
        if not self._has_left:
            self.exit_code = None  # sys.exit(1) and a plain end look alike from here
        super().end()

    def train_entered(self, trainer: Any) -> None:
        self.wake()
        super().train_entered(trainer)

    def optimizer_stepped(self, step: int, optimizer: Any, *, leads_anew: bool) -> None:
        self.wake()
        if not self.off:
            super().optimizer_stepped(step, optimizer, leads_anew=leads_anew)


def _stand_above(rank: int) -> None:
    """Have what this process starts from now on know of it."""
    os.environ[RANK_PID] = str(os.getpid())
    os.environ[RANK_ABOVE] = str(rank)


def _target() -> str:
    return sys.argv[0] if sys.argv else ""


def _end(meter: LateMeter) -> None:
    """The process is about to end.  What ends a child of multiprocessing is on its way before 3.13, and has been dealt
    with from there on; what leaves a program the interpreter keeps."""
    with meter.guard("left"):
        error = sys.exc_info()[1] or last_exception()
        if error is not None or (multiprocessing.parent_process() is not None and sys.version_info < (3, 13)):
            meter.left(error)
    tell_program_end(meter)


def _place() -> tuple[int, int, int]:
    """(rank, rank on the node, number of ranks): by torch's process group where there is one, else by its launcher."""
    local_rank, ranks = (told_number(os.environ, name) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    rank = rank_of(os.environ)
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        rank, ranks = group.get_rank(), group.get_world_size()
    return rank, rank if local_rank is None else local_rank, 1 if ranks is None else ranks


def patch_spawn(module: Any, meter: Meter) -> None:
    """See what leaves a process of torch.multiprocessing; there it becomes exit code 1, with the reason behind it."""
    original = module._wrap

    @functools.wraps(original)
    def _wrap(*args: Any, **kwargs: Any) -> Any:
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            with meter.guard("left"):
                meter.left(error)
            raise
        with meter.guard("left"):
            meter.left(None)
        return result

    module._wrap = _wrap


def patch_group(module: Any, meter: Meter) -> None:
    """A process that has joined a process group may be a rank before it steps: what it starts is none."""
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if RANK_PID not in os.environ:
            _stand_above(_place()[0])
        return result

    module.init_process_group = init_process_group


PATCHES: dict[str, hooks.Patch] = {
    "torch.distributed.distributed_c10d": patch_group,
    "torch.multiprocessing.spawn": patch_spawn,
}
