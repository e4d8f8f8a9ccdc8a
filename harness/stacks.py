"""Stacks of requirement files: a virtual environment for each contents and interpreter, made once a user."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness import requirements
from harness.cache import StillBeingMade, beside, cache_root, is_whole, made_in_place
from harness.probe.redact import redact, secret_values
from harness.units import format_seconds

# Started in a session of its own, with this process's id and a command.  It holds the lock while the command runs, and
# ends all of the session at once when this process dies: an orphan would fill the folder that the next one makes anew,
# or, waiting for an index that does not answer, keep the lock for ever.
_WATCHED = """
import ctypes, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    code = subprocess.call(sys.argv[2:])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
"""
LIMIT_S = 2 * 3600.0  # of one program: torch and what it needs is several GB, and a package may have to be compiled
_TOLD_EVERY_S = 60.0
_FULL_BYTES = 2**20  # free on a disk that is full: the last file did not fit
_LOG = ".log"
_PIP = ("-I", "-m", "pip", "--no-input", "--disable-pip-version-check")
_INSTALL = ("install", "--progress-bar", "off")
# Where pip would install to somewhere else, or nothing.
_MISLEADING = {
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_DRY_RUN",
    "PIP_PYTHON",
    "PIP_REQUIRE_VIRTUALENV",
}
_PYTHON = "bin/python"


class StackFailure(Exception):
    """The environment could not be made.  `output` is what the program wrote, secrets hidden."""

    def __init__(self, what: str, output: str = "", ended: int | None = None, *, out_of_time: bool = False) -> None:
        super().__init__(what)
        self.what, self.output, self.out_of_time = what, output, out_of_time
        self.ended = ended  # exit code, negative for a signal; None: it was ended here, or never ran


@dataclass(frozen=True)
class Recipe:
    """What an environment is made of: files, absolute, and the interpreter that makes it."""

    requirements: tuple[Path, ...]
    no_deps: tuple[Path, ...]  # installed last, without what they depend on
    python: str  # path
    version: str  # of the interpreter

    @property
    def names(self) -> str:
        return ", ".join(path.name for path in (*self.requirements, *self.no_deps))

    def sha256(self, environ: Mapping[str, str]) -> str:
        """Of all that decides what is installed, as far as it lies on this machine, in hex.  Raises OSError.

        `environ` is pip's: its variables name files, too."""
        total = hashlib.sha256()
        for part in self._parts(environ):
            total.update(f"{len(part)}\n".encode() + part)
        return total.hexdigest()

    def _parts(self, environ: Mapping[str, str]) -> Iterator[bytes]:
        yield f"{self.python} {self.version}".encode()
        for kind, paths in (("requirements", self.requirements), ("no_deps", self.no_deps)):
            yield kind.encode()
            for path in paths:
                yield from requirements.contents(path, self.folder, environ)
        yield from requirements.named_by(environ, self.folder)

    @property
    def folder(self) -> Path:
        """Where pip stands: relative paths of wheels are taken from the first file's folder."""
        return self.requirements[0].parent


def where(recipe: Recipe, environ: Mapping[str, str]) -> Path:
    """The environment's folder, whether or not it is there.  Raises OSError when a file cannot be read."""
    return cache_root(environ) / "stacks" / recipe.sha256(environ)[:32]


def interpreter(folder: Path) -> Path:
    return folder / _PYTHON


def there(recipe: Recipe, environ: Mapping[str, str]) -> Path | None:
    """The interpreter of the environment if it has been made; None too when a file cannot be read."""
    try:
        folder = where(recipe, environ)
    except OSError:
        return None
    return interpreter(folder) if is_whole(folder, _PYTHON) else None


def make(recipe: Recipe, environ: Mapping[str, str], on_wait: Callable[[str], None] | None = None) -> Path:
    """The interpreter of the environment, which is made if it is not there: minutes, or as long as somebody else takes.

    Raises StackFailure."""
    tell = on_wait or (lambda _: None)
    try:
        folder = where(recipe, environ)
    except OSError as error:
        raise StackFailure(f"{error.filename}: {error.strerror}") from error

    def fill(made: Path, lock: int) -> None:
        log, failed = beside(made, _LOG), None
        tell(f"the environment of {recipe.names} is made, once; what pip says is in {log}")
        try:
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as output:
                for command in commands(recipe, made):
                    _call(command, recipe, environ, output.fileno(), lock, tell)
        except StackFailure as failure:
            failed = failure
            raise
        finally:
            said = _hidden(log, environ)
            if failed is not None:
                failed.output = said

    longest_s = LIMIT_S * len(commands(recipe, folder))  # that a living maker may take
    try:
        return interpreter(made_in_place(folder, fill, tell, time.monotonic() + longest_s, needed=_PYTHON))
    except StillBeingMade as error:
        raise StackFailure(str(error), out_of_time=True) from None
    except OSError as error:
        raise StackFailure(f"the cache cannot be used: {error}") from error


def commands(recipe: Recipe, folder: Path) -> list[list[str]]:
    """What makes the environment, in order."""
    pip = [str(interpreter(folder)), *_PIP, *_INSTALL]
    named = [word for path in recipe.requirements for word in ("-r", str(path))]
    made = [[recipe.python, "-I", "-m", "venv", str(folder)], [*pip, *named]]
    if recipe.no_deps:
        made.append([*pip, "--no-deps", *(word for path in recipe.no_deps for word in ("-r", str(path)))])
    return made


def _call(
    command: Sequence[str],
    recipe: Recipe,
    environ: Mapping[str, str],
    output: int,
    lock: int,
    tell: Callable[[str], None],
) -> None:
    what = "pip" if "pip" in command else "venv"
    clean = {name: value for name, value in environ.items() if name not in _MISLEADING}
    try:
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHED, str(os.getpid()), *command],
            cwd=recipe.folder,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
            start_new_session=True,  # so that what pip starts can be ended with it
        )
    except OSError as error:
        raise StackFailure(f"{what} could not be started: {error}") from error
    with _ended_with_us(started):
        waited_s = 0.0
        while waited_s < LIMIT_S:
            try:
                code = started.wait(_TOLD_EVERY_S)
            except subprocess.TimeoutExpired:
                waited_s += _TOLD_EVERY_S
                tell(f"{what} still makes the environment of {recipe.names}, after {format_seconds(waited_s)}")
                continue
            if code != 0:
                raise StackFailure(f"{what} ended with {code}{_full_disk(output)}", ended=code)
            return
        raise StackFailure(f"{what} had not ended after {format_seconds(LIMIT_S)}", out_of_time=True)


def _full_disk(log: int) -> str:
    """What the program could not write into its log, which lies on the disk that it has filled."""
    free = os.fstatvfs(log).f_bavail * os.fstatvfs(log).f_frsize
    return f": {os.strerror(errno.ENOSPC)}" if free < _FULL_BYTES else ""


@contextmanager
def _ended_with_us(started: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Ends a program and all that it started in its session when the block is left before it has ended."""
    try:
        yield
    finally:
        if started.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def _hidden(log: Path, environ: Mapping[str, str]) -> str:
    """What the log holds, after secrets have been taken out of it there."""
    try:
        text = redact(log.read_text(encoding="utf-8", errors="replace"), secret_values(environ))
        log.write_text(text, encoding="utf-8")
    except OSError as error:  # a full disk, most likely: what pip said of it is lost
        return f"{log}: {error}"
    return text
