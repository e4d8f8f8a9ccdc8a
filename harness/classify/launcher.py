"""What launchers, schedulers and shells say of the processes they started: who ended how, who was asked to end; pure.

Formats: torchrun 1.9-2.13 (elastic/multiprocessing/api.py, errors/__init__.py), DeepSpeed 0.9-0.19
(launcher/launch.py), accelerate 0.2x-1.15 (simple_launcher), torch.multiprocessing.spawn, Slurm 20-24 (srun,
slurmstepd), Open MPI 4-5, bash."""

import re
import signal
from dataclasses import dataclass, field

from harness.classify.text import Line

SUMMARY_LINES = 20_000  # of torchrun's list of failures, at most: anybody may print `Failures:`
_SUMMARY = re.compile(r"^\s*(?:Failures:|Root Cause \(first observed failure\):)\s*$")
_SUMMARY_RANK = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: (\d+)\)")
_SUMMARY_EXIT = re.compile(r"^\s*exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_ALONE = re.compile(r"^\s*<NO_OTHER_FAILURES>\s*$")
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of binary")
_AGENT = re.compile(
    r"Received (?:Signals\.)?(SIG[A-Z]+|\d+) death signal|SignalException: Process \d+ got signal: (\d+)"
)
_DEEPSPEED = re.compile(r"\[ERROR\] \[launch\.py:\d+:sigkill_handler\] (.*) exits with return code = (-?\d+)")
_LOCAL_RANK = re.compile(r"--local[_-]rank=(\d+)")
_DIED = re.compile(r"CalledProcessError: Command .* died with <Signals\.(SIG[A-Z0-9]+): \d+>")
_RETURNED = re.compile(r"CalledProcessError: Command .* returned non-zero exit status (\d+)")
_SPAWNED = re.compile(r"[Pp]rocess (\d+) terminated with (?:signal (SIG[A-Z]+)|exit code (\d+))")
_SRUN = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): (.+)$")
_SRUN_EXIT = re.compile(r"Exited with exit code (\d+)")
_MPI = re.compile(r"process rank (\d+) with PID (\d+) on node \S+ exited on signal (\d+)")
_SHELL = re.compile(
    r"^(?:\S+: line \d+: +)?(?:\d+ )?(Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction"
    r"|Floating point exception)(?: +\(core dumped\))?(?: {2,}\S.*| *)$"
)
_FAULT = re.compile(
    r"^Fatal Python error: (Segmentation fault|Aborted|Bus error|Illegal instruction|Floating.point.*)$"
)
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,  # srun's word for it
    "Terminated": signal.SIGTERM,
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}


@dataclass(frozen=True)
class Death:
    """How one process ended: a signal, or an exit code."""

    code: int  # negative: the signal
    rank: int | None
    pid: int | None
    line: int
    text: str


@dataclass
class Launcher:
    """Facts gathered line by line.  `summary_rank` is the rank whose entry of torchrun's summary is being read."""

    deaths: list[Death] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)  # pids that torchrun itself ended, once another had failed
    asked: list[tuple[int, int, str]] = field(default_factory=list)  # signals from outside: (signal, line, text)
    alone: bool = False  # torchrun saw one rank fail, and no other
    in_summary: bool = False
    summary_rank: int | None = None
    _summary_lines: int = 0
    _kept = 1000

    def feed(self, line: Line) -> bool:
        """Take a line; whether it said something."""
        text = line.text
        if self.in_summary:
            self._summary_lines += 1
            self.in_summary = self._summary_lines < SUMMARY_LINES
        if _SUMMARY.match(text):
            self.in_summary, self.summary_rank, self._summary_lines = True, None, 0
        elif self.in_summary and text.startswith("====="):
            self.in_summary, self.summary_rank = False, None
        elif self.in_summary and (found := _SUMMARY_RANK.match(text)):
            self.summary_rank = int(found[1])
        elif self.in_summary and self.summary_rank is not None and (found := _SUMMARY_EXIT.match(text)):
            pid = int(found[2])
            # The line before the summary knows the local rank only: another number on every node but the first.
            self.deaths = [death for death in self.deaths if death.pid != pid or death.rank == self.summary_rank]
            self._died(int(found[1]), line, self.summary_rank, pid)
        elif self.in_summary and _ALONE.match(text):
            self.alone = True
        elif found := _CLOSED.search(text):
            if len(self.closed) < self._kept:
                self.closed.add(int(found[1]))
        elif found := _FAILED.search(text):
            self._died(int(found[1]), line, int(found[2]), int(found[3]))
        else:
            return self._feed_others(line)
        return True

    def _feed_others(self, line: Line) -> bool:
        text = line.text
        if found := _AGENT.search(text):
            told = found[1] or found[2]
            number = int(told) if told.isdecimal() else _number(told)
            if len(self.asked) < 20:
                self.asked.append((number, line.number, text))
        elif found := _DEEPSPEED.search(text):
            rank = _LOCAL_RANK.search(found[1])
            self._died(int(found[2]), line, int(rank[1]) if rank else None)
        elif found := _DIED.search(text):
            rank = _LOCAL_RANK.search(text)  # torch.distributed.launch before 1.9
            self._died(-_number(found[1]), line, int(rank[1]) if rank else None)
        elif found := _RETURNED.search(text):
            self._died(int(found[1]), line)
        elif found := _SPAWNED.search(text):
            self._died(-_number(found[2]) if found[2] else int(found[3]), line, int(found[1]))
        elif found := _MPI.search(text):
            self._died(-int(found[3]), line, int(found[1]), int(found[2]))
        elif found := _SRUN.match(text):
            self._feed_srun(line, found[1], found[2])
        elif found := _FAULT.match(text):
            self._died(-_SIGNALS.get(found[1], signal.SIGFPE), line, line.rank)
        elif line.rank is None and (found := _SHELL.match(text)):  # in a rank's own log, it is about a child of it
            self._died(-_SIGNALS[found[1]], line)
        else:
            return False
        return True

    def _feed_srun(self, line: Line, tasks: str, told: str) -> None:
        exited = _SRUN_EXIT.search(told)
        name = next((name for name in _SIGNALS if told.startswith(name)), None)
        if exited is None and name is None:
            return
        code = int(exited[1]) if exited else -_SIGNALS[str(name)]
        for first, _, last in (part.partition("-") for part in tasks.split(",")):
            for rank in range(int(first), int(last or first) + 1)[:64]:
                self._died(code, line, rank)

    def _died(self, code: int, line: Line, rank: int | None = None, pid: int | None = None) -> None:
        if len(self.deaths) < self._kept:
            self.deaths.append(Death(code, rank, pid, line.number, line.text.strip()))


def _number(name: str) -> int:
    return int(getattr(signal, name, 0))
