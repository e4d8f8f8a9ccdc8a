"""One JSON document with all that a job has tracked, made from its journals; to be read without Aim or the harness.

Written by the program itself when training ends, and again by the harness, which knows of ends that a program does not
live to see."""

import errno
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from .errors import PASSING
from .journal import SCHEMA
from .layout import JobPaths, run_hash_of
from .reading import Event, decode_event, open_regular, read_document
from .series import Journals, labels_of
from .signatures import row_of
from .writing import write_document

_TELLING = re.compile(rb'"e": ?"(exception|step|segment)"')  # a long journal is not decoded for its few exceptions
BEGINNING = b'{\n "schema": '  # of every dump


def usable(path: Path) -> Path:
    """Where the dump is to be written, its folder made, links followed.

    Raises OSError where it could not be written, and where something else is that must not be replaced."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "its folder cannot be written to", str(path))
    if os.path.lexists(path):
        if not path.is_file():
            raise FileExistsError(errno.EEXIST, "it is there and no regular file", str(path))
        with open_regular(path) as file:
            begun = file.read(len(BEGINNING))
        if begun not in (b"", BEGINNING):
            raise FileExistsError(errno.EEXIST, "it is there and no dump: name another file", str(path))
    elif len(os.fsencode(path.name)) > os.pathconf(path.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    return path


def write_dump(dump: dict[str, Any], path: Path) -> None:
    """Write a dump atomically, readable for whom the umask lets; OSError when that is not possible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(path, dump, durable=True, mode=0o666 & ~_umask())


def _umask() -> int:
    """Asked of the kernel: os.umask can only ask by setting it, for all threads."""
    try:
        told = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
        return int(told.split()[1], 8)
    except (OSError, StopIteration, ValueError, IndexError):
        return 0o077


class Dumps:
    """The dumps that a program has asked for, of the job that it runs in."""

    def __init__(self, job: JobPaths) -> None:
        self._job = job
        self.paths: list[Path] = []
        self.ended_by: dict[str, Any] | None = None  # an end of training that is no exception of the journals
        self.outdated = False  # something was journalled since
        self._written = False

    def write(self) -> None:
        """Write all; a file that cannot be written is told of on stderr."""
        if not self.paths:
            return
        dump = document(self._job, first_error(self._job) or self.ended_by)
        self._written, self.outdated = True, False
        for path in self.paths:
            try:
                write_dump(dump, path)
            except OSError as fault:
                print(f"harness: {path} not written: {fault}", file=sys.stderr)

    def renew(self) -> None:
        """After the journal's end: an evaluation may have followed training, or training have never begun."""
        if self._written:
            self.paths = [path for path in self.paths if path.exists()]  # where it was taken away, it is not missed
        if self.outdated or not self._written:
            self.write()


def document(job: JobPaths, error: dict[str, Any] | None) -> dict[str, Any]:
    """The dump of a job; `docs/callback.md` tells its fields.  `error`: {kind, type, message, rank, step}."""
    launched = read_document(job.job) or {}
    aim = launched.get("aim") if isinstance(launched.get("aim"), dict) else None
    told = read_document(job.forwarder) or {}
    journals = Journals(job, gaps=True)
    sequences: dict[tuple[str, str], dict[str, Any]] = {}
    while (points := journals.read()) is not None:
        for point in points:
            key = (point.name, repr(point.context))
            if key not in sequences:
                lists: dict[str, list[Any]] = {"steps": [], "values": [], "epochs": [], "times": []}
                sequences[key] = {"name": point.name, "context": point.context, **lists}
            for name, value in zip(
                ("steps", "values", "epochs", "times"), (point.step, point.value, point.epoch, point.t), strict=True
            ):
                sequences[key][name].append(value)
    return {
        "schema": SCHEMA,
        "case_id": launched.get("case_id"),
        "job_id": launched.get("job_id"),
        "job": str(job.root),
        "run_hash": run_hash_of(str(launched.get("job_id"))) if aim and told.get("state") != "failed" else None,
        "repo": aim.get("repo") if aim else None,
        "labels": labels_of(launched, journals.labels),
        "error": error,
        "written": time.time(),
        "sequences": list(sequences.values()),
    }


def first_error(job: JobPaths) -> dict[str, Any] | None:
    """What ended training, as far as the ranks have told: the earliest exception that is not about another's end."""
    found = []
    for rank in job.ranks():
        error = _last_exception(job.events(rank))
        if error is not None:
            kind, consequence = _judge(error)
            found.append((consequence, error.get("t", 0.0), rank, kind, error))
    if not found:
        return None
    _, _, rank, kind, error = min(found, key=lambda entry: entry[:3])
    return {
        "kind": kind,
        "type": error.get("type"),
        "message": error.get("message"),
        "rank": rank,
        "step": error.get("step"),
    }


def _last_exception(journal: Path) -> Event | None:
    """The last exception that left train() or the program; None when training went on after it."""
    last = None
    try:
        with open_regular(journal) as file:
            for line in file:
                found = _TELLING.search(line)
                if found is None:
                    continue
                if found[1] != b"exception":
                    last = None
                elif (event := decode_event(line)) is not None and event.get("where") not in PASSING:
                    last = event
    except OSError:
        return None
    return last


def _judge(error: Event) -> tuple[str, bool]:
    """(kind, whether it tells of another rank's end) by the exception and those behind it."""
    name = str(error.get("type", "")).removeprefix("builtins.")
    if name == "KeyboardInterrupt":
        return "killed", False
    links = error.get("chain") or []
    chain = [(str(link.get("type")), str(link.get("message", "")), str(link.get("link"))) for link in links]
    row, _ = row_of(name, [str(base) for base in error.get("bases") or []], str(error.get("message", "")), chain)
    return ("unknown", False) if row is None else (row.kind, row.consequence)
