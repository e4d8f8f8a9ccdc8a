"""A program that asks to be measured: it joins the job it runs in, or begins one of its own.

Under the harness the probe measures already, and the program adds its labels.  Without the harness the program's own
process is the job: it makes the job directory, starts the sampler and the forwarder, and writes the end."""

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .dump import first_error
from .layout import JobPaths, attempt, run_hash_of
from .measure import Meter
from .reading import read_document
from .redact import redact, redact_argv, redact_tree, secret_arguments, secret_values
from .start import begin
from .writing import write_document

RESULTS = "results"  # in the working directory: where a program's own jobs go, and their Aim repo
AIM_TIMEOUT_S = 30.0
SAMPLER_END_S = 2.0
COPIES = ("harness_probe.measure", "harness.probe.measure")  # the staged one, and the installed one

Repo = str | os.PathLike[str] | Literal[False] | None
_begun = 0  # jobs of this process's own so far
_end_own: Callable[[], None] | None = None  # ends the last of them


@dataclass
class Attachment:
    """What a callback or a journal of the program holds on to."""

    meter: Meter
    own: bool  # it is this one's to measure: the job is the program's own

    @property
    def run_hash(self) -> str | None:
        """Of the run in Aim; None where there is none."""
        launched, aim = self._launched()
        told = read_document(self.meter.job.forwarder) or {}
        return run_hash_of(str(launched.get("job_id"))) if aim and told.get("state") != "failed" else None

    @property
    def repo(self) -> str | None:
        """Where the run is, secrets hidden; None without Aim."""
        repo = self._launched()[1].get("repo")
        return str(repo) if repo else None

    def _launched(self) -> tuple[dict[str, Any], dict[str, Any]]:
        launched = read_document(self.meter.job.job) or {}
        aim = launched.get("aim")
        return launched, aim if isinstance(aim, dict) else {}


def attach(
    labels: Mapping[str, Any] | None,
    output_file: str | os.PathLike[str] | None,
    repo: Repo,
) -> Attachment:
    """Join the job, or begin one.  Raises TypeError for labels that are no mapping, OSError for absent folders."""
    if labels is not None and not isinstance(labels, Mapping):
        raise TypeError(f"custom_metadata is a {type(labels).__name__}, not a mapping of labels")
    labels = {str(key): _plain(value) for key, value in (labels or {}).items()}
    output = Path(output_file).absolute() if output_file is not None else None
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    meter = _running()
    if meter is not None:
        joined = Attachment(meter, own=False)
        if repo:
            print("harness: this job's run goes where the harness was told, not to the program's repo", file=sys.stderr)
    else:
        joined = _begin_own(labels, repo)
        meter = joined.meter
    meter.label(labels)
    if output is not None:
        meter.outputs.append(output)
    return joined


def _running() -> Meter | None:
    """The meter of the harness's probe in this process, whichever copy of the probe the program has imported."""
    for name in COPIES:
        found: Meter | None = getattr(sys.modules.get(name), "_active", None)
        if found is not None and not found.off:
            return found
    return None


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _begin_own(labels: dict[str, Any], repo: Repo) -> Attachment:
    global _begun, _end_own
    if _end_own is not None:  # one at a time: a search over hyperparameters makes a callback for each
        _end_own()
        atexit.unregister(_end_own)
    _begun += 1
    rank, results = int(os.environ.get("RANK", "0") or 0), Path(RESULTS).absolute()
    target = sys.argv[0] or "program"
    name, key = _name(target), _key()
    job = attempt(results / f"{name}-{key}", 1)
    job.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = _place(repo, results)
    secrets = secret_values(os.environ) | secret_arguments(sys.argv[1:])
    if rank == 0:
        _describe(job, name, key, labels, secrets, place)
    meter = begin(job, rank, target, secrets, phase="setup")
    _end_own = functools.partial(_end, meter, _Companions(job, place) if rank == 0 else None)
    atexit.register(_end_own)
    return Attachment(meter, own=True)


def _place(repo: Repo, results: Path) -> str | None:
    """Where the run goes: by default the results folder, if this interpreter has Aim; None: nowhere."""
    if repo is False:
        return None
    if repo is None:
        return str(results) if importlib.util.find_spec("aim") is not None else None
    place = os.fspath(repo)
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _name(target: str) -> str:
    stem = Path(target).stem
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem)
    return plain.strip(".-")[:60] or "program"


def _key() -> str:
    """What the ranks of one launch on one node have in common, and no other launch has: `TIME-ID`."""
    if "RANK" not in os.environ:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    launcher = os.getppid()
    try:
        ticks = int(Path(f"/proc/{launcher}/stat").read_bytes().rpartition(b")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        started = int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        started = 0.0
    common = [*(os.environ.get(name, "") for name in names), str(launcher), str(started), str(_begun)]
    digest = hashlib.sha256("\n".join(common).encode()).hexdigest()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}-{digest[:6]}"


def _describe(job: JobPaths, name: str, key: str, labels: dict[str, Any], secrets: set[str], place: str | None) -> None:
    """job.json, as far as a program knows it of itself."""
    job_id = str(uuid.uuid4())
    document = {
        "schema": 1,
        "job_id": job_id,
        "case_id": name,
        "attempt": 1,
        "standalone": True,
        "scenario": {"name": name, "trainer": {"kind": "script", "target": redact(sys.argv[0], secrets)}},
        "labels": {"experiment": name, "identifier": f"{name}-{key}"} | redact_tree(labels, secrets),
        "tags": [],
        "aim": {"repo": redact(place), "timeout_s": AIM_TIMEOUT_S, "index_lock": None} if place else None,
        "command": redact_argv(sys.orig_argv, secrets),
        "cwd": os.getcwd(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1") or 1),
        "created": time.time(),
    }
    write_document(job.job, document, durable=True)


class _Companions:
    """The sampler and the forwarder of a job without a supervisor; both end by themselves when this process is gone."""

    def __init__(self, job: JobPaths, place: str | None) -> None:
        package = Path(__file__).resolve().parents[1]
        self._job = job
        self.forwarder = self._start_forwarder(package, place) if place is not None else None
        self.sampler = self._start_sampler(package)

    def _start_forwarder(self, package: Path, place: str) -> "subprocess.Popen[bytes] | None":
        return self._start(
            [sys.executable, "-I", str(package / "forward" / "__main__.py"), str(self._job.root)],
            self._job.forwarder_log,
            {"HARNESS_AIM_REPO": place},
        )

    def _start_sampler(self, package: Path) -> "subprocess.Popen[bytes] | None":
        journal = self._job.system_journal()
        journal.parent.mkdir(mode=0o700, exist_ok=True)
        several = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) > 1
        command = [sys.executable, "-I", "-S", str(package / "sampling" / "__main__.py"), "--out", str(journal)]
        command += ["--root-pid", str(os.getppid() if several else os.getpid()), "--with-root"]
        command += ["--parent", str(os.getpid())]  # told, as it may be gone before the sampler could ask
        if self.forwarder is not None:
            command += ["--without", str(self.forwarder.pid)]
        return self._start(command, self._job.launcher_log(), {})

    @staticmethod
    def _start(command: list[str], log: Path, environ: dict[str, str]) -> "subprocess.Popen[bytes] | None":
        """None where it cannot be started: training goes on without."""
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return subprocess.Popen(
                    command,
                    env={**os.environ, **environ},
                    stdin=subprocess.PIPE,  # its end tells that this process is gone
                    stdout=descriptor,
                    stderr=descriptor,
                    start_new_session=True,
                )
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            print(f"harness: {Path(command[-1]).name} not started: {error}", file=sys.stderr)
            return None

    def end_sampler(self) -> None:
        if self.sampler is not None:
            self.sampler.terminate()
            try:
                self.sampler.wait(SAMPLER_END_S)
            except subprocess.TimeoutExpired:
                self.sampler.kill()

    def let_go(self) -> None:
        """The forwarder goes on without this process: for Python a child that still runs is worth a warning."""
        for process in (self.forwarder, self.sampler):
            if process is not None:
                if process.stdin is not None:
                    process.stdin.close()
                if process.returncode is None:
                    process.returncode = 0


def _end(meter: Meter, companions: _Companions | None) -> None:
    """The job ends, with the process or before the next: the journal's last lines, the dump, the verdict for Aim."""
    if meter.off:  # a forked child
        return
    with meter.guard("end"):
        left = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(left, BaseException):
            meter.left(left)
        else:
            meter.exit_code = None  # sys.exit(1) and a plain end look alike from here
        if companions is not None:
            companions.end_sampler()
    meter.end()
    if companions is not None:
        with contextlib.suppress(OSError):
            write_document(meter.job.end, _last_word(meter), durable=True)
        companions.let_go()
        told = read_document(meter.job.forwarder) or {}
        if told.get("state") == "failed":
            print(f"harness: nothing has reached Aim: {told.get('reason')}", file=sys.stderr)


def _last_word(meter: Meter) -> dict[str, Any]:
    """end.json of a job without a supervisor: nobody knows its exit code, the verdict is the program's own view."""
    error = first_error(meter.job)
    if error is None:
        verdict = {"kind": "none" if meter.steps else "no_training", "reason": "", "rank": None, "step": None}
    else:
        said = " ".join(f"{error['type']}: {error['message']}".removeprefix("builtins.").split())[:400]
        verdict = {"kind": error["kind"], "reason": said, "rank": error["rank"], "step": error["step"]}
    return {"schema": 1, "why": "exit", "exit_code": None, "ended": time.time(), "verdict": verdict}
