"""The local engine: runs a job on this machine under a supervisor, and leaves nothing of it behind.

`command` and `environment` say what a scenario starts; `LocalJob` starts it, waits and ends it."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness import supervise
from harness.engines import diagnostics
from harness.journal import read_document
from harness.probe.layout import JOB_ID, JobPaths
from harness.probe.site_hook import RANK_SIGNS
from harness.probe.staging import BUILT_IN, FMS, start_command
from harness.record import write_json
from harness.scenario import Scenario, fms, placeholders, resolved

# `python -m torch.distributed.run`, but for two things.  The working directory is not in its sys.path: a `queue.py`
# there is the target's.  And once a rank has died, the others have 5 s from SIGTERM to SIGKILL: torchrun closes them
# with the default of this method, 30 s, whatever --shutdown-timeout says (torch 2.13).
TORCHRUN = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; "
    "from torch.distributed.elastic.multiprocessing import PContext; close = PContext.close; "
    "close.__defaults__ = (None, 5) if close.__defaults__ == (None, 30) else close.__defaults__; "
    "from torch.distributed.run import main; main()"
)

# Set by a launcher for its own ranks, or by the pytest around us: a job started inside of either is no part of it.
_LEAKED = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_|PMI_)?(RANK|WORLD_SIZE)|PMI_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|COV_CORE.*|"
    r"(PYTEST|COVERAGE_PROCESS|TORCHELASTIC|TORCH_ELASTIC|PET|OMPI_COMM_WORLD|MV2_COMM_WORLD|HARNESS_RANK)_.*"
)
# What launchers set for a rank alone: torch's and DeepSpeed's; accelerate's for a single process, which has no RANK.
_RANK_SIGNS = ("RANK", "ACCELERATE_MIXED_PRECISION")

_MARGIN_S = 35.0  # beyond the grace: SIGKILL's window, the sampler's end, what appears late, and a busy machine
_SWEEP_S = 10.0
_WATCH_S = 5.0  # how often a waiting harness looks whether the supervisor has been stopped


def command(scenario: Scenario, python: str, job: JobPaths, prepared: Mapping[str, str]) -> list[str]:
    """The argv of a job: the staged probe with the scenario's target, under torchrun when there are several ranks; the
    target alone where it starts its ranks itself.

    `prepared`: what the placeholders stand for that only the prepared case knows."""
    trainer = scenario.trainer
    if trainer.kind == "hf":
        return [*launcher(python, scenario.world_size), *start_command(job, BUILT_IN, module=True)]
    if trainer.kind == "fms":
        arguments = fms.arguments(scenario, prepared)
        return [*launcher(python, scenario.world_size), *start_command(job, FMS, *arguments, module=True)]
    assert trainer.target is not None  # the scenario's own check
    target = str(Path(python).parent / trainer.target) if trainer.form == "program" else trainer.target
    arguments = placeholders.fill(trainer.args, placeholders.keys_of(resolved(scenario)) | dict(prepared))
    module = trainer.form == "module"
    if trainer.launcher == "harness":
        return [*launcher(python, scenario.world_size), *start_command(job, target, *arguments, module=module)]
    if trainer.form == "program":
        return [target, *arguments]
    return [python, "-u", *(["-m"] if module else []), target, *arguments]


def launcher(python: str, world_size: int) -> list[str]:
    """What stands before the program: the interpreter, or its torchrun for several ranks of one node."""
    if world_size == 1:
        return [python, "-u"]
    # --standalone takes a free port.  Without --local-addr the ranks meet at the host's full name; where that cannot be
    # resolved, they hang.  Without -- torchrun refuses a program's `--r`, which could be several of its own options.
    here = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(world_size), "--"]
    return [python, "-c", TORCHRUN, *here]


def environment(
    scenario: Scenario,
    base_environ: Mapping[str, str],
    job: JobPaths,
    *,
    gpus: Sequence[str],
    cpus: int,
    job_id: str,
    torch: str | None = None,
    offline: bool = False,
) -> dict[str, str]:
    """The environment of a job; the scenario's own `env` has the last word, except over the job's id.

    `gpus` are UUIDs: they mean the same whatever CUDA_DEVICE_ORDER says.  `cpus` are all of the job's.  `torch` is the
    version of the stack, as far as it is known.  `offline`: model and data were fetched, the ranks are not to ask a
    hub."""
    environ = {name: value for name, value in base_environ.items() if not _LEAKED.fullmatch(name)}
    environ |= diagnostics.variables(job, environ | dict(scenario.env), torch)
    environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one node; by default gloo, too, wants the host's name resolved
    environ["OMP_NUM_THREADS"] = str(max(1, cpus // scenario.world_size))
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if offline:
        environ["HF_HUB_OFFLINE"] = "1"
    if scenario.trainer.kind == "fms":  # else it writes to that of the pod, which is told the verdict
        environ["TERMINATION_LOG_FILE"] = str(job.termination_log)
    environ |= dict(scenario.env) | {JOB_ID: job_id}
    return environ | _reaching_every_python(environ, job) if scenario.trainer.launcher == "own" else environ


def _reaching_every_python(environ: Mapping[str, str], job: JobPaths) -> dict[str, str]:
    """The variables by which the probe gets into the ranks of a target that starts them itself.

    A variable that the job is given anyway is no sign of a rank."""
    folders = [
        str(job.site),
        *filter(None, [environ.get("PYTHONPATH")]),
    ]  # an empty entry would be the working directory
    signs = [name for name in _RANK_SIGNS if name not in environ]
    return {"PYTHONPATH": os.pathsep.join(folders), RANK_SIGNS: ",".join(signs)}


class LocalJob:
    """A running job; leaving the `with` block ends it.  `end.json` is there once `wait` has said that it ended."""

    def __init__(self, job: JobPaths, supervisor: "subprocess.Popen[bytes]", document: Mapping[str, Any]) -> None:
        self._job, self._supervisor = job, supervisor
        self._id = str(document["job_id"])
        self._grace_s = float(document.get("grace_s") or 0)
        self._started = time.time()
        limit = document.get("time_limit_s")
        self._hard_deadline = None if limit is None else time.monotonic() + limit + self._grace_s + _MARGIN_S
        self._overdue = False
        self._settled = False
        try:
            self._pidfd: int | None = os.pidfd_open(supervisor.pid)
        except OSError:
            self._pidfd = None  # a kernel before 5.3: waiting polls

    @classmethod
    def start(
        cls, job: JobPaths, argv: Sequence[str], environ: Mapping[str, str], lease_fds: Sequence[int] = ()
    ) -> Self:
        """Start `argv` as the job that `job.job` (job.json) describes; supervisor and command inherit `lease_fds`.

        Raises OSError or ValueError when job.json cannot be read or the supervisor not be started."""
        document = json.loads(job.job.read_bytes())
        job.node().mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(job.launcher_log(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervise.__file__, str(job.job), "--", *argv],
                env={**environ, JOB_ID: str(document["job_id"])},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=tuple(lease_fds),
                start_new_session=True,  # Ctrl-C in the terminal reaches pytest alone, which then ends the job in order
            )
        finally:
            os.close(log)
        try:
            return cls(job, supervisor, document)
        except BaseException:
            supervisor.kill()  # the command dies with it, and `sweep` would find the rest
            supervisor.communicate()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(_signal_behind(error))

    @property
    def supervisor_pid(self) -> int:
        return self._supervisor.pid

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the job's end; False when it still runs after `timeout_s`.  KeyboardInterrupt passes through.

        A supervisor that does not end the job in time (stopped, or stuck in a dead file system) is killed, and the job
        with it: nobody else would."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended(_left(until, _WATCH_S)):
            self._wake_stopped()
            if self._hard_deadline is not None and time.monotonic() > self._hard_deadline:
                self._supervisor.kill()
                self._overdue = True
            elif until is not None and time.monotonic() >= until:
                return False
        self._settle()
        return True

    def _wake_stopped(self) -> None:
        """A supervisor has no reason to be stopped: whoever did it (the program itself, say) wins no time by it."""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self._supervisor.pid}/stat").read_bytes().rpartition(b") ")[2][:1]
            if state == b"T":
                self._supervisor.send_signal(signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the job if it runs, which then says that `number` ended it.

        In order, or at once after a KeyboardInterrupt meanwhile, which is raised at the end."""
        interrupted: KeyboardInterrupt | None = None
        patience_s = self._grace_s + _MARGIN_S
        for _ in range(2):
            try:
                if not self._ended(0):
                    self._supervisor.send_signal(number)  # the second one ends the grace
                    self._ended(patience_s)
                break
            except KeyboardInterrupt as error:
                interrupted, patience_s = error, _MARGIN_S
        if self._supervisor.poll() is None:
            self._supervisor.kill()
        self._settle()
        if interrupted is not None:
            raise interrupted

    def _ended(self, timeout_s: float | None) -> bool:
        if self._pidfd is not None and self._supervisor.returncode is None:
            # Popen.wait(timeout) polls; this sleeps until the supervisor ends.
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                return False
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _settle(self) -> None:
        """After the supervisor: make sure of the rest, and that there is an end.json."""
        if self._settled:
            return
        code = self._supervisor.wait()
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        end = read_document(self._job.end)
        if end is None or not end.get("clean"):
            killed, clean = sweep(self._id)
            if end is None:
                with contextlib.suppress(OSError):  # a full disk; what is to be said is also in the launcher's log
                    write_json(self._last_word(code, killed, clean), self._job.end)
                with contextlib.suppress(OSError):
                    self._job.end.with_name(self._job.end.name + ".tmp").unlink()  # what the supervisor had reserved
        self._settled = True

    def _last_word(self, code: int, killed: list[int], clean: bool) -> dict[str, Any]:
        return {
            "schema": supervise.SCHEMA,
            "why": "time_limit" if self._overdue else "supervisor_died",
            "signal": None,
            "exit_code": None,
            "started": self._started,
            "ended": time.time(),
            "clean": clean,
            "killed": killed,
            "error": f"the supervisor ended with {code} and left no end.json; see {self._job.launcher_log().name}",
            "oom_kill": None,
            "hang": None,
        }


def _left(until: float | None, at_most: float) -> float:
    return at_most if until is None else max(0.0, min(at_most, until - time.monotonic()))


def _signal_behind(error: BaseException | None) -> signal.Signals:
    """The signal that made the harness stop: a KeyboardInterrupt that names none came from Ctrl-C."""
    if not isinstance(error, KeyboardInterrupt):
        return signal.SIGTERM
    return next((each for each in (signal.SIGTERM, signal.SIGHUP) if str(error) == each.name), signal.SIGINT)


def sweep(job_id: str, window_s: float = _SWEEP_S) -> tuple[list[int], bool]:
    """Kill every process that carries the job's id, and all below it, until none is left: (killed, none left).

    For a job whose supervisor is gone.  A process that has cleared its environment and lost its parent is not found."""
    killed: list[int] = []
    deadline = time.monotonic() + window_s
    while True:
        found = _processes_of(job_id)
        if not found or time.monotonic() > deadline:
            return killed, not found
        for pid in found:
            if pid not in killed:
                killed.append(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _processes_of(job_id: str) -> list[int]:
    mark = f"{JOB_ID}={job_id}".encode()
    marked = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):  # ended, or another user's
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    marked.append(int(entry))
    return sorted({*marked, *(pid for parent in marked for pid in supervise.descendants(parent))})
