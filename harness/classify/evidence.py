"""What is known of an ended job: the supervisor's last word, the ranks' journals, the kernel's lines, and all logs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.classify.log import Log, Raised, scan
from harness.classify.text import ANSI
from harness.journal import RankJournal, open_regular, read_document, read_events, read_ranks
from harness.probe.layout import JobPaths

TAIL_BYTES = 32768
KERNEL_LINE = re.compile(r"^(\d+(?:\.\d+)?) (.*)$")


@dataclass(frozen=True)
class KernelLine:
    """What the kernel, or the driver, said while the job ran."""

    text: str
    file: str
    line: int


@dataclass(frozen=True)
class JobEvidence:
    """Everything a verdict may rest on; files are named relative to the job directory, or as they were given."""

    end: Mapping[str, Any] | None  # end.json, or as much of it as is known
    ranks: Sequence[RankJournal]
    world_size: int | None  # None: nobody knows
    expects_steps: bool = True  # False: the scenario says `measure: {steps: none}`, or there was no probe
    time_limit_s: float | None = None
    ending_t: float | None = None  # when the supervisor began to end the job, seconds since the epoch
    tails: Mapping[str, str] = field(default_factory=dict)  # file -> its last lines
    rank_exits: Mapping[int, int] = field(default_factory=dict)  # exit codes that the launcher names
    logs: Sequence[Log] = ()
    kernel: Sequence[KernelLine] = ()
    raised: Sequence[Raised] = ()  # told in other ways: torchelastic's error file, an exception at hand
    supervised: bool = True  # False: no supervisor of ours was there, only logs


def collect(job: JobPaths, *, world_size: int, expects_steps: bool, time_limit_s: float | None) -> JobEvidence:
    """Read a job directory; whatever is absent is absent in the evidence."""
    logs = [_read(job, job.launcher_log())]
    for rank in job.ranks():
        logs += [_read(job, job.stdout(rank), rank), _read(job, job.stderr(rank), rank)]
    ending = [event["t"] for _, event in read_events(job.supervisor_journal()) if event["e"] == "ending"]
    return JobEvidence(
        end=read_document(job.end),
        ranks=read_ranks(job),
        world_size=world_size,
        expects_steps=expects_steps,
        time_limit_s=time_limit_s,
        ending_t=ending[0] if ending else None,
        tails=tails_of(logs),
        rank_exits=exits_of(logs),
        logs=logs,
        kernel=[
            *read_kernel(job.kernel_log(), str(job.kernel_log().relative_to(job.root))),
            *read_driver(job.system_journal(), str(job.system_journal().relative_to(job.root))),
        ],
    )


def _read(job: JobPaths, path: Path, rank: int | None = None) -> Log:
    name = str(path.relative_to(job.root))
    try:
        with open_regular(path) as file:
            return scan(file, name, rank)
    except OSError:
        return Log(name)


def read_kernel(path: Path, name: str) -> list[KernelLine]:
    """Kernel lines as the supervisor keeps them: `SECONDS TEXT`."""
    try:
        with open_regular(path) as file:
            lines = file.read(1 << 20).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = [(number, KERNEL_LINE.match(line)) for number, line in enumerate(lines, 1)]
    return [KernelLine(match[2], name, number) for number, match in found if match is not None]


def read_driver(path: Path, name: str) -> list[KernelLine]:
    """What the driver told the sampler of the job's GPUs, in the kernel's words: few may read the kernel's own log."""
    found = []
    for number, event in read_events(path):
        if event["e"] == "xid":
            found.append(KernelLine(f"NVRM: Xid ({event.get('uuid')}): {event.get('xid')}", name, number))
        elif event["e"] == "gpu_lost":
            text = f"{event.get('uuid')} has fallen off the bus, or cannot be reached: {event.get('reason')}"
            found.append(KernelLine(text, name, number))
    return found


def tails_of(logs: Sequence[Log]) -> dict[str, str]:
    """The last lines of logs."""
    return {log.file: "\n".join(line.text for line in log.tail) for log in logs}


def exits_of(logs: Sequence[Log]) -> dict[int, int]:
    """Exit codes of the ranks by their launcher's words, without those of ranks that the launcher itself ended."""
    exits: dict[int, int] = {}
    for log in logs:
        closed = log.launcher.closed
        for death in log.launcher.deaths:
            if death.rank is not None and (death.code >= 0 or death.pid not in closed):
                exits.setdefault(death.rank, death.code)
    return exits


def log_tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The last bytes of a log as text: undecodable bytes replaced, colours and overwritten progress bars taken out."""
    try:
        with open_regular(path) as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - size))
            data = file.read()
    except OSError:
        return ""
    if length > size:
        data = data.partition(b"\n")[2]
    text = ANSI.sub(b"", data).decode("utf-8", errors="replace")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
