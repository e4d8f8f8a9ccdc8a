"""What others than the job's processes say of its end: the kernel, the cgroup's counter, a signal to the launcher."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from harness.classify.evidence import JobEvidence, KernelLine
from harness.classify.lines import KERNEL_CONSTRAINT, KERNEL_LOST_GPU, KERNEL_OOM, XID
from harness.record import Evidence

# NVIDIA's catalogue of Xid errors: memory, NVLink, bus, contained and uncontained ECC errors.  Other hardware is fine.
HARDWARE_XIDS = frozenset([48, 63, 64, 74, 79, 94, 95])
# What an application's own fault raises, or a fault's clean-up: no word on the hardware.
APPLICATION_XIDS = frozenset([13, 31, 43, 45])
WRAPPED = {256 - number: -number for number in (2, 4, 6, 7, 8, 9, 11, 15)}  # DeepSpeed exits with a negative code


@dataclass(frozen=True)
class Outside:
    text: str
    transient: bool | None
    facts: tuple[Evidence, ...]
    rank: int | None = None
    certain: bool = True  # it names a process, and not a number alone


@dataclass(frozen=True)
class Asked:
    """A signal that came from outside."""

    number: int
    file: str
    line: int
    text: str
    by_launcher: bool = True  # it says so itself; False: a rank was interrupted, which a launcher may have done


def as_signal(code: int) -> int:
    """An exit code as Popen gives it: a shell's 128+N, or a negative code that wrapped, is the signal."""
    if code in WRAPPED:
        return WRAPPED[code]
    return 128 - code if code > 128 and code - 128 in set(signal.Signals) else code


def memory_kill(evidence: JobEvidence) -> Outside | None:
    """The kernel killed a process of the job for memory."""
    count = (evidence.end or {}).get("oom_kill")
    ranks = _ranks_by_pid(evidence)
    constraint, kills = None, []
    for line in _kernel(evidence):
        if named := KERNEL_CONSTRAINT.search(line.text):
            constraint = named[1]
        if found := KERNEL_OOM.search(line.text):
            pid = int(found[1] or found[2])
            if evidence.supervised and count == 0 and pid not in ranks:
                continue  # another job's: the kernel's log is the whole machine's, the count is ours
            whole_machine = found[2] is not None and constraint != "CONSTRAINT_MEMCG"
            where = "the machine was out of memory" if whole_machine else "its control group was out of memory"
            fact = Evidence(file=line.file, line=line.line or None, text=line.text[:400])
            said = f"{where}: kernel killed process {pid}"
            kills.append(Outside(said, None if whole_machine else False, (fact,), ranks.get(pid)))
    if kills:
        return next((kill for kill in kills if kill.rank is not None), kills[0])
    if isinstance(count, int) and count > 0:
        said = f"the control group counts {count} kills for want of memory"
        return Outside(said, False, (), certain=False)
    return None


def hardware_fault(evidence: JobEvidence) -> Outside | None:
    """The first Xid error that is not an application's own, or a GPU that left the bus."""
    ranks = _ranks_by_pid(evidence)
    for line in _kernel(evidence):
        fact = Evidence(file=line.file, line=line.line or None, text=line.text[:400])
        if found := XID.search(line.text):
            number = int(found[1])
            if number not in APPLICATION_XIDS:
                rank = ranks.get(int(found[2])) if found[2] else None
                return Outside(f"Xid {number}: {line.text}", True if number in HARDWARE_XIDS else None, (fact,), rank)
        elif KERNEL_LOST_GPU.search(line.text):
            return Outside(f"a GPU fell off the bus: {line.text}", True, (fact,))
    return None


def task_out_of_memory(evidence: JobEvidence) -> int | None:
    """The first task that srun names as out of memory."""
    named = (death for log in evidence.logs for death in log.launcher.deaths if "Out Of Memory" in death.text)
    return next((death.rank for death in named), None)


def asked_to_end(evidence: JobEvidence) -> Asked | None:
    """The first signal that a launcher got from outside, or a Ctrl-C that the program saw."""
    for log in evidence.logs:
        if log.launcher.asked:
            number, line, text = log.launcher.asked[0]
            return Asked(number, log.file, line, text)
    for log in evidence.logs:
        if log.interrupted is not None:
            return Asked(signal.SIGINT, log.file, *log.interrupted, by_launcher=False)
    return None


def only_failure(evidence: JobEvidence) -> int | None:
    """The rank that failed while no other did, and none was left for the launcher to end: the others ended well."""
    for log in evidence.logs:
        ranks = {death.rank for death in log.launcher.deaths}
        if log.launcher.alone and not log.launcher.closed and len(ranks) == 1:
            return next(iter(ranks))
    return None


def death_lines(evidence: JobEvidence, code: int) -> list[Evidence]:
    """Where launchers name processes that ended so."""
    found = [
        Evidence(file=log.file, line=death.line, text=death.text[:400])
        for log in evidence.logs
        for death in log.launcher.deaths
        if death.code == code
    ]
    return found[:3]


def _kernel(evidence: JobEvidence) -> Iterator[KernelLine]:
    yield from evidence.kernel
    for log in evidence.logs:
        for number, text in log.kernel:
            yield KernelLine(text, log.file, number)


def _ranks_by_pid(evidence: JobEvidence) -> dict[int, int]:
    """The ranks' process ids, by their journals and by their launcher."""
    ranks = {
        death.pid: death.rank
        for log in evidence.logs
        for death in reversed(log.launcher.deaths)
        if death.pid is not None and death.rank is not None
    }
    for journal in evidence.ranks:
        start = journal.last("start")
        if start is not None and isinstance(start.get("pid"), int):
            ranks[start["pid"]] = journal.rank
    return ranks
