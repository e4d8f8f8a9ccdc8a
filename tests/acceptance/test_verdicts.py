"""Jobs that end badly for real, each in a manner of `targets/fails.py`: kind, root rank, and a reason with its figures.

Elsewhere: hangs (test_hangs), a TypeError and ends of one rank alone (test_exec), swallowed exceptions of a Trainer
(test_outcomes)."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.record import Kind, Verdict
from harness.watch.cgroups import cgroup_chain
from tests.acceptance.conftest import Ended, Pod

pytestmark = pytest.mark.slow

MEMORY = 1536 << 20  # bytes: three times what two ranks of torch and the harness need to start
GLOO = r"RuntimeError: \[.*gloo/transport/tcp/.*"


def verdict_of(ended: Ended) -> Verdict:
    assert ended.record is not None, ended.stderr
    assert ended.record.verdict is not None
    return ended.record.verdict


# manner, ranks, kind, root rank, whether a retry may help, the whole reason as a pattern
ENDS: list[tuple[str, int, Kind, int | None, bool | None, str]] = [
    ("killed", 2, Kind.KILLED, 1, None, r"rank 1 was ended by SIGKILL; nothing shows that memory ran out"),
    ("segfault", 2, Kind.CRASH, 1, None, r"rank 1 died of SIGSEGV"),
    ("port_in_use", 2, Kind.RENDEZVOUS, 0, True, r"rank 0, import: .*DistNetworkError: .* port: \d+, .*EADDRINUSE.*"),
    (
        "address_in_use",
        1,
        Kind.RENDEZVOUS,
        0,
        True,
        r"rank 0, import: .*DistNetworkError: .* port: \d+, .*EADDRINUSE.*",
    ),
    ("missing_peer", 2, Kind.RENDEZVOUS, None, None, r"rank [01], import: .*wait timeout after 5000ms, keys: /\S+"),
    (
        "never_comes",
        2,
        Kind.NCCL,
        1,
        None,
        rf"rank 0 waited 5000 ms in a collective that rank 1 did not reach; {GLOO}Timed out waiting 5000ms.*",
    ),
    ("save_fails", 2, Kind.DISK_FULL, 1, None, r"rank 1, step 3, save: RuntimeError: .*unexpected pos \d+ vs \d+"),
    ("write_fails", 1, Kind.DISK_FULL, 0, False, r"rank 0, step 3: OSError: \[Errno 27\] File too large"),
    (
        "loader_killed",
        2,
        Kind.KILLED,
        1,
        None,
        r"rank 1, step 3(?:, data)?: RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: Killed\.",
    ),
    ("diverges", 1, Kind.NAN_LOSS, 0, False, r"rank 0, step \d: the loss is NaN from here to the end"),
    (
        "bad_argument",
        1,
        Kind.USER_ERROR,
        0,
        False,
        r"rank 0, import: argparse\.ArgumentError: argument --learning-rate: invalid float value: 'fast'",
    ),
    (
        "swallows",
        2,
        Kind.GPU_OOM,
        1,
        False,
        r"the log's last word of an error: asked for 2\.15 GiB, 1\.03 GiB of 79\.25 GiB free",
    ),
    ("swallows_silently", 1, Kind.UNKNOWN, 0, None, r"rank 0 ended with exit code 1 and no exception was seen"),
    ("tells_of_oom", 1, Kind.NONE, None, None, r""),
    (
        "offline",
        1,
        Kind.NETWORK,
        0,
        False,
        r"rank 0, import: OSError: We couldn't connect to 'https://huggingface\.co' .*",
    ),
    (
        "allocator",
        2,
        Kind.HOST_OOM,
        1,
        False,
        r"rank 1, step 3: .*DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes\. .*",
    ),
    ("memory_error", 1, Kind.HOST_OOM, 0, False, r"rank 0, step 3: MemoryError"),
    ("open_files", 1, Kind.USER_ERROR, 0, False, r"rank 0, step 3: OSError: \[Errno 24\] Too many open files"),
    (
        "halves",
        1,
        Kind.GPU_OOM,
        0,
        False,
        r"rank 0 asked for 16\.00 GiB, 1\.03 GiB of 79\.25 GiB free at first; no batch size fits, step 3",
    ),
]


@pytest.mark.parametrize(
    "manner, ranks, kind, root, transient, reason", [pytest.param(*end, id=end[0]) for end in ENDS]
)
def test_an_end(
    pod: Pod, manner: str, ranks: int, kind: Kind, root: int | None, transient: bool | None, reason: str
) -> None:
    ended = pod.run("--nproc", str(ranks), "--", "fails.py", manner)
    verdict = verdict_of(ended)
    assert (verdict.kind, verdict.rank, verdict.transient) == (kind, root, transient), verdict
    assert re.fullmatch(reason, verdict.reason), verdict.reason


def test_an_oom_and_what_comes_of_it(pod: Pod) -> None:
    verdict = verdict_of(pod.run("--nproc", "2", "--", "fails.py", "gpu_oom"))
    assert (verdict.kind, verdict.rank, verdict.transient, verdict.step) == (Kind.GPU_OOM, 1, False, 3)
    assert verdict.reason == "rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 3"
    assert verdict.hint is not None
    assert verdict.hint.startswith("this process holds 78.20 GiB of 79.25 GiB and lacks another 1.12 GiB")
    assert [(each.rank, each.kind) for each in verdict.secondary] == [(0, Kind.NCCL)]
    assert re.match(GLOO, verdict.secondary[0].text)


def test_an_error_behind_5_mb_in_no_encoding(pod: Pod) -> None:
    verdict = verdict_of(pod.run("--nproc", "2", "--", "fails.py", "noise"))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.USER_ERROR, 1, False)
    told = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"
    assert verdict.reason == f"rank 1: {told}"
    log = pod.job.stderr(1).read_bytes()
    assert len(log) > 5_000_000
    fact = verdict.evidence[0]
    assert (fact.file, fact.text) == ("rank-1/stderr.log", told)
    assert fact.line is not None
    assert log.split(b"\n")[fact.line - 1].endswith(told.encode())


# --- ended from outside, while the job runs


@pytest.fixture
def running(pod: Pod) -> "subprocess.Popen[str]":
    """Two ranks, of which rank 0 waits for rank 1, which sleeps in step 3."""
    process = pod.start("--nproc", "2", "--", "fails.py", "forever")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["step 1\n", "step 2\n"]
    return process


def pid_of(pod: Pod, path: Path, event: str) -> int:
    return int(next(e["pid"] for e in map(json.loads, path.read_text().splitlines()) if e["e"] == event))


def test_sigterm_to_the_harness(pod: Pod, running: "subprocess.Popen[str]") -> None:
    running.send_signal(signal.SIGTERM)
    verdict = verdict_of(pod.end(running))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.KILLED, None, True)
    assert verdict.reason == "ended from outside by SIGTERM, step 3, steady"


def test_sigterm_to_the_launcher(pod: Pod, running: "subprocess.Popen[str]") -> None:
    os.kill(pid_of(pod, pod.job.supervisor_journal(), "command_started"), signal.SIGTERM)
    verdict = verdict_of(pod.end(running))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.KILLED, None, True)
    assert verdict.reason == "ended from outside by SIGTERM"


def test_sigterm_to_a_rank(pod: Pod, running: "subprocess.Popen[str]") -> None:
    os.kill(pid_of(pod, pod.job.events(1), "start"), signal.SIGTERM)
    verdict = verdict_of(pod.end(running))
    assert (verdict.kind, verdict.rank, verdict.transient, verdict.step) == (Kind.KILLED, 1, True, 3)
    assert verdict.reason == "rank 1 was ended by SIGTERM"


def test_the_time_limit(pod: Pod) -> None:
    verdict = verdict_of(pod.run("--nproc", "2", "--time-limit", "4s", "--", "fails.py", "forever"))
    assert (verdict.kind, verdict.transient) == (Kind.TIMEOUT, None)
    assert verdict.reason.startswith("time limit of 4 s reached")


# --- out of memory


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, below this process's own; the test is skipped where none can be made."""
    version, folders = cgroup_chain("memory")
    if not folders:
        pytest.skip("no control group rules memory here")
    group = folders[0] / f"harness-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        names = ["memory.max", "memory.swap.max"] if version == 2 else ["memory.limit_in_bytes"]
        try:
            for name, value in zip(names, (MEMORY, 0), strict=False):
                if name == names[0] or (group / name).exists():
                    (group / name).write_text(f"{value}\n")
        except OSError as error:
            pytest.skip(f"a control group's memory cannot be limited: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    "manner, killed", [("eats_memory", "rank 1"), ("loader_eats_memory", "a DataLoader worker of rank 1")]
)
def test_a_kill_for_memory(small_group: Path, pod: Pod, manner: str, killed: str) -> None:
    pod.before = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(small_group / "cgroup.procs"))
    verdict = verdict_of(pod.run("--nproc", "2", "--", "fails.py", manner))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.HOST_OOM, 1, False), verdict
    assert re.fullmatch(rf"{killed} was killed: .*control group .*", verdict.reason), verdict.reason
    assert json.loads(pod.job.end.read_text())["oom_kill"] == 1
