"""The names of a job directory's files: the one place that joins paths; and of the job itself."""

from dataclasses import dataclass
from pathlib import Path

JOB_ID = "HARNESS_JOB_ID"  # in the environment of every process of a job of the harness
_ATTEMPT = "attempt-"


@dataclass(frozen=True)
class JobPaths:
    """A job directory, `results/<session>/<case-id>/attempt-N`; ranks are global, nodes count from 0."""

    root: Path

    @property
    def job(self) -> Path:
        """Written before launch: schema, resolved scenario, argv, environment names, lease, labels."""
        return self.root / "job.json"

    @property
    def end(self) -> Path:
        """The supervisor's last word."""
        return self.root / "end.json"

    @property
    def forwarder(self) -> Path:
        """What reached Aim, as the forwarder says."""
        return self.root / "forwarder.json"

    @property
    def forwarder_log(self) -> Path:
        return self.root / "forwarder.log"

    @property
    def probe(self) -> Path:
        """The staged probe, as a package that no target's own module can be mistaken for."""
        return self.root / "probe" / "harness_probe"

    @property
    def site(self) -> Path:
        """The folder in PYTHONPATH that brings the probe into every Python of a job whose target starts its ranks."""
        return self.root / "probe" / "site"

    @property
    def outputs(self) -> Path:
        """Where the target may write (`output_dir`); removed after the job unless the scenario keeps it."""
        return self.root / "outputs"

    @property
    def termination_log(self) -> Path:
        """What fms-hf-tuning says in the words of its own exit codes, all ranks in one file."""
        return self.root / "termination.log"

    def node(self, node: int = 0) -> Path:
        return self.root / f"node-{node}"

    def supervisor_journal(self, node: int = 0) -> Path:
        return self.node(node) / "supervisor.jsonl"

    def system_journal(self, node: int = 0) -> Path:
        return self.node(node) / "system.jsonl"

    def launcher_log(self, node: int = 0) -> Path:
        """What the command writes before its ranks have logs of their own, and what torchrun says."""
        return self.node(node) / "launcher.log"

    def kernel_log(self, node: int = 0) -> Path:
        """What the kernel said of memory and GPUs while the job ran, where the supervisor may read it."""
        return self.node(node) / "kernel.log"

    def rank(self, rank: int) -> Path:
        return self.root / f"rank-{rank}"

    def events(self, rank: int) -> Path:
        return self.rank(rank) / "events.jsonl"

    def stdout(self, rank: int) -> Path:
        return self.rank(rank) / "stdout.log"

    def stderr(self, rank: int) -> Path:
        return self.rank(rank) / "stderr.log"

    def holder(self, rank: int) -> Path:
        """Which process is the rank, its id and its start; only where the target starts its ranks itself."""
        return self.rank(rank) / "holder"

    def error(self, rank: int) -> Path:
        """The exception that ended the rank, written once, only if the rank ended badly."""
        return self.rank(rank) / "error.json"

    def stacks(self, rank: int) -> Path:
        """Where the rank stood when the supervisor asked, by faulthandler; empty when it never did."""
        return self.rank(rank) / "stacks.txt"

    def py_spy(self, rank: int) -> Path:
        """The same as py-spy tells it, where that is installed."""
        return self.rank(rank) / "py-spy.txt"

    def memory(self, rank: int) -> Path:
        """What the allocator of the GPU held when it ran out of memory."""
        return self.rank(rank) / "memory.json"

    def memory_snapshot(self, rank: int) -> Path:
        """torch's snapshot of the allocator at that time, for its own viewer; a pickle that nobody here reads."""
        return self.rank(rank) / "memory_snapshot.pickle"

    def flight_recorder(self, node: int = 0) -> Path:
        """What the dumps of torch's flight recorder are named by: a rank is appended, and for its pipe `.pipe`."""
        return self.node(node) / "flight-recorder-rank-"

    def nccl_log(self, node: int = 0) -> Path:
        """What NCCL warns of; NCCL itself replaces %h by the host and %p by the process id."""
        return self.node(node) / "nccl.%h.%p.log"

    def ranks(self) -> list[int]:
        """The ranks that have left a folder so far, in order."""
        return sorted(int(p.name[5:]) for p in self.root.glob("rank-*") if p.name[5:].isdecimal() and p.is_dir())


def attempts(case_dir: Path) -> list[int]:
    """The numbers of the attempts that have a folder in a case's directory, in order."""
    return sorted(
        int(path.name[len(_ATTEMPT) :])
        for path in case_dir.glob(f"{_ATTEMPT}*")
        if path.name[len(_ATTEMPT) :].isdecimal() and path.is_dir()
    )


def attempt(case_dir: Path, number: int) -> JobPaths:
    """The job directory of one attempt, whether or not it is there; the first is 1."""
    return JobPaths(case_dir / f"{_ATTEMPT}{number}")


def run_hash_of(job_id: str) -> str:
    """The name that a job's run has in Aim (24 hex digits, as Aim's own are): known before the run is made."""
    return job_id.replace("-", "")[:24]
