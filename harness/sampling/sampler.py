"""The sampler: a process beside a job that writes one line a second about the job's processes and the host.

The supervisor starts it and ends it by SIGTERM, on which it takes a last sample.  Standard library and the probe's
journal only, so that it starts in a few hundredths of a second and needs no installation; for a job with GPUs also the
vendor's binding, in a thread.  Started anew on a journal that is there already, it says how long nobody wrote."""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from harness.probe.journal import JournalFile
from harness.probe.reading import decode_event
from harness.sampling import host
from harness.sampling.cgroups import Cgroup, pressure
from harness.sampling.gpu_poll import GpuPoll
from harness.sampling.gpu_reader import GPU_EVENTS
from harness.sampling.nvml import Nvml

# event -> field -> what it holds: the events of the journal beside `sample`.
SYSTEM_EVENTS: dict[str, dict[str, str]] = {
    "start": {
        "pid": "process id of the sampler",
        "interval_s": "seconds between samples",
        "cgroup_version": "version of the control groups that rule the job; null where none does",
        "memory_limit_bytes": "smallest limit of memory of the job's control group and those above; null without one",
        "cpu_limit": "CPUs that they allow to be used at once; null without a limit",
        "reasons": "why a limit, or a field of a sample's group `cgroup`, is null",
    },
    "gap": {
        "from_m": "when the sampler before wrote its last line, on the clock of m; it ended without being told to",
        "seconds": "how long nobody has written",
    },
    **GPU_EVENTS,
}

# group -> field -> what it holds: the fields of a `sample` line; every line also has t, m and e.
SAMPLE_FIELDS: dict[str, dict[str, str]] = {
    "tree": {
        "processes": "number of processes of the job: all below the supervisor, without it and without the sampler",
        "rss_bytes": "their resident memory; a page that several share counts once for each; null when none lives",
        "pss_bytes": "the same with shared pages shared out; null in most samples (it is dear) and where not permitted",
        "cpu_s": "CPU seconds of the job so far, ended processes included; never falls",
        "threads": "number of their threads",
        "open_files": "files, sockets and pipes that they have open; null where not permitted",
        "read_bytes": "bytes read from storage so far, ended processes included; null where not permitted",
        "write_bytes": "bytes written to storage so far, ended processes included; null where not permitted",
    },
    "host": {
        "memory_total_bytes": "memory of the machine",
        "memory_available_bytes": "memory that programs can have without swapping",
        "cpu_percent": "busy share of all CPUs since the sample before, 0 to 100; null in the first sample",
        "load1": "load average over a minute",
        "network_rx_bytes": "bytes that the job's network namespace has received so far, loopback left out; whoever "
        "shares the namespace counts, RDMA does not",
        "network_tx_bytes": "bytes that it has sent so far",
        "memory_pressure_s": "seconds in which some task of the machine has waited for memory, since boot; null where "
        "the kernel keeps no pressure (PSI), as the next two",
        "cpu_pressure_s": "the same for a CPU",
        "io_pressure_s": "the same for storage",
        "cpu_energy_j": "energy of the processors since the sampler's start, by RAPL; null where it may not be read",
    },
    "cgroup": {
        "memory_bytes": "memory that the job's control group uses, the page cache included; why this or another of the "
        "group is null stands in `start`",
        "memory_peak_bytes": "the most that it has used, also before the job",
        "memory_pressure_s": "seconds in which some task of the group has waited for memory so far",
        "cpu_pressure_s": "the same for a CPU",
        "io_pressure_s": "the same for storage",
        "cpu_throttled_s": "seconds for which its CPU limit has stopped the group so far",
    },
    "sampler": {
        "poll_s": "wall time that this sample took, that of GPUs not included",
        "cpu_s": "CPU seconds of the sampler so far",
        "busy_fraction": "CPU time of the sampler since the sample before as a share of one core, reading GPUs "
        "included; null in the first sample",
    },
}

_PSS_EVERY = 5  # samples, reading it costs about a millisecond a GiB of each process
_PSS_FIRST = 3  # samples at the start that all have it: a job may last no longer
_ENDING = {signal.SIGTERM, signal.SIGINT}
_GPU_GRACE_S = 1.0  # for a last sample of the GPUs; a driver that hangs must not cost the supervisor's grace
_TAIL_BYTES = 65536  # of a journal that is there already: the last samples stand in it


class Sampler:
    """Takes samples of the tree below `root`; `sample` gives the fields of one line."""

    def __init__(self, root: int, *, with_root: bool = False, without: Collection[int] = ()) -> None:
        self._root, self._with_root = root, with_root
        self._without = {os.getpid(), *without}
        self._taken = 0
        self._ticks: tuple[int, int] | None = None
        self._cpu_s = 0.0
        self._io = (0, 0)
        self._cgroup = Cgroup.of()
        self._cpu_energy = host.CpuEnergy()
        self._own: tuple[float, float] | None = None  # (m, CPU seconds) of the sampler itself, at the sample before
        # What the supervisor itself has read and written so far is not the job's.
        self._own_io = host.read_io(root) or (0, 0)

    def start(self, interval_s: float) -> dict[str, Any]:
        """The fields of a `start` event."""
        return {
            "pid": os.getpid(),
            "interval_s": interval_s,
            "cgroup_version": self._cgroup.version,
            "memory_limit_bytes": self._cgroup.memory_limit_bytes,
            "cpu_limit": self._cgroup.cpu_limit,
            "reasons": self._cgroup.reasons,
        }

    def resume(self, sample: dict[str, Any]) -> None:
        """Go on from the last sample of one that died: what only rises must not fall."""
        with contextlib.suppress(KeyError, TypeError):
            tree = sample["tree"]
            self._cpu_s = max(self._cpu_s, float(tree["cpu_s"]))
            self._io = int(tree["read_bytes"]), int(tree["write_bytes"])

    def sample(self, last: bool = False) -> dict[str, dict[str, Any]]:
        begun = time.perf_counter()
        tree = host.tree_below(self._root, host.read_processes(), self._without, with_root=self._with_root)
        self._taken += 1
        with_pss = last or self._taken <= _PSS_FIRST or self._taken % _PSS_EVERY == 0
        self._cpu_s = max(self._cpu_s, tree.cpu_s)
        read, written = self._count_io(tree.pids)
        total, available = host.read_memory()
        received, sent = host.read_network(os.getpid()) or (None, None)
        return {
            "tree": {
                "processes": len(tree.pids),
                "rss_bytes": tree.rss_bytes or None,  # 0: nothing but zombies, if anything
                "pss_bytes": (host.read_pss(tree.pids) or None) if with_pss else None,
                "cpu_s": round(self._cpu_s, 2),
                "threads": tree.threads,
                "open_files": host.count_files(tree.pids),
                "read_bytes": read,
                "write_bytes": written,
            },
            "host": {
                "memory_total_bytes": total,
                "memory_available_bytes": available,
                "cpu_percent": self._cpu_percent(),
                "load1": host.read_load1(),
                "network_rx_bytes": received,
                "network_tx_bytes": sent,
                **{f"{kind}_pressure_s": pressure(kind) for kind in ("memory", "cpu", "io")},
                "cpu_energy_j": self._cpu_energy.read(),
            },
            "cgroup": self._cgroup.read(),
            "sampler": {
                "poll_s": round(time.perf_counter() - begun, 6),
                "cpu_s": round(time.process_time(), 4),
                "busy_fraction": self._busy_fraction(),
            },
        }

    def _busy_fraction(self) -> float | None:
        before, self._own = self._own, (time.monotonic(), time.process_time())
        if before is None or self._own[0] <= before[0]:
            return None
        return round((self._own[1] - before[1]) / (self._own[0] - before[0]), 5)

    def _count_io(self, pids: tuple[int, ...]) -> tuple[int | None, int | None]:
        """The kernel adds an ended process's counts to the parent that collects it, at last to the supervisor."""
        counts = [count for count in (host.read_io(pid) for pid in (self._root, *pids)) if count is not None]
        if not counts:
            return None, None
        now = [sum(column) - own for column, own in zip(zip(*counts, strict=True), self._own_io, strict=True)]
        self._io = max(self._io[0], now[0]), max(self._io[1], now[1])
        return self._io

    def _cpu_percent(self) -> float | None:
        before, self._ticks = self._ticks, host.read_cpu_ticks()
        if before is None or self._ticks is None or self._ticks[1] <= before[1]:
            return None
        return round(100 * (self._ticks[0] - before[0]) / (self._ticks[1] - before[1]), 1)


def run(sampler: Sampler, gpus: GpuPoll | None, journal: JournalFile, interval_s: float, parent: int) -> bool:
    """Sample until SIGTERM, or until the process `parent` is no more this one's; then once more.

    Returns whether all threads have ended."""
    if gpus is not None:
        gpus.start()
    due = time.monotonic()
    while True:
        journal.write("sample", **sampler.sample())
        if gpus is not None:
            gpus.tell_of_stall()
        due = max(due + interval_s, time.monotonic())  # what a stall has missed is not made up for
        if signal.sigtimedwait(_ENDING, max(0.0, due - time.monotonic())) is not None or os.getppid() != parent:
            break
    journal.write("sample", **sampler.sample(last=True))
    return gpus is None or gpus.stop(_GPU_GRACE_S)


def resume(sampler: Sampler, out: Path) -> float | None:
    """Go on in a journal that is there already; when its last line was written, on the clock of m.

    A line that was cut off is ended, so that the next one is not lost with it."""
    try:
        with open(out, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.write(b"\n")
    except OSError:
        return None
    events = [event for line in tail.splitlines() if (event := decode_event(line)) is not None]
    for event in events:
        if event["e"] == "sample":
            sampler.resume(event)
    times = [event["m"] for event in events if isinstance(event.get("m"), int | float)]
    return max(times, default=None)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Sample a job's processes, the host and GPUs.")
    parser.add_argument("--root-pid", type=int, required=True, help="the supervisor: what is below it is the job")
    parser.add_argument("--with-root", action="store_true", help="it is of the job, too: a program without supervisor")
    parser.add_argument("--without", type=int, action="append", default=[], help="a process that is not of the job")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="who has started this: its end is the end")
    parser.add_argument("--out", type=Path, required=True, help="journal to append to")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--gpu", action="append", default=[], help="UUID of a GPU or MIG device of the job")
    parser.add_argument("--visible-gpus", action="store_true", help="all that CUDA_VISIBLE_DEVICES leaves")
    given = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    sampler = Sampler(given.root_pid, with_root=given.with_root, without=given.without)
    written = resume(sampler, given.out)
    journal = JournalFile(given.out)
    journal.sync_regularly()
    if written is not None:
        journal.write("gap", from_m=written, seconds=round(time.monotonic() - written, 3))
    journal.write("start", **sampler.start(given.interval))
    gpus = None
    if given.gpu or given.visible_gpus:
        reader = Nvml(given.gpu or None, os.environ)
        without = {os.getpid(), *given.without}
        gpus = GpuPoll(reader, journal, given.interval, given.root_pid, with_root=given.with_root, without=without)
    ended = run(sampler, gpus, journal, given.interval, given.parent)
    journal.close()
    if not ended:
        os._exit(0)  # a thread stands in a driver that does not answer: Python's own end might wait for it
    return 0


def command(out: Path, interval_s: float = 1.0, gpus: Sequence[str] = ()) -> list[str]:
    """The argv of a sampler, to which the supervisor adds --root-pid; `gpus`: UUIDs of the job's."""
    script = Path(__file__).with_name("__main__.py")
    # Without site-packages it starts in a third of the time; the binding to the driver lies there.
    options = ["-I"] if gpus else ["-I", "-S"]
    chosen = [word for uuid in gpus for word in ("--gpu", uuid)]
    return [sys.executable, *options, str(script), "--out", str(out), "--interval", str(interval_s), *chosen]
