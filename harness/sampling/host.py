"""Readers of /proc for the sampler: the processes below a root in one pass, and the host.  Standard library only.

Raw reads instead of psutil, whose walk of a tree alone would cost more than a whole sample."""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_FD_SIZES = os.path.exists("/proc/self/fd") and os.stat("/proc/self/fd").st_size > 0


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    cpu_s: float  # its own and that of the children it has waited for
    children_cpu_s: float  # the latter alone
    threads: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes below a root.  `cpu_s` counts ended processes once their parent has collected them."""

    pids: tuple[int, ...]
    rss_bytes: int
    cpu_s: float
    threads: int


def read_processes(proc: str = "/proc") -> dict[int, Process]:
    """All processes, by one pass; those that end meanwhile are left out."""
    found = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                with open(f"{proc}/{entry}/stat", "rb", buffering=0) as file:
                    process = parse_stat(file.read())
            except OSError:
                continue
            found[process.pid] = process
    return found


def parse_stat(stat: bytes) -> Process:
    """The fields of a stat line; a process's name may hold blanks and parentheses."""
    end = stat.rindex(b")")
    fields = stat[end + 2 :].split()
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Process(
        pid=int(stat[: stat.index(b" ")]),
        parent=int(fields[1]),
        cpu_s=(own + children) / _TICK,
        children_cpu_s=children / _TICK,
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE,
    )


def tree_below(root: int, processes: dict[int, Process], without: Collection[int], *, with_root: bool = False) -> Tree:
    """Sum up the processes below `root`, and it too if asked to; those of `without` and what is below count nowhere."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found = [processes[root]] if with_root and root in processes else []
    todo = [root]
    while todo:
        for process in children.get(todo.pop(), ()):
            if process.pid not in without:
                found.append(process)
                todo.append(process.pid)
    collected = processes[root].children_cpu_s if root in processes and not with_root else 0.0
    return Tree(
        pids=tuple(process.pid for process in found),
        rss_bytes=sum(process.rss_bytes for process in found),
        cpu_s=collected + sum(process.cpu_s for process in found),
        threads=sum(process.threads for process in found),
    )


def is_below(
    pid: int, root: int, without: Collection[int], *, with_root: bool = False, proc: str = "/proc"
) -> bool | None:
    """Whether a process is of the tree below `root`; None when there is no such process (any more)."""
    at = pid
    while at not in without and at > 1:
        if at == root:
            return with_root or at != pid
        try:
            with open(f"{proc}/{at}/stat", "rb", buffering=0) as file:
                at = parse_stat(file.read()).parent
        except OSError:
            return None
    return False


def count_files(pids: Iterable[int], proc: str = "/proc") -> int | None:
    """Files that processes have open; None when one that lives does not tell (another user's)."""
    total = 0
    for pid in pids:
        folder = f"{proc}/{pid}/fd"
        try:
            # The folder's size is their number since Linux 6.2; before, it is 0, and listing is dear.
            total += os.stat(folder).st_size if _FD_SIZES else len(os.listdir(folder))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except OSError:
            return None
    return total


def read_network(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """Bytes that the network namespace of a process has received and sent, loopback left out; None when not told."""
    try:
        with open(f"{proc}/{pid}/net/dev", "rb", buffering=0) as file:
            lines = file.read().splitlines()[2:]
        counts = [
            fields.split() for name, _, fields in (line.partition(b":") for line in lines) if name.strip() != b"lo"
        ]
        return sum(int(fields[0]) for fields in counts), sum(int(fields[8]) for fields in counts)
    except (OSError, ValueError, IndexError):
        return None


class CpuEnergy:
    """Joules that the processors have used since this began, by RAPL; most systems let root alone read it."""

    def __init__(self, folder: str = "/sys/class/powercap") -> None:
        self._joules = 0.0
        self._ranges: dict[str, int] = {}
        try:
            packages = [name for name in os.listdir(folder) if re.fullmatch(r"intel-rapl:\d+", name)]
            for name in packages:
                with open(f"{folder}/{name}/max_energy_range_uj") as file:
                    self._ranges[f"{folder}/{name}/energy_uj"] = int(file.read())
        except (OSError, ValueError):
            self._ranges = {}
        self._before = self._counters()

    def read(self) -> float | None:
        """Joules so far; None where they may not be read."""
        before, now = self._before, self._counters()
        if before is None or now is None:
            return None
        for path, count in now.items():
            # A counter begins anew at its range, after minutes under load.
            self._joules += (count - before[path]) % (self._ranges[path] + 1) / 1e6
        self._before = now
        return round(self._joules, 3)

    def _counters(self) -> dict[str, int] | None:
        found = {}
        try:
            for path in self._ranges:
                with open(path) as file:
                    found[path] = int(file.read())
        except (OSError, ValueError):
            return None
        return found or None


def read_io(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """Bytes read from and written to storage, ended children that it has waited for included; None when not told."""
    try:
        with open(f"{proc}/{pid}/io", "rb", buffering=0) as file:
            fields = dict(line.split(b": ") for line in file.read().splitlines())
        return int(fields[b"read_bytes"]), int(fields[b"write_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def read_pss(pids: tuple[int, ...], proc: str = "/proc") -> int | None:
    """Proportional set size of all; None when one that lives does not tell (another user's, an old kernel)."""
    total = 0
    for pid in pids:
        try:
            with open(f"{proc}/{pid}/smaps_rollup", "rb", buffering=0) as file:
                text = file.read()
        except (FileNotFoundError, ProcessLookupError):
            if not os.path.exists(f"{proc}/self/smaps_rollup"):
                return None
            continue  # it ended meanwhile
        except OSError:
            return None
        at = text.find(b"\nPss:")
        if at >= 0:  # a zombie has no memory
            total += int(text[at + 5 : text.index(b"kB", at)]) * 1024
    return total


def read_memory(proc: str = "/proc") -> tuple[int | None, int | None]:
    """Total and available memory of the host in bytes."""
    values: dict[bytes, int] = {}
    try:
        with open(f"{proc}/meminfo", "rb", buffering=0) as file:
            for line in file.read(512).splitlines()[:4]:
                name, _, value = line.partition(b":")
                values[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return values.get(b"MemTotal"), values.get(b"MemAvailable")


def read_cpu_ticks(proc: str = "/proc") -> tuple[int, int] | None:
    """Ticks that all CPUs were busy, and ticks in all, since boot; waiting for a disk is idle."""
    try:
        with open(f"{proc}/stat", "rb", buffering=0) as file:
            # user nice system idle iowait irq softirq steal; guest time is within user
            ticks = [int(value) for value in file.read(256).split(b"\n", 1)[0].split()[1:9]]
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)
    except (OSError, ValueError):
        return None


def read_load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
