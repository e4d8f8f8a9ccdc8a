"""What is known of an ended job: the supervisor's last word, the ranks' journals, and the ends of their logs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.journal import RankJournal, open_regular, read_document, read_events, read_ranks
from harness.probe.layout import JobPaths

TAIL_BYTES = 32768

# torchrun's summary of failed ranks (torch.distributed.elastic.multiprocessing.errors.ChildFailedError).
RANK_EXIT = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: \d+\)\n\s*exitcode\s+: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
# Ranks that torchrun ends itself once another has failed: their signals are no reason.
CLOSED = re.compile(r"Sending process (\d+) closing signal")
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class JobEvidence:
    """Everything a verdict may rest on; files are named relative to the job directory."""

    end: Mapping[str, Any] | None  # end.json
    ranks: Sequence[RankJournal]
    world_size: int
    expects_steps: bool = True  # False: the scenario says `measure: {steps: none}`
    time_limit_s: float | None = None
    ending_t: float | None = None  # when the supervisor began to end the job, seconds since the epoch
    tails: Mapping[str, str] = field(default_factory=dict)  # file -> its last lines
    rank_exits: Mapping[int, int] = field(default_factory=dict)  # exit codes that the launcher names


def collect(job: JobPaths, *, world_size: int, expects_steps: bool, time_limit_s: float | None) -> JobEvidence:
    """Read a job directory; whatever is absent is absent in the evidence."""
    launcher = log_tail(job.launcher_log())
    tails = {str(job.launcher_log().relative_to(job.root)): launcher}
    for rank in job.ranks():
        for path in (job.stdout(rank), job.stderr(rank)):
            tails[str(path.relative_to(job.root))] = log_tail(path)
    ending = [event["t"] for _, event in read_events(job.supervisor_journal()) if event["e"] == "ending"]
    return JobEvidence(
        end=read_document(job.end),
        ranks=read_ranks(job),
        world_size=world_size,
        expects_steps=expects_steps,
        time_limit_s=time_limit_s,
        ending_t=ending[0] if ending else None,
        tails=tails,
        rank_exits=rank_exits(launcher),
    )


def rank_exits(launcher: str) -> dict[int, int]:
    """Exit codes of the ranks by torchrun's summary, without those of ranks that torchrun itself ended by a signal."""
    closed = set(CLOSED.findall(launcher))
    exits = [(int(rank), int(code), pid) for rank, code, pid in RANK_EXIT.findall(launcher)]
    return {rank: code for rank, code, pid in exits if code >= 0 or pid not in closed}


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
    text = ANSI.sub("", data.decode("utf-8", errors="replace"))
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
