"""A process that its launcher has marked as a rank starts anew, as the rank of the probe that it is.

From there on all is as where the harness starts the ranks: the logs, the hooks, the way an exception is followed."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .layout import JobPaths
from .processes import claim, told_number
from .site_hook import RANK_PID

# Options of the interpreter that take a value, which may be their next argument.
_WITH_VALUE = "WX"
_FLAGS = "bBdEhiIJOPqRsStuvV?"
_LONG_WITH_VALUE = "--check-hash-based-pycs"


def take_over(stage: str) -> None:
    """Replace this process by the rank, if it runs a program and no other process is that rank; else return."""
    job = JobPaths(Path(stage).parent)
    command = rank_command(sys.orig_argv, str(job.probe / "__main__.py"), str(job.root))
    if command is None or not _is_interpreter() or not claim(job, rank_of(os.environ)):
        return
    os.environ[RANK_PID] = str(os.getpid())
    for stream in filter(None, (sys.stdout, sys.stderr)):  # what other modules of the start have said
        stream.flush()
    os.execv(sys.executable, command)


def rank_of(environ: "os._Environ[str] | dict[str, str]") -> int:
    """The rank that a launcher tells; 0 where it tells of none, as accelerate's for a single process."""
    return told_number(environ, "RANK") or 0


def rank_command(argv: Sequence[str], main: str, job: str) -> list[str] | None:
    """The command line of a rank that runs what the interpreter's own `argv` asks for: a file, or `-m module`.

    None for what is no program of that kind: `-c` (how multiprocessing starts its processes), standard input, and a
    file whose first line is to be skipped."""
    split = split_command(argv)
    if split is None:
        return None
    options, target = split
    return [argv[0], *options, main, job, *target]


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """(options of the interpreter, [-m] target and its arguments), by the rules of CPython's getopt.c."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return _options_and_target(argv[1:at], argv[at + 1 :])
        if word == _LONG_WITH_VALUE:
            at += 2
            continue
        if word.startswith("--"):
            at += 1
            continue
        if not word.startswith("-"):
            break
        if word == "-":
            return None
        letters = word[1:]
        for place, letter in enumerate(letters):
            rest = letters[place + 1 :]
            if letter == "m":
                before = [f"-{letters[:place]}"] if place else []
                module = [rest] if rest else list(argv[at + 1 : at + 2])
                after = argv[at + 1 :] if rest else argv[at + 2 :]
                return ([*argv[1:at], *before], ["-m", *module, *after]) if module else None
            if letter in _WITH_VALUE:
                at += 0 if rest else 1
                break
            if letter not in _FLAGS:  # -c, -x, and what no interpreter of today knows
                return None
        at += 1
    return _options_and_target(argv[1:at], argv[at:])


def _options_and_target(options: Sequence[str], target: Sequence[str]) -> tuple[list[str], list[str]] | None:
    return (list(options), list(target)) if target else None


def _is_interpreter() -> bool:
    """Whether this process is the Python that sys.executable names, and no program that has one built in."""
    if not sys.executable:
        return False
    try:
        return os.path.samefile("/proc/self/exe", sys.executable)
    except OSError:
        return not sys.platform.startswith("linux")
