"""Measures a process that nobody has marked as a rank from the moment it trains: a driver that trains in itself, a
process of torch.multiprocessing.spawn."""

import atexit
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
from .layout import JobPaths
from .measure import Meter
from .processes import claim
from .redact import secret_arguments, secret_values
from .site_hook import RANK_PID
from .start import answer_for_stacks, follow_program, open_journal, tell_program_end


def wait(folder: str) -> None:
    """Put the hooks in place, for the job directory `folder`, with a meter that is off until something trains."""
    meter = LateMeter(JobPaths(Path(folder)))
    follow_program(meter)
    hooks.patch_modules(
        {"torch.distributed.distributed_c10d": patch_group, "torch.multiprocessing.spawn": patch_spawn}, meter
    )


class LateMeter(Meter):
    """Off until a Trainer's train() is entered, an optimizer steps or the program tells of its steps itself."""

    def __init__(self, job: JobPaths) -> None:
        super().__init__(job, 0, None, secret_values(os.environ) | secret_arguments(sys.orig_argv))
        self._waits = True
        self._has_left = False
        self._phases: list[dict[str, Any]] = []
        self.mark(self.phase)  # what may train is about to be imported

    def wake(self) -> None:
        """The process trains: it is a rank from now on, unless another one is."""
        if not self._waits:
            return
        self._waits = False
        rank, local_rank, ranks = _place()
        try:
            taken = None if claim(self.job, rank) else f"rank {rank} of the job is another process that runs"
        except OSError as error:
            taken = f"rank {rank} has no folder: {error}"
        if taken is not None:
            print(f"harness: this process is not measured: {taken}", file=sys.stderr)
            return
        self.rank, self.exhaustion = rank, Exhaustion(self.job, rank)
        target = sys.argv[0] if sys.argv else ""
        self._journal = open_journal(self.job, rank, target, self.secrets, local_rank=local_rank, world_size=ranks)
        self._journal.write_all([("phase", fields) for fields in self._phases])
        os.environ[RANK_PID] = str(os.getpid())  # for what it starts from now on
        os.register_at_fork(after_in_child=self.switch_off)
        answer_for_stacks(self.job, rank)
        atexit.register(_end, self)
        # A child of multiprocessing ends by os._exit, after what is registered there.
        multiprocessing.util.Finalize(None, functools.partial(_end, self), exitpriority=100)

    def switch_off(self) -> None:
        super().switch_off()
        self._waits = False

    def mark(self, name: str, *, sync: bool = True) -> None:
        super().mark(name, sync=sync)
        if self._waits:  # known when the journal begins
            self._phases.append({"t": time.time(), "m": time.monotonic(), "name": name})

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
    numbers = [os.environ.get(name, "") for name in ("LOCAL_RANK", "WORLD_SIZE")]
    local_rank, ranks = (int(told) if told.isascii() and told.isdigit() else None for told in numbers)
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
        os.environ.setdefault(RANK_PID, str(os.getpid()))
        return result

    module.init_process_group = init_process_group
