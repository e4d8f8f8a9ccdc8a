"""What can go wrong around an Aim repo, made real: small disks, servers to lose, an interpreter without Aim.

`FAULTS` is the matrix under which jobs of the harness and plain scripts are run."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from tests.unit.jobs import eventually, processes_naming

needs_aim = pytest.mark.skipif(importlib.util.find_spec("aim") is None, reason="needs aim")


def bare_python(folder: Path) -> Path:
    """An interpreter with nothing but the standard library; its venv is made in `folder`."""
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own; skips the test where that may not be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(path: Path) -> None:
    """Write to `path` until its disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def delete(repo: Path) -> None:
    """Delete a repo that is in use: Aim adds files meanwhile, and takes some away."""
    while repo.exists():
        shutil.rmtree(repo, ignore_errors=True)


def make_old(repo: Path, version: str) -> None:
    """A repo that another version of Aim has made."""
    (repo / ".aim").mkdir(parents=True)
    (repo / ".aim" / "VERSION").write_text(version)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def server(repo: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """(URL, process) of an Aim server over a new repo; signals are for its process group."""
    aim_cli = [sys.executable, "-c", "import sys; from aim.cli.cli import cli_entry_point as go; go()"]
    repo.mkdir()
    subprocess.run([*aim_cli, "init", "--repo", str(repo)], check=True, capture_output=True, timeout=60)
    port = free_port()
    argv = [*aim_cli, "server", "--repo", str(repo), "--host", "127.0.0.1", "--port", str(port)]
    log = (repo / "server.log").open("wb")
    with log, subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            eventually(lambda: answers(port))
            yield f"aim://127.0.0.1:{port}", process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def answers(port: int) -> bool:
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) == 0


STEPS = 20  # of a job under a fault
STRUCK_AT = 15  # step at which the program waits until the fault is there


@dataclass(frozen=True)
class Fault:
    """Where the runs go, and what is done while the program waits at step 15."""

    repo: str  # a folder (relative to the test's own), or a URL
    strike: Callable[[], None] | None = None
    without_aim: bool = False  # the forwarder's interpreter has none


@contextmanager
def not_installed(root: Path) -> Iterator[Fault]:
    yield Fault("repo", without_aim=True)


@contextmanager
def read_only(root: Path) -> Iterator[Fault]:
    with tmpfs(root / "disk", "1m") as disk:
        make_read_only(disk)
        yield Fault(str(disk))


@contextmanager
def old_version(root: Path) -> Iterator[Fault]:
    make_old(root / "repo", "0.9")
    yield Fault("repo")


@contextmanager
def full_disk(root: Path) -> Iterator[Fault]:
    with tmpfs(root / "disk", "3m") as disk:
        yield Fault(str(disk), lambda: fill(disk / "filler"))


@contextmanager
def deleted(root: Path) -> Iterator[Fault]:
    yield Fault("repo", lambda: delete(root / "repo"))


@contextmanager
def server_killed(root: Path) -> Iterator[Fault]:
    with server(root / "repo") as (url, process):
        yield Fault(url, lambda: os.killpg(process.pid, signal.SIGKILL))


@contextmanager
def server_frozen(root: Path) -> Iterator[Fault]:
    with server(root / "repo") as (url, process):
        yield Fault(url, lambda: os.killpg(process.pid, signal.SIGSTOP))


@contextmanager
def no_server(root: Path) -> Iterator[Fault]:
    yield Fault(f"aim://127.0.0.1:{free_port()}")


@contextmanager
def forwarder_killed(root: Path) -> Iterator[Fault]:
    def strike() -> None:
        [pid] = processes_naming(f"forward/__main__.py\0{root}")
        os.kill(pid, signal.SIGKILL)

    yield Fault("repo", strike)


# fault -> state in forwarder.json, text of its reason
FAULTS: dict[Callable[[Path], AbstractContextManager[Fault]], tuple[str, str]] = {
    not_installed: ("failed", "aim is not installed"),
    read_only: ("failed", "Read-only file system"),
    old_version: ("failed", "the repo has version 0.9"),
    full_disk: ("partial", "free on the disk"),
    deleted: ("partial", "was it deleted?"),
    server_killed: ("partial", "wait for the server"),
    server_frozen: ("partial", "wait for the server"),
    no_server: ("failed", "Aim Server"),
    forwarder_killed: ("partial", ""),  # who has started it tells of it, if anybody does
}


def fault_id(fault: Callable[[Path], AbstractContextManager[Fault]]) -> str:
    return fault.__name__.replace("_", "-")


def is_struck_at(job: JobPaths) -> bool:
    """Whether the program waits at its step 15, and Aim has taken something of it."""
    steps = [event for _, event in read_events(job.events(0)) if event["e"] == "step"]
    tracked = (read_document(job.forwarder) or {}).get("tracked") or 0
    return len(steps) == STRUCK_AT and tracked >= STRUCK_AT
