"""The job of a program that nobody supervises: its directory, its beginning, and its end."""

import atexit
import contextlib
import functools
import hashlib
import json
import multiprocessing.util
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .companions import AIM_TIMEOUT_S, Companions
from .dump import first_error
from .errors import last_exception
from .layout import JobPaths, attempt
from .measure import Meter
from .processes import lives, started, told_number
from .reading import read_document
from .redact import redact, redact_argv, redact_tree, secret_arguments, secret_values
from .start import begin
from .writing import write_document

RENDEZVOUS_S = 10.0  # that a rank waits for rank 0's word of where the job directory is
# (rank, number of ranks) as launchers tell them, before the program has set up its process group.
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_live: "list[OwnJob]" = []
_begun = 0


class OwnJob:
    """A job from its beginning to `end`, which is called at the latest when the process ends."""

    def __init__(self, name: str, labels: dict[str, Any], place: str | None, results: Path) -> None:
        """Raises OSError when no job directory can be made, not even a temporary one."""
        global _begun
        _begun += 1
        rank, ranks = rank_of(os.environ)
        argv = list(sys.argv) or [""]
        secrets = secret_values(os.environ) | secret_arguments(argv[1:])
        self._last_exception = last_exception()
        job = make_directory(results, name) if rank == 0 else find_directory(results, name, ranks)
        if rank == 0:
            _describe(job, name, labels, secrets, place, ranks)
            if ranks > 1:
                _tell_ranks(results, ranks, job)
        self.meter = begin(job, rank, argv[0] or name, secrets, phase="setup")
        self.meter.is_own = True
        self._companions = Companions(job, place, AIM_TIMEOUT_S) if rank == 0 else None
        end = functools.partial(self.end, at_exit=True)
        atexit.register(end)
        # A forked child of multiprocessing ends by os._exit.
        self._finalizer = multiprocessing.util.Finalize(None, end, exitpriority=100)
        self._unregister: Callable[[], object] = functools.partial(atexit.unregister, end)
        _live.append(self)

    @property
    def has_trained(self) -> bool:
        return self.meter.steps > 0 and not self.meter.training and not self.meter.told

    def end(self, *, at_exit: bool = False) -> None:
        """The journal's last lines, the dump, the verdict for Aim; nothing when it has ended, or in a forked child."""
        meter = self.meter
        if self in _live:
            _live.remove(self)
        if meter.off:
            return
        if not at_exit:
            self._unregister()
            self._finalizer.cancel()
        with meter.guard("end"):
            error = last_exception() if at_exit and not hasattr(sys, "ps1") else None
            if error is not None and error is not self._last_exception:
                meter.left(error)
            elif meter.exit_code == 0:
                meter.exit_code = None  # sys.exit(1) and a plain end look alike from here
            if self._companions is not None:
                self._companions.end_sampler()
        meter.end()
        if self._companions is None:
            return
        with contextlib.suppress(OSError):
            write_document(meter.job.end, _last_word(meter), durable=True)
        self._companions.end_forwarder(at_exit=at_exit)
        told = read_document(meter.job.forwarder) or {}
        if told.get("state") == "failed":
            print(f"harness: nothing has reached Aim: {told.get('reason')}", file=sys.stderr)


def end_those_that_have_trained() -> None:
    """A search over hyperparameters makes a callback for each training: the jobs before are over."""
    for job in list(_live):
        if job.has_trained:
            job.end()


def rank_of(environ: "os._Environ[str] | dict[str, str]") -> tuple[int, int]:
    """(rank, number of ranks) of this process; (0, 1) where no launcher tells of several."""
    for rank, ranks in _RANKS:
        number, of = told_number(environ, rank), told_number(environ, ranks)
        if number is not None and of is not None and of > 1:
            return number, of
    return 0, 1


def make_directory(results: Path, name: str) -> JobPaths:
    """A directory that no other job has; below a temporary folder, with a word, where `results` cannot be written."""
    key = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    try:
        job = attempt(results / key, 1)
        job.root.mkdir(mode=0o700, parents=True)
    except OSError as error:
        job = attempt(Path(tempfile.mkdtemp(prefix="harness-")) / key, 1)
        job.root.mkdir(mode=0o700, parents=True)
        print(f"harness: {results} cannot be written ({error.strerror}); the job is in {job.root}", file=sys.stderr)
    return job


def find_directory(results: Path, name: str, ranks: int) -> JobPaths:
    """The directory that rank 0 of this launch has made, if it is on this host; else one of this rank's own."""
    deadline = time.monotonic() + RENDEZVOUS_S
    while time.monotonic() < deadline:
        told = read_document(_rendezvous(results, ranks)) or {}
        if lives(told.get("pid"), told.get("started")):
            return JobPaths(Path(str(told["job"])))
        time.sleep(0.05)
    print(f"harness: rank 0 has made no job directory below {results}; this rank has its own", file=sys.stderr)
    return make_directory(results, name)


def _tell_ranks(results: Path, ranks: int, job: JobPaths) -> None:
    told = {"job": str(job.root), "pid": os.getpid(), "started": started(os.getpid())}
    path = _rendezvous(results, ranks)
    with contextlib.suppress(OSError):  # then the other ranks have their own
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_document(path, told)


def _rendezvous(results: Path, ranks: int) -> Path:
    """Where rank 0 leaves its word: named by what the ranks of a launch on this host have in common."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID")
    common = [socket.gethostname(), str(ranks), str(_begun), *(os.environ.get(name, "") for name in names)]
    return results / ".ranks" / (hashlib.sha256("\n".join(common).encode()).hexdigest()[:16] + ".json")


def _describe(job: JobPaths, name: str, labels: dict[str, Any], secrets: set[str], place: str | None, n: int) -> None:
    """job.json, as far as a program knows it of itself."""
    argv = list(sys.argv) or [""]
    document = {
        "schema": 1,
        "job_id": str(uuid.uuid4()),
        "case_id": name,
        "attempt": 1,
        "standalone": True,
        "scenario": {"name": name, "trainer": {"kind": "script", "target": redact(argv[0], secrets)}},
        "labels": {"experiment": name, "identifier": job.root.parent.name} | redact_tree(labels, secrets),
        "tags": [],
        "aim": {"repo": redact(place), "timeout_s": AIM_TIMEOUT_S, "index_lock": None} if place else None,
        "command": redact_argv(sys.orig_argv, secrets),
        "cwd": os.getcwd(),
        "world_size": n,
        "created": time.time(),
    }
    write_document(job.job, json.loads(json.dumps(document, default=str)), durable=True)


def _last_word(meter: Meter) -> dict[str, Any]:
    """end.json of a job without a supervisor: nobody knows its exit code, the verdict is the program's own view."""
    error = first_error(meter.job) or meter.dumps.ended_by
    if error is None:
        verdict = {"kind": "none" if meter.steps else "no_training", "reason": "", "rank": None, "step": None}
    else:
        said = " ".join(f"{error['type']}: {error['message']}".removeprefix("builtins.").split())[:400]
        verdict = {"kind": error["kind"], "reason": said, "rank": error["rank"], "step": error["step"]}
    return {"schema": 1, "why": "exit", "exit_code": None, "ended": time.time(), "verdict": verdict}
