"""Staged as `sitecustomize.py` for a target that starts its ranks itself: every Python of the job imports it first.

It takes itself out of the way, finds out whether the process is a rank, and runs the user's own `sitecustomize`.  Where
nothing trains, nothing but this file is ever loaded.  Standard library only; `os` and `sys` are there already."""

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported: nothing is loaded that the program does not load
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

RANK_PID = "HARNESS_RANK_PID"  # in the environment of a rank and of all that it starts: the rank's process id
RANK_ABOVE = "HARNESS_RANK_ABOVE"  # beside it, where the rank was known only when it trained: its number
RANK_SIGNS = "HARNESS_RANK_SIGNS"  # names of variables that only a rank has when it starts, separated by commas
MODULE = "sitecustomize"
# What a process imports that may turn out to be a rank: all that is patched, so that nothing of it is half imported by
# then; the last two for programs that journal for themselves.
WATCHED = frozenset(
    [
        "torch.optim.optimizer",
        "torch.utils.data.dataloader",
        "torch.distributed.distributed_c10d",
        "torch.multiprocessing.spawn",
        "accelerate.accelerator",
        "accelerate.utils.memory",
        "transformers.trainer",
        "harness.probe.attach",
        "harness_probe.attach",
    ]
)


def main(file: str) -> None:
    """Called at an interpreter's start with this file's path as it is staged: JOB_DIR/probe/site/sitecustomize.py.

    Raises what the user's own `sitecustomize` raises, ImportError where there is none: the interpreter's `site`, which
    has imported this module, then does what it does without it."""
    folder = os.path.dirname(os.path.abspath(file))
    _step_aside(folder)
    try:
        _reach(os.path.dirname(folder))
    except Exception as error:
        print(f"harness: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)
    sys.modules.pop(MODULE, None)
    __import__(MODULE)


def _step_aside(folder: str) -> None:
    """PYTHONPATH in the environment stays as it is: that is how the program's own children are reached."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    sys.path_importer_cache.pop(folder, None)


def _reach(stage: str) -> None:
    part = part_of(os.environ, sys.orig_argv, os.getpid(), os.path.join(stage, "harness_probe", "__main__.py"))
    if part == "rank":
        load(stage, "gate").take_over(stage)  # returns for what is no program, or where another process is that rank
    if part != "none":
        sys.meta_path.insert(0, Waiting(stage))


def part_of(environ: "os._Environ[str] | dict[str, str]", argv: "Sequence[str]", pid: int, main: str) -> str:
    """What a Python is that starts: `rank`; `none`, to be left alone; or one that may turn out to be a rank, or to
    train below one: `open`.

    `main` is the path of the program that a rank of the probe runs."""
    above = environ.get(RANK_PID)
    if above is None:
        return "rank" if any(name in environ for name in environ.get(RANK_SIGNS, "").split(",")) else "open"
    if above != str(pid):
        # A loader's worker, a compiler, a helper: of a rank, and none itself.  Below one that nobody had marked, it may
        # be the training that was meant.
        return "open" if RANK_ABOVE in environ else "none"
    return "none" if main in argv else "open"  # the rank itself; `open` where it has replaced its program


def load(stage: str, name: str) -> "Any":
    """A module of the staged probe, which leaves no entry in sys.path."""
    sys.path.insert(0, stage)
    try:
        return getattr(__import__(f"harness_probe.{name}"), name)
    finally:
        sys.path.remove(stage)
        sys.path_importer_cache.pop(stage, None)


class Waiting:
    """On sys.meta_path until the process imports what may train: then the hooks are put in place, with a meter that is
    off until it does."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in WATCHED:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread's import was first
            return None
        try:
            load(self._stage, "late").wait(os.path.dirname(self._stage))
        except Exception as error:
            print(f"harness: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)
        # The interpreter goes through the list by number: it would pass over what now stands in this one's place.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


if __name__ == MODULE:
    main(__file__)
