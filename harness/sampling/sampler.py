"""The sampler: a process beside a job that writes one line a second about the job's processes and the host.

The supervisor starts it and ends it by SIGTERM, on which it takes a last sample.  Standard library and the probe's
journal only, so that it starts in a few hundredths of a second and needs no installation."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from harness.probe.journal import JournalFile
from harness.sampling import host

# group -> field -> what it holds: the fields of a `sample` line; every line also has t, m and e.
SAMPLE_FIELDS: dict[str, dict[str, str]] = {
    "tree": {
        "processes": "number of processes of the job: all below the supervisor, without it and without the sampler",
        "rss_bytes": "their resident memory; a page that several share counts once for each; null when none lives",
        "pss_bytes": "the same with shared pages shared out; null in most samples (it is dear) and where not permitted",
        "cpu_s": "CPU seconds of the job so far, ended processes included; never falls",
        "threads": "number of their threads",
        "read_bytes": "bytes read from storage so far, ended processes included; null where not permitted",
        "write_bytes": "bytes written to storage so far, ended processes included; null where not permitted",
    },
    "host": {
        "memory_total_bytes": "memory of the machine",
        "memory_available_bytes": "memory that programs can have without swapping",
        "cpu_percent": "busy share of all CPUs since the sample before, 0 to 100; null in the first sample",
        "load1": "load average over a minute",
    },
    "sampler": {
        "poll_s": "wall time that this sample took",
        "cpu_s": "CPU seconds of the sampler so far",
    },
}

_PSS_EVERY = 5  # samples, reading it costs about a millisecond a GiB of each process
_PSS_FIRST = 3  # samples at the start that all have it: a job may last no longer


class Sampler:
    """Takes samples of the tree below `root`; `sample` gives the fields of one line."""

    def __init__(self, root: int, *, with_root: bool = False, without: Collection[int] = ()) -> None:
        self._root, self._with_root = root, with_root
        self._without = {os.getpid(), *without}
        self._taken = 0
        self._ticks: tuple[int, int] | None = None
        self._cpu_s = 0.0
        self._io = (0, 0)
        # What the supervisor itself has read and written so far is not the job's.
        self._own_io = host.read_io(root) or (0, 0)

    def sample(self, last: bool = False) -> dict[str, dict[str, Any]]:
        begun = time.perf_counter()
        tree = host.tree_below(self._root, host.read_processes(), self._without, with_root=self._with_root)
        self._taken += 1
        with_pss = last or self._taken <= _PSS_FIRST or self._taken % _PSS_EVERY == 0
        self._cpu_s = max(self._cpu_s, tree.cpu_s)
        read, written = self._count_io(tree.pids)
        total, available = host.read_memory()
        return {
            "tree": {
                "processes": len(tree.pids),
                "rss_bytes": tree.rss_bytes or None,  # 0: nothing but zombies, if anything
                "pss_bytes": (host.read_pss(tree.pids) or None) if with_pss else None,
                "cpu_s": round(self._cpu_s, 2),
                "threads": tree.threads,
                "read_bytes": read,
                "write_bytes": written,
            },
            "host": {
                "memory_total_bytes": total,
                "memory_available_bytes": available,
                "cpu_percent": self._cpu_percent(),
                "load1": host.read_load1(),
            },
            "sampler": {
                "poll_s": round(time.perf_counter() - begun, 6),
                "cpu_s": round(time.process_time(), 4),
            },
        }

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


def run(sampler: Sampler, out: Path, interval_s: float, parent: int) -> None:
    """Sample until SIGTERM, or until the process `parent` is no more this one's; then once more."""
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    journal = JournalFile(out)
    due = time.monotonic()
    while True:
        journal.write("sample", **sampler.sample())
        due = max(due + interval_s, time.monotonic())  # what a stall has missed is not made up for
        if signal.sigtimedwait(ending, max(0.0, due - time.monotonic())) is not None or os.getppid() != parent:
            break
    journal.write("sample", **sampler.sample(last=True))
    journal.close()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Sample a job's processes and the host.")
    parser.add_argument("--root-pid", type=int, required=True, help="the supervisor: what is below it is the job")
    parser.add_argument("--with-root", action="store_true", help="it is of the job, too: a program without supervisor")
    parser.add_argument("--without", type=int, action="append", default=[], help="a process that is not of the job")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="who has started this: its end is the end")
    parser.add_argument("--out", type=Path, required=True, help="journal to append to")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between samples")
    given = parser.parse_args(argv)
    sampler = Sampler(given.root_pid, with_root=given.with_root, without=given.without)
    run(sampler, given.out, given.interval, given.parent)
    return 0


def command(out: Path, interval_s: float = 1.0) -> list[str]:
    """The argv of a sampler, to which the supervisor adds --root-pid."""
    script = Path(__file__).with_name("__main__.py")
    return [sys.executable, "-I", "-S", str(script), "--out", str(out), "--interval", str(interval_s)]
