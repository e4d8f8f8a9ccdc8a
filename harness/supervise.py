"""Runs one job's command and lets nothing of it live on: `python -I -S supervise.py JOB_DIR/job.json -- COMMAND`.

Standard library only, and of the harness `watch` alone.  Stdin is a pipe whose other end the harness holds: end of
file means that the harness died.  Every other descriptor that is open at the start (3 and up) is a lease: the command
inherits it, so a lease lasts as long as the supervisor or the command; the sampler does not.  The environment is the
target's.  The command is not read from job.json: secrets among its arguments are hidden there.

Exit code: the command's (128+N when signal N ended it); 124 time limit or hang, 128+N after signal N, 143 when the
harness died, 127 command not found, 126 not startable, 2 usage or job.json not readable."""

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

if not __package__:  # started by path: sys.path holds the library alone, whose modules those at its end do not hide
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness.watch import progress, stacks
from harness.watch.cgroups import cgroup_chain

SCHEMA = 1

# event -> field -> what it holds, as in probe/journal.py; every line also has t, m and e.
SUPERVISOR_EVENTS: dict[str, dict[str, str]] = {
    "start": {
        "schema": "version of this table",
        "pid": "process id of the supervisor",
        "job_id": "the job's id, as in job.json",
        "oom_kill": "the cgroup's count of processes killed for memory so far; null where there is none",
    },
    "sampler_started": {"pid": "process id of the sampler; comes again where one died, at most 3 times"},
    "sampler_ended": {"exit_code": "exit code of the sampler, negative for a signal; null when it did not start"},
    "command_started": {"pid": "process id of the command"},
    "command_ended": {"exit_code": "exit code of the command, negative for a signal"},
    "signal": {"name": "signal that the supervisor received"},
    "time_limit": {"seconds": "the limit that passed"},
    "stacks": {
        "ranks": "ranks whose stacks stand in rank-N/stacks.txt now; asked for at a hang and at the time limit",
        "without": "ranks that did not answer, or whose process is gone",
    },
    "hang": {
        "lagging_rank": "the rank that the others wait for; null when nothing tells one from another",
        "silent_s": "how long no rank got on: no event of progress in a journal, no byte in a log",
        "limit_s": "the silence that counts as a hang here",
        "ranks": "by rank: event (its last one of progress), step (its last), steps (how many), silent_s, "
        "in_collective (whether its main thread waits for other ranks, by its stack; null without one), at (where it "
        "stands)",
    },
    "ending": {"why": "why everything is ended now: exit, time_limit, hang, signal, parent_died, start_failed"},
    "killed": {"pid": "process that needed SIGKILL", "name": "its name, as the kernel knows it"},
    "end": {
        "why": "as in ending",
        "exit_code": "exit code of the command, negative for a signal; null when it never started or would not end",
        "clean": "true when no process of the job is left",
        "oom_kill": "processes of the cgroup killed for memory since the start; null where there is no count",
    },
}

_KILL_WINDOW_S = 10.0  # how long SIGKILL is repeated; what is left then hangs in the kernel
_SAMPLER_GRACE_S = 5.0
_SAMPLER_RESTARTS = 3  # of a sampler that dies
_SAMPLER_PAUSE_S = 1.0  # before the first, twice as long before each next: what kills it may pass
_POLL_S = 0.05
_KILLED_LISTED = 200  # pids named in end.json; a fork bomb must not outgrow the reserved file
_RANKS_LISTED = 40  # the same of the ranks of a hang
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KERNEL_RECORDS = 100_000  # read at the end of a job at most
_KERNEL_WORDS = re.compile(r"oom-kill:|Out of memory: |Memory cgroup out of memory: |NVRM: Xid|fallen off the bus")
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Journal:
    """Appends events, one write(2) a line; a failing disk is reported on stderr, never raised."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._fd = _open(path, os.O_APPEND)

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"t": time.time(), "m": time.monotonic(), "e": event, **fields}, separators=(",", ":"))
        try:
            os.write(self._fd, line.encode() + b"\n")
        except OSError as error:
            _complain(f"journal lost {line}: {error}")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a file system without fsync: write(2) has already left the process
            os.fsync(self._fd)
        os.close(self._fd)


class EndFile:
    """end.json, replaced atomically.  Its blocks are taken at the start: a full disk must not cost the last word."""

    _reserved_bytes = 32768

    def __init__(self, path: str) -> None:
        self._path, self._temporary = path, f"{path}.tmp"
        self._fd = _open(self._temporary, os.O_TRUNC)
        with contextlib.suppress(OSError):  # a file system that cannot
            os.posix_fallocate(self._fd, 0, self._reserved_bytes)

    def write(self, **document: Any) -> None:
        data = json.dumps(document, indent=1).encode() + b"\n"
        try:
            if os.pwrite(self._fd, data, 0) != len(data):
                raise OSError("short write")
            os.ftruncate(self._fd, len(data))
            os.fsync(self._fd)
            os.replace(self._temporary, self._path)
        except OSError as error:
            _complain(f"cannot write {self._path}: {error}; it would say {json.dumps(document)}")


class KernelLog:
    """What the kernel says of memory and GPUs from now on; nothing where it may not be read (most containers)."""

    def __init__(self, path: str | None, device: str = "/dev/kmsg") -> None:
        self._path, self._fd = path, None
        if path is not None:
            with contextlib.suppress(OSError):
                self._fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)

    def write(self) -> None:
        """Keep the lines of interest since the start, as `SECONDS TEXT`; no file when there is none."""
        lines = [] if self._fd is None else list(kernel_lines(kernel_records(self._fd), time.time() - boot_s()))
        if lines and self._path is not None:
            with contextlib.suppress(OSError), os.fdopen(_open(self._path, os.O_TRUNC), "w") as file:
                file.writelines(f"{t:.6f} {text}\n" for t, text in lines)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def kernel_records(fd: int) -> Iterator[str]:
    """The records that can be read without waiting."""
    for _ in range(_KERNEL_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:  # the ring went round: the oldest that is left comes next
            continue
        except OSError:
            return
        if not record:
            return
        yield record.decode(errors="replace")


def kernel_lines(records: Iterable[str], booted: float) -> Iterator[tuple[float, str]]:
    """(seconds since the epoch, text) of the records of interest: `priority,number,microseconds,flags;text`."""
    for record in records:
        head, _, rest = record.partition(";")
        fields, text = head.split(","), rest.split("\n", 1)[0]
        if len(fields) >= 3 and fields[2].isdecimal() and _KERNEL_WORDS.search(text):
            yield booted + int(fields[2]) / 1e6, text


def boot_s() -> float:
    """Seconds since boot, on the clock of the kernel's log."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Supervisor:
    """One job.  `run` returns this process's exit code when nothing of the job is left."""

    def __init__(self, job: dict[str, Any], folder: Path, argv: list[str], leases: tuple[int, ...]) -> None:
        self._job, self._folder, self._argv, self._leases = job, folder, argv, leases
        self._journal = Journal(job["files"]["supervisor_journal"])
        self._end_file = EndFile(job["files"]["end"])
        self._kernel_log = KernelLog(job["files"].get("kernel_log"))
        self._grace_s = float(job.get("grace_s") or 0)
        self._progress = progress.Progress(folder, job.get("hang_after_s"), scales=bool(job.get("hang_after_scales")))
        self._hang: dict[str, Any] | None = None
        self._parent = os.getppid()
        self._command: subprocess.Popen[bytes] | None = None
        self._sampler: subprocess.Popen[bytes] | None = None
        self._sampler_restarts = 0
        self._sampler_due: float | None = None  # when to start one that died anew
        self._stdin_open = True
        self._signals: list[signal.Signals] = []
        self._killed: list[int] = []
        self._wake, wake_write = os.pipe()
        for fd in (self._wake, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (*_STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # without a handler nothing reaches the wake-up pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOPPING, signal.SIGCHLD))

    def run(self) -> int:
        started, oom_before = time.time(), oom_kills()
        job_id = self._job.get("job_id")
        self._journal.write("start", schema=SCHEMA, pid=os.getpid(), job_id=job_id, oom_kill=oom_before)
        # From here on orphans are handed to this process and not to init: no daemon gets out of sight.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._start_sampler()
        error, code = self._start_command()
        why = "start_failed" if error else self._wait()
        if why in ("hang", "time_limit"):
            try:
                self._tell_of_ranks(why)
            except Exception as fault:  # whatever it is: the job's end does not depend on what is told of it
                _complain(f"no stacks: {type(fault).__name__}: {fault}")
        self._journal.write("ending", why=why)
        clean = self._end_descendants(self._grace_s)
        self._end_sampler()
        if self._reap():  # forked and orphaned while /proc was read: who is left hangs below a child of this process
            clean = self._end_descendants(0.0)
        exit_code = self._command.returncode if self._command else None
        self._kernel_log.write()
        oom_after = oom_kills()
        oom = None if oom_after is None or oom_before is None else oom_after - oom_before
        self._journal.write("end", why=why, exit_code=exit_code, clean=clean, oom_kill=oom)
        self._journal.close()
        stacks.remove_pipes(self._folder / "node-0")
        self._end_file.write(
            schema=SCHEMA,
            why=why,
            signal=self._signals[0].name if why == "signal" else None,
            exit_code=exit_code,
            started=started,
            ended=time.time(),
            clean=clean,
            killed=self._killed[:_KILLED_LISTED],
            error=error,
            oom_kill=oom,
            hang=None if self._hang is None else progress.listed(self._hang, _RANKS_LISTED),
        )
        if why == "exit" and exit_code is not None:
            return exit_code if exit_code >= 0 else 128 - exit_code
        if why == "signal":
            return 128 + self._signals[0]
        return {"start_failed": code, "time_limit": 124, "hang": 124}.get(why, 143)

    def _start_sampler(self) -> None:
        if not self._job.get("sampler"):
            return
        argv = [*self._job["sampler"], "--root-pid", str(os.getpid())]
        try:
            self._sampler = _start(argv, signal.SIGTERM, 2)
        except (OSError, subprocess.SubprocessError) as error:
            _complain(f"sampler: {error}")
            self._journal.write("sampler_ended", exit_code=None)
        else:
            self._journal.write("sampler_started", pid=self._sampler.pid)

    def _restart_sampler(self) -> None:
        """Start one that died anew, after a pause and not for ever; it says itself how long nobody wrote."""
        if self._sampler is None or self._sampler.returncode is None or self._sampler_restarts >= _SAMPLER_RESTARTS:
            return
        if self._sampler_due is None:
            self._sampler_due = time.monotonic() + _SAMPLER_PAUSE_S * 2**self._sampler_restarts
        elif time.monotonic() >= self._sampler_due:
            self._sampler_restarts, self._sampler_due = self._sampler_restarts + 1, None
            self._start_sampler()

    def _start_command(self) -> tuple[str | None, int]:
        """Start the command; what is wrong and the exit code to use when it cannot be."""
        try:
            cwd = self._job.get("cwd")
            with open(self._job["files"]["launcher_log"], "ab") as log:
                self._command = _start(self._argv, signal.SIGKILL, log.fileno(), cwd, self._leases)
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            return f"{type(error).__name__}: {error}", 127 if isinstance(error, FileNotFoundError) else 126
        self._journal.write("command_started", pid=self._command.pid)
        return None, 0

    def _wait(self) -> str:
        """Why the job is to be ended."""
        limit = self._job.get("time_limit_s")
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            self._listen(max(0.0, left))
            if self._command and self._command.returncode is not None:
                return "exit"
            if self._signals:
                return "signal"
            # The second half is for a fork of the harness that holds the pipe's other end open.
            if not self._stdin_open or os.getppid() != self._parent:
                return "parent_died"
            if deadline is not None and time.monotonic() >= deadline:
                self._journal.write("time_limit", seconds=limit)
                return "time_limit"
            if self._progress.hangs(time.monotonic()):
                return "hang"
            self._restart_sampler()

    def _tell_of_ranks(self, why: str) -> None:
        """Before a job that does not end by itself is ended: where its ranks stand, and at a hang which one lags."""
        hangs = why == "hang"
        if not hangs:
            self._progress.look(time.monotonic())
        ranks = self._progress.ranks.values()
        alive = progress.living(ranks, descendants(os.getpid()))
        told = stacks.collect(self._folder, alive, why, thorough=hangs)
        answered = sorted(rank for rank, text in told.items() if text is not None)
        without = sorted({rank.rank for rank in ranks} - set(answered))
        self._journal.write("stacks", ranks=answered, without=without)
        if hangs:
            self._hang = self._progress.describe(
                {rank: stacks.in_collective(text) for rank, text in told.items()},
                {rank: stacks.place(text) for rank, text in told.items()},
            )
            self._journal.write("hang", **self._hang)

    def _listen(self, timeout_s: float) -> None:
        """Wait for a signal, a child's end or the end of stdin; take in what happened."""
        watched = [self._wake, 0] if self._stdin_open else [self._wake]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        self._reap()
        if self._wake in ready:
            for number in os.read(self._wake, 65536):
                if number in _STOPPING:
                    self._signals.append(signal.Signals(number))
                    self._journal.write("signal", name=signal.Signals(number).name)
        if 0 in ready:
            self._stdin_open = False
            with contextlib.suppress(OSError):  # a socket may be reset
                self._stdin_open = bool(os.read(0, 65536))

    def _reap(self) -> bool:
        """Collect the dead, adopted orphans included, so that no zombie keeps a pid; whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            for process, event in ((self._command, "command_ended"), (self._sampler, "sampler_ended")):
                if process is not None and process.pid == pid and process.returncode is None:
                    process.returncode = code
                    self._journal.write(event, exit_code=code)

    def _end_descendants(self, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL, until no descendant but the sampler is left; False when some would not go.

        The command alone gets the first half of the grace: a launcher passes the signal on to its ranks itself.
        A second signal to the supervisor ends the grace."""
        begun, asked = time.monotonic(), set[int]()
        while True:
            self._reap()
            alive = descendants(os.getpid(), without=_living(self._sampler))
            passed = time.monotonic() - begun
            if not alive:
                return True
            if passed > grace_s + _KILL_WINDOW_S:
                return False
            if passed >= grace_s or len(self._signals) > 1:
                grace_s = min(grace_s, passed)
                for pid in alive:
                    self._kill(pid)
            else:
                command = _living(self._command)
                for pid in [command] if command is not None and passed < grace_s / 2 else alive:
                    if pid not in asked:
                        asked.add(pid)
                        _send(pid, signal.SIGTERM)
                        _send(pid, signal.SIGCONT)  # a stopped process would not see the SIGTERM
            self._listen(_POLL_S)

    def _kill(self, pid: int) -> None:
        name = ""
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        if _send(pid, signal.SIGKILL) and pid not in self._killed:
            self._killed.append(pid)
            self._journal.write("killed", pid=pid, name=name)

    def _end_sampler(self) -> None:
        if (pid := _living(self._sampler)) is not None:
            _send(pid, signal.SIGTERM)
        begun = time.monotonic()
        while (pid := _living(self._sampler)) is not None and time.monotonic() < begun + 2 * _SAMPLER_GRACE_S:
            if time.monotonic() > begun + _SAMPLER_GRACE_S:
                _send(pid, signal.SIGKILL)
            self._listen(_POLL_S)


def descendants(root: int, without: int | None = None, proc: str = "/proc") -> list[int]:
    """The living processes below `root`, by one pass over /proc; no zombies, and not `without` or what is below it."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir(proc):
        with contextlib.suppress(OSError, ValueError):  # no process, or it ended meanwhile
            pid = int(entry)
            stat = Path(proc, entry, "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            children.setdefault(int(fields[1]), []).append(pid)
            # A process whose first thread has left looks like a zombie while other threads run.
            if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
                zombies.add(pid)
    found, todo = [], [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid != without:
                todo.append(pid)
                found.append(pid)
    return [pid for pid in found if pid not in zombies]


def oom_kills(proc: str = "/proc/self") -> int | None:
    """How many processes of this process's cgroup the kernel has killed for memory; None where it does not count."""
    version, folders = cgroup_chain("memory", proc)
    with contextlib.suppress(OSError, IndexError):
        text = (folders[0] / ("memory.events" if version == 2 else "memory.oom_control")).read_text()
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return None


def _start(
    argv: list[str], at_death: signal.Signals, output: int, cwd: str | None = None, pass_fds: tuple[int, ...] = ()
) -> "subprocess.Popen[bytes]":
    """Start a child that gets the signal `at_death` when this process dies."""
    parent, number = os.getpid(), int(at_death)

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)

    return subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        start_new_session=True,  # a command that signals its own group must not reach this process
        preexec_fn=prepare,
    )


def _living(process: "subprocess.Popen[bytes] | None") -> int | None:
    """Its pid until it has been collected: after that the number may be another's."""
    return process.pid if process is not None and process.returncode is None else None


def _open(path: str, flag: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, 0o600)


def _send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(OSError):  # gone, or another user's (a setuid program): the caller counts what is left
        os.kill(pid, number)
        return True
    return False


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody is left to tell
        os.write(2, f"harness supervisor: {text}\n".encode(errors="replace"))


def inherited_descriptors() -> tuple[int, ...]:
    """The descriptors from 3 up that are open: before anything else has been opened, those are the leases."""
    listed = sorted(map(int, os.listdir("/proc/self/fd")))
    return tuple(fd for fd in listed if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}"))  # the listing's own is gone


def main(argv: list[str]) -> int:
    leases = inherited_descriptors()
    try:
        job_file, separator, *command = argv
        if separator != "--":
            raise ValueError("usage: supervise.py JOB_DIR/job.json -- COMMAND")
        supervisor = Supervisor(json.loads(Path(job_file).read_bytes()), Path(job_file).parent, command, leases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        _complain(f"cannot use job.json: {type(error).__name__}: {error}")
        return 2
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
