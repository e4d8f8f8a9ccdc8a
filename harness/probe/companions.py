"""The processes beside a job that a program has begun itself: the sampler and the forwarder.

Both end by themselves when the program is gone.  They are started in the job directory: Aim makes its database by
`python -m`, which would otherwise find the program's own modules."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from .layout import JobPaths

# Environment of the forwarder: where runs go (not in argv, which every user of the machine can read: a URL may hold a
# secret), and the pid of who has started it (a forked child of that one may keep its pipe open).
AIM_REPO, AIM_PARENT = "HARNESS_AIM_REPO", "HARNESS_AIM_PARENT"
AIM_TIMEOUT_S = 30.0  # after a job's end, by default
SAMPLER_END_S = 2.0
FORWARDER_END_S = 5.0  # what the process's end waits for the forwarder: it is mostly done within one
LOST_SOON = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")  # there, what is left behind may be killed with the program
_left: "list[subprocess.Popen[bytes]]" = []  # that go on without their job


def aim_is_installed() -> bool:
    """Whether this interpreter has Aim; nothing is imported."""
    with contextlib.suppress(ValueError):  # a module somebody has made up
        spec = importlib.util.find_spec("aim")
        return spec is not None and spec.origin is not None  # a folder `aim` here, a repo say, has no origin
    return False


def quiet_environment(environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """For a process that must not find the program's own modules."""
    hidden = ("PYTHONPATH", "PYTHONSTARTUP")
    return {name: value for name, value in environ.items() if name not in hidden} | {"PYTHONSAFEPATH": "1"}


class Companions:
    """What was started for one job; whatever cannot be started is told on stderr, and training goes on without."""

    def __init__(self, job: JobPaths, place: str | None, aim_timeout_s: float) -> None:
        self._job, self._aim_timeout_s = job, aim_timeout_s
        self._package = Path(__file__).resolve().parents[1]
        for process in list(_left):
            if process.poll() is not None:
                _left.remove(process)
        self._forwarder = self._start_forwarder(place) if place is not None else None
        self._sampler = self._start_sampler()

    def _start_forwarder(self, place: str) -> "subprocess.Popen[bytes] | None":
        command = ["-I", str(self._package / "forward" / "__main__.py"), str(self._job.root)]
        environ = {AIM_REPO: place, AIM_PARENT: str(os.getpid())}
        return self._start("the forwarder to Aim", command, self._job.forwarder_log, environ)

    def _start_sampler(self) -> "subprocess.Popen[bytes] | None":
        journal = self._job.system_journal()
        several = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) > 1
        # With site-packages, where the binding to a driver may lie; on a machine without one no GPU is found.
        command = ["-I", str(self._package / "sampling" / "__main__.py"), "--out", str(journal), "--visible-gpus"]
        command += ["--root-pid", str(os.getppid() if several else os.getpid()), "--with-root"]
        command += ["--parent", str(os.getpid())]  # told, as it may be gone before the sampler could ask
        if self._forwarder is not None:
            command += ["--without", str(self._forwarder.pid)]
        return self._start("the sampler", command, self._job.launcher_log(), {})

    def _start(
        self, name: str, command: list[str], log: Path, environ: dict[str, str]
    ) -> "subprocess.Popen[bytes] | None":
        try:
            log.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return subprocess.Popen(
                    [sys.executable, *command],
                    cwd=self._job.root,
                    env=quiet_environment(os.environ) | environ,
                    stdin=subprocess.PIPE,  # its end tells that this process is gone
                    stdout=descriptor,
                    stderr=descriptor,
                    start_new_session=True,
                )
            finally:
                os.close(descriptor)
        except (OSError, ValueError, TypeError) as error:  # no interpreter to name: a program that embeds Python
            print(f"harness: {name} could not be started: {error}", file=sys.stderr)
            return None

    def end_sampler(self) -> None:
        """It takes a last sample."""
        if self._sampler is not None:
            self._sampler.terminate()
            try:
                self._sampler.wait(SAMPLER_END_S)
            except subprocess.TimeoutExpired:
                self._sampler.kill()
            _let_go(self._sampler)

    def end_forwarder(self, *, at_exit: bool) -> None:
        """Give it time to bring the job's end into Aim; it goes on without this process where it may."""
        if self._forwarder is None:
            return
        if at_exit:
            lost_soon = os.getpid() == 1 or any(name in os.environ for name in LOST_SOON)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._forwarder.wait(self._aim_timeout_s if lost_soon else FORWARDER_END_S)
        _let_go(self._forwarder)
        if at_exit and self._forwarder.returncode is None:
            self._forwarder.returncode = 0  # for Python a child that still runs is worth a warning


def _let_go(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        _left.append(process)
